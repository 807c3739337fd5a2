"""Where images are decoded: chosen by the first chunks, said aloud, and without effect on what is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mi_core.images import encode_png
from pipelines.audit import run as audit
from pipelines.config.demands import Asking
from pipelines.config.limits import ResourcesConfig
from pipelines.config.load import parse
from pipelines.config.run_config import RunConfig
from pipelines.console import console
from pipelines.extract.decoding import Decoding
from pipelines.extract.features import load_features
from pipelines.extract.throughput import Throughput
from pipelines.run.folder import RunFolder
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
            "queries": {"chunk": 2, "views": 2, "outputs": ["backbone"]},
            "attacks": [{"attack": "encodermi-t", "target": "target", "reference": "known"}],
            "resources": {"encoder_actors": 1, "actor_cpus": 0.25, "decoder_cpus": 0.25, **resources},
        },
        "decoding.yaml",
    )


def extracted(config: RunConfig, folder: Path) -> tuple[dict[str, np.ndarray], str]:
    """Similarities by sample, and what was printed."""
    with console.capture() as shown:
        audit.run(config, str(folder), last="extract")
    place = RunFolder(str(folder)).seed(0)
    recipe = config.recipe(config.attacks[0])
    found = load_features(config, place, Asking("target", recipe=recipe), 0, "backbone", ["pairwise:cosine"], ROLES)
    return dict(zip(found.ids, found.values["pairwise:cosine"], strict=True)), shown.get()


@pytest.mark.slow
def test_slow_decoding_gets_tasks_of_its_own_after_a_trial(
    local_ray: None, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.extract.run.decoding.LONG", 10)
    monkeypatch.setattr("pipelines.extract.run.decoding.TRIAL", 2)
    auto, told = extracted(config_of(shards), tmp_path / "auto")
    assert "decoding in up to 14 tasks of its own: it took" in told  # of four CPUs, less .25 for the actor and a reader
    assert told.count("queries, ") == 2  # the trial and the rest
    fused, told = extracted(config_of(shards, decode="fused"), tmp_path / "fused")
    assert "decoding in" not in told
    assert list(auto) == list(fused)
    assert len(auto) == 48
    for name, values in fused.items():
        np.testing.assert_allclose(auto[name], values, atol=1e-5)


@pytest.mark.parametrize(
    ("cpus", "decode", "seconds", "tasks", "reason"),
    [
        (1.0, "auto", None, 0, "no CPU is left"),
        (8.0, "fused", None, 0, ""),
        (8.0, "apart", None, 7, "in up to 7 tasks"),
        (1.0, "apart", None, 1, "in up to 1 tasks"),
        (8.0, "auto", 9.0, 7, "it took 90% of their time, apart it would be 7.78 times as fast"),
        (8.0, "auto", 0.05, 0, "apart it would be 1.05 times as fast"),
    ],
)
def test_the_choice(cpus: float, decode: Any, seconds: float | None, tasks: int, reason: str) -> None:
    with console.capture() as shown:
        decoding = Decoding(ResourcesConfig(encoder_actors=1, decode=decode), cpus)
        if seconds is not None:
            assert decoding.tasks is None
            decoding.decide(Throughput(decode=seconds, augment=0.25, forward=0.5, features=0.2, commit=0.05), 1)
    assert decoding.tasks == tasks
    assert reason in " ".join(shown.get().split())
