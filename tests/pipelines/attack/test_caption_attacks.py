"""Attacks on image-text pairs, for real: captions out of shards, through Ray, to a CLIP trained on them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mi_core.captions import templated_caption
from mi_core.features.caption_similarity import CaptionEmbedding, CaptionSimilarity
from mi_core.features.embedding import Embedding
from pipelines.audit import run as audit
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from tests.conftest import small_config
from tests.pipelines import staged
from tests.pipelines.columns import columns
from tests.pipelines.tars import image_bytes, tar_bytes

pytestmark = pytest.mark.ray


def config(folder: Path, *, captions: bool = True) -> dict[str, object]:
    """Four shards of 40 images; half of them bring a caption, the others have a class with words."""
    for shard in range(4):
        members = []
        for seed in range(40 * shard, 40 * shard + 40):
            members += [(f"s{seed:04d}.png", image_bytes(seed)), (f"s{seed:04d}.cls", b"%d" % (seed % 2))]
            if seed % 2:
                members.append((f"s{seed:04d}.txt", f"picture number {seed}".encode()))
        (folder / f"{shard}.tar").write_bytes(tar_bytes(members))
    roles = ("target-member", "target-nonmember", "known-nonmember", "shadow-member")
    raw = small_config()
    raw["data"] = {
        "sources": {"pool": {"kind": "shards", "path": str(folder)}},
        "image_size": 8,
        "roles": {role: {"from": "pool", "count": 40} for role in roles},
    }
    if captions:
        raw["data"]["captions"] = {0: {"name": "thing", "attributes": ["red", "green", "blue"]}}
    raw["encoders"] = {
        "target": {
            "objective": "clip",
            "backbone": "conv4",
            "train_on": "target-member",
            "epochs": 40,
            "batch_size": 20,
            "parameters": {"projection_width": 16, "text_width": 16, "text_layers": 1, "text_heads": 2},
            "optimizer": {"learning_rate": 0.01},
        }
    }
    raw["attacks"] = [
        {"attack": "clip-cosine", "reference": "nonmembers"},
        {"attack": "clip-loss", "reference": "nonmembers"},
    ]
    raw["queries"] = {"chunk": 16}
    raw["utility"] = {"k": 5}
    return raw


@pytest.mark.slow
def test_pairs_from_shards_to_scores(local_ray: None, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    chosen = parse(config(tmp_path / "shards"), "clip.yaml")
    run = tmp_path / "run"
    audit.run(chosen, str(run))
    place = RunFolder(str(run)).seed(0)
    roles = ("target-member", "target-nonmember")
    needs = [CaptionSimilarity(), CaptionEmbedding(), Embedding()]
    found = columns(chosen, place, "target", 40, "projection", needs, roles)
    loaded = load_images(chosen.data, Splits.load(place.path), roles)
    assert list(found.ids) == loaded.ids
    encoder = describe(place, "target").load(40)
    with torch.inference_mode():
        texts = encoder.text(loaded.captions)
        images = encoder(torch.from_numpy(loaded.images).float() / 255)["projection"]
    np.testing.assert_allclose(found.values["caption:embedding"], texts, atol=1e-4)
    cosines = torch.cosine_similarity(images, texts, dim=1)
    np.testing.assert_allclose(found.values["caption:cosine"], cosines, atol=1e-4)
    own = dict(zip(loaded.ids, loaded.captions, strict=True))
    assert own[next(name for name in own if int(name[-4:]) % 2)].startswith("picture number")
    made = next(name for name in own if int(name[-4:]) % 2 == 0)
    assert own[made] == templated_caption(chosen.data.captions[0].words(), "pool", made[-5:])
    report = json.loads((run / "report.json").read_text())
    by_attack = {entry["attack"]: entry for entry in report["attacks"]}
    assert set(by_attack) == {"clip-cosine", "clip-loss"}
    assert by_attack["clip-cosine"]["auc"]["value"] > 0.7  # it was trained on these pairs for 40 epochs
    assert by_attack["clip-loss"]["auc"]["value"] > 0.7
    assert all(entry["queries"]["per_sample"] == 1 for entry in by_attack.values())
    assert {entry["output"] for entry in report["attacks"]} == {"projection"}


def test_an_encoder_without_a_text_tower_is_told(trained_run: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(trained_run, folder)
    raw = small_config(attacks=[{"attack": "clip-cosine", "reference": "nonmembers", "fpr": 0.1}])
    with pytest.raises(UserError, match="has no text tower, which an attack on captions needs"):
        staged.query(parse(raw, "small.yaml"), folder)
