"""The density of a bank through the stages: stored numbers are those of encoder and anchors, and are paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mi_core.encoders.batch_norm import for_queries
from mi_core.features.embedding import neighbour_density
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe
from pipelines.files import storage
from pipelines.plan.checks import build as checked
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from tests.pipelines import staged
from tests.pipelines.banks import bank_of_ten, stored_column, with_anchors

pytestmark = pytest.mark.ray

NEED = "neighbours:3/10"


def config(**attack: Any) -> dict[str, Any]:
    combined = {"attack": "combined", "reference": ["shadow", "audited"], "grid": "", "neighbours": "3/10"}
    return with_anchors(combined | attack)


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = staged.prepare(config(), trained_run, tmp_path_factory.mktemp("neighbours") / "run")
    return staged.judge(parse(config(), "x"), folder)


@pytest.mark.slow
def test_stored_densities_are_those_of_encoder_and_anchors(run: Path) -> None:
    chosen, place = parse(config(), "x"), RunFolder(str(run)).seed(0)
    splits = Splits.load(place.path)
    encoder = for_queries(describe(place, "target").load(3), "cpu")
    images, (kept, _) = load_images(chosen.data, splits, ["target-member"]), bank_of_ten(chosen, splits)
    stored = {output: stored_column(place, f"{output}.{NEED}") for output in ("backbone", "projection")}
    with torch.no_grad():
        bank, answers = (encoder(pixels.float() / 255) for pixels in (kept, torch.from_numpy(images.images)))
    read = {output: known for output, known in stored.items() if known}
    assert read
    for output, known in read.items():
        expected = neighbour_density(answers[output], bank[output], 3)
        np.testing.assert_allclose([known[name.partition("/")[2]] for name in images.ids], expected, rtol=1e-4)


@pytest.mark.slow
def test_the_bank_is_counted_once_per_encoder_beside_the_anchors_that_utility_is_tested_on(run: Path) -> None:
    report = storage.read_json(f"{run}/report.json")
    anchors = {one["encoder"]: one for one in report["queries"]["entries"] if one["role"] == "anchor"}
    checkpoints = {name: len(describe(RunFolder(str(run)).seed(0), name).epochs) for name in anchors}
    assert set(anchors) == {"target", "shadow"}
    expected = {name: (10 + 12) * count for name, count in checkpoints.items()}
    assert {name: one["queries"] for name, one in anchors.items()} == expected
    by_reference = {one["reference"]: one["queries"] for one in report["attacks"]}
    judged = report["attacks"][0]["auc"]["n"]
    each = by_reference["shadow"]["per_sample"]
    assert by_reference["shadow"]["evaluation"] == each * judged + 10
    assert by_reference["audited"] == {"per_sample": each, "attack_training": 0, "evaluation": each * judged + 10}


def refused(raw: dict[str, Any]) -> str:
    with pytest.raises(ValueError) as told:
        checked(raw)
    return str(told.value)


def test_what_cannot_have_a_bank_is_refused() -> None:
    assert "asks for 13 samples of anchor, which has 12" in refused(config(neighbours="3/13"))
    assert "neighbours = 13, allowed: [1, 10]" in refused(config(neighbours="13/10"))
    raw = config()
    del raw["data"]["roles"]["anchor"]
    assert "needs the role 'anchor'" in refused(raw)
    for source, trained in (("shadow-member", "target-member"), ("noise", "anchor")):
        raw = config()
        raw["data"]["roles"]["anchor"]["from"] = source
        raw["encoders"]["target"]["train_on"] = list(dict.fromkeys(["target-member", trained]))
        assert "data.roles.anchor shares images with" in refused(raw)
    raw = config(reference="audited")
    raw["encoders"] = {"target": {"endpoint": {"url": "http://127.0.0.1:9/embed"}}}
    assert "10 images of anchor, and target is behind an API, where each costs; leave neighbours out" in refused(raw)
    raw["attacks"][0]["neighbours"], raw["queries"]["outputs"] = "", ["backbone"]
    checked(raw)
