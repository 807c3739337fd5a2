"""White-box attacks through the stages: the stored numbers are those of the encoder, the bank and the views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mi_core.augmentations import AUGMENTATIONS
from mi_core.augmentations.views import make_views
from mi_core.encoders.folding import for_queries
from mi_core.features.loss_gradient import GradientSetting
from mi_core.querying.gradients import BankKeys, losses_and_gradients
from mi_core.streams import stream_keys
from pipelines.audit import run as audit
from pipelines.config.checks import build as checked
from pipelines.config.load import parse
from pipelines.config.parameters import build
from pipelines.data.images import load_images
from pipelines.data.splits import Splits
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.extract import bank
from pipelines.extract import run as extract
from pipelines.files import storage
from pipelines.run.folder import RunFolder
from tests.conftest import small_config

SMALL = {"attack": "white-box", "gradient_views": 2, "bank": 10, "layers": 3}
SETTING = GradientSetting(temperature=0.5, views=2, bank=10, layers=3)


def config(**attack: Any) -> dict[str, Any]:
    raw = small_config(attacks=[SMALL | attack, {"attack": "lpla", "reference": "known"}])
    raw["data"]["roles"]["anchor"] = {"from": "digits", "count": 12}
    return raw


@pytest.fixture(scope="module")
def run(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("white-box") / "run"
    audit.run(parse(config(), "x"), str(folder))
    return folder


def test_stored_numbers_are_those_of_encoder_bank_and_views(run: Path) -> None:
    chosen, place = parse(config(), "x"), RunFolder(str(run)).seed(0)
    splits = Splits.load(place.path)
    paths = storage.list_files(f"{place.path}/features/target")
    tables = [storage.read_table(path) for path in paths if "0003" in path and path.endswith(".parquet")]
    rows = {
        key: value
        for table in tables
        if f"projection.gradient:{SETTING}" in table.column_names
        for key, value in zip(
            table["key"].to_pylist(), table[f"projection.gradient:{SETTING}"].to_pylist(), strict=True
        )
    }
    assert len(rows) == 120
    stored = describe(place, "target")
    encoder = for_queries(stored.load(3), "cpu")
    recipe = build(AUGMENTATIONS["simclr"], stored.record.config["augmentation"])
    anchors, images = (load_images(chosen.data, splits, [role]) for role in ("anchor", "target-member"))
    first = splits.first(["anchor"], 10, 0)
    place_of = {name: row for row, name in enumerate(anchors.ids)}
    kept = torch.from_numpy(anchors.images[[place_of[name] for name in first]])

    def views(pixels: torch.Tensor, names: list[str], count: int) -> torch.Tensor:
        keys = [name.partition("/")[2] for name in names]
        return make_views(pixels, stream_keys(0, "query", "digits", keys), recipe, views=count)

    with torch.no_grad():
        keys = BankKeys(encoder(views(kept, first, 1)[:, 0])["projection"])
    names = images.ids[:7]
    found = losses_and_gradients(
        encoder, "projection", views(torch.from_numpy(images.images[:7]), names, 2), keys, SETTING
    )
    expected = [rows[name.partition("/")[2]] for name in names]
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_it_is_judged_like_any_attack(run: Path) -> None:
    entry = storage.read_json(f"{run}/report.json")["attacks"][0]
    assert (entry["attack"], entry["auc"]["n"]) == ("white-box", 120)
    assert entry["queries"]["per_sample"] == 2
    assert "white-box" in (run / "report.html").read_text()


def test_a_resumed_run_asks_nothing_and_too_few_anchors_are_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, folder = parse(config(), "x"), RunFolder(str(run))
    before = storage.list_files(f"{run}/seed-0/features")
    extract.run([audit.Run(chosen, folder)], lambda *_: pytest.fail("no rule is fitted"))
    assert storage.list_files(f"{run}/seed-0/features") == before
    splits = Splits.load(folder.seed(0).path)
    with pytest.raises(UserError, match=r"data\.roles\.anchor has 12 images, .* compares samples with 13; add some"):
        bank._write(f"{run}/other.npz", chosen, splits, "anchor", 13, 0)


def refused(raw: dict[str, Any]) -> str:
    with pytest.raises(ValueError) as told:
        checked(raw)
    return str(told.value)


def test_encoders_without_gradients_are_refused() -> None:
    raw = config()
    del raw["data"]["roles"]["anchor"]
    assert "needs the role 'anchor'" in refused(raw)
    raw = config(reference="known")
    raw["encoders"] = {"target": {"endpoint": {"url": "http://127.0.0.1:9/embed"}}}
    assert "takes gradients of the weights of target, which is behind an API" in refused(raw)
    raw = config(reference="known")
    raw["encoders"] = {"target": {"load": "python:module:function", "trust_code": True}}
    assert "which is code" in refused(raw)
    raw = config() | {"defenses": [{"defense": "output-noise", "settings": {"scale": 0.1}}]}
    assert "is behind output-noise, which changes answers and not weights; leave the attack out" in refused(raw)
    raw["defenses"][0]["without"] = ["white-box"]
    checked(raw)
    raw = config()
    raw["queries"]["repeats"] = 2
    assert "queries.repeats = 2, but white-box takes gradients" in refused(raw)
    assert "asks for 13 samples of anchor, which has 12" in refused(config(bank=13))
