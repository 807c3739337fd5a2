"""Where images are decoded is without effect on what is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.images import encode_png
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.limits import ResourcesConfig
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from tests.pipelines.columns import columns
from tests.pipelines.tars import tar_bytes

ROLES = ("target-member", "target-nonmember", "known-member", "known-nonmember")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 400 pixels, which take longer to decode than an encoder of 8 pixels to answer."""
    folder = tmp_path_factory.mktemp("shards")
    generator = np.random.default_rng(0)
    for shard in range(4):
        noise = generator.integers(0, 256, (12, 400, 400, 3), dtype=np.uint8)
        members = {f"s{shard}{row:03d}.png": encode_png(pixels) for row, pixels in enumerate(noise)}
        (folder / f"{shard}.tar").write_bytes(tar_bytes(members.items()))
    return folder


def config_of(shards: Path, **resources: Any) -> RunConfig:
    return parse(
        {
            "name": "decoding",
            "data": {
                "sources": {"pool": {"kind": "shards", "path": f"{shards}/{{0..3}}.tar"}},
                "image_size": 8,
                "roles": {role: {"from": "pool", "count": 12} for role in ROLES},
            },
            "encoders": {
                "target": {
                    "load": "checkpoint:conv4",
                    "fresh": True,
                    "mean": [0.5] * 3,
                    "std": [0.5] * 3,
                    "augmentation": {"blur": 0.0},
                }
            },
            "queries": {"chunk": 2, "views": 2, "outputs": ["backbone"], "nonce": "dice"},
            "attacks": [{"attack": "encodermi-t", "target": "target", "reference": "known"}],
            "resources": {"encoder_actors": 1, "actor_cpus": 0.25, "decoder_cpus": 0.25, **resources},
        },
        "decoding.yaml",
    )


def extracted(config: RunConfig, folder: Path) -> dict[str, np.ndarray]:
    """Similarities by sample."""
    audit.run(config, str(folder), last="extract")
    place = RunFolder(str(folder)).seed(0)
    found = columns(config, place, "target", 0, "backbone", [PairwiseSimilarity()], ROLES)
    return dict(zip(found.ids, found.values["pairwise:cosine"], strict=True))


@pytest.mark.slow
def test_tasks_of_its_own_find_the_same(local_ray: None, shards: Path, tmp_path: Path) -> None:
    fused, apart = (extracted(config_of(shards, decode=how), tmp_path / how) for how in ("fused", "apart"))
    assert list(apart) == list(fused)
    assert len(apart) == 48
    for name, values in fused.items():
        np.testing.assert_allclose(apart[name], values, atol=1e-5)


@pytest.mark.parametrize(("cpus", "decode", "tasks"), [(8.0, "fused", 0), (8.0, "apart", 7), (1.0, "apart", 1)])
def test_tasks_that_decode(cpus: float, decode: Any, tasks: int) -> None:
    assert ResourcesConfig(decode=decode).decoders(1, {"CPU": cpus}) == tasks
