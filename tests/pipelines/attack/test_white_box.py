"""White-box attacks through the stages: the stored numbers are those of the encoder, the bank and the views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.clip import TextTower
from mi_core.features.loss_gradient import CaptionGradient, ViewsGradient
from mi_core.querying.gradients import BankKeys, losses_and_gradients
from pipelines.audit import run as audit
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import plans_of
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.extract import bank
from pipelines.extract import run as extract
from pipelines.files import storage
from pipelines.plan.checks import build as checked
from pipelines.plan.load import parse
from pipelines.plan.rules.controls import passed_over, references_of
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run
from tests.pipelines import staged
from tests.pipelines.banks import bank_of_ten, query_views, stored_column, with_anchors

pytestmark = pytest.mark.ray

SMALL = {"attack": "white-box", "gradient_views": 2, "bank": 10, "layers": 3}
MEASURE = ViewsGradient(temperature=0.5, views=2, bank=10, layers=3)
PAIRS = {"loss": "clip", "temperature": 0.5, "outputs": ["projection"], "reference": "known"}


def config(**attack: Any) -> dict[str, Any]:
    return with_anchors(SMALL | attack, {"attack": "lpla", "reference": "known"})


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = staged.prepare(config(), trained_run, tmp_path_factory.mktemp("white-box") / "run")
    return staged.judge(parse(config(), "x"), folder)


def test_stored_numbers_are_those_of_encoder_bank_and_views(run: Path) -> None:
    chosen, place = parse(config(), "x"), RunFolder(str(run)).seed(0)
    splits = Splits.load(place.path)
    rows = stored_column(place, f"projection.{MEASURE}")
    assert len(rows) == 120
    stored = describe(place, "target")
    encoder = for_queries(stored.load(3), "cpu")
    images, anchors = load_images(chosen.data, splits, ["target-member"]), bank_of_ten(chosen, splits)
    with torch.no_grad():
        keys = BankKeys(encoder(query_views(stored, anchors[0], 1)[:, 0])["projection"])
    names = images.ids[:7]
    found = losses_and_gradients(
        encoder, "projection", query_views(stored, torch.from_numpy(images.images[:7]), 2), keys, MEASURE
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
    before = storage.list_files(f"{run}/features")
    runs = [Run(chosen, folder)]
    extract.run(runs, plans_of(runs), lambda *_: pytest.fail("no rule is fitted"))
    assert before
    assert storage.list_files(f"{run}/features") == before
    splits = Splits.load(folder.seed(0).path)
    with pytest.raises(UserError, match=r"data\.roles\.anchor has 12 images, .* compares samples with 13; add some"):
        bank._write(f"{run}/other.npz", chosen.data, splits, "anchor", 13, 0)


@pytest.mark.slow
def test_pairs_through_the_stages_hold_the_norms_of_the_image_tower(local_ray: None, tmp_path: Path) -> None:
    raw = config(**PAIRS)
    raw["data"]["roles"]["anchor"]["from"] = "digits"  # noise has no class to be captioned by
    raw["data"]["captions"] = {digit: {"name": str(digit), "attributes": ["thin", "bold"]} for digit in range(10)}
    sizes = {"projection_width": 16, "text_width": 16, "text_layers": 1, "text_heads": 2}
    clip = {"objective": "clip", "parameters": sizes, "checkpoints": []}
    raw["encoders"] = {"target": raw["encoders"]["target"] | clip}
    raw["attacks"] = raw["attacks"][:1]
    chosen, place = parse(raw, "x"), RunFolder(str(tmp_path / "run")).seed(0)
    audit.run(chosen, str(tmp_path / "run"))
    measure = CaptionGradient(temperature=0.5, views=2, bank=10, layers=3)
    rows, splits = stored_column(place, f"projection.{measure}"), Splits.load(place.path)
    stored = describe(place, "target")
    encoder = for_queries(stored.load(3), "cpu")
    images, anchors = load_images(chosen.data, splits, ["target-member"]), load_images(chosen.data, splits, ["anchor"])
    bank, names = bank_of_ten(chosen, splits), images.ids[:7]
    caption_of = dict(zip(anchors.ids, anchors.captions, strict=True))
    assert isinstance(encoder.text, TextTower)
    with torch.no_grad():
        texts = encoder.text([caption_of[name] for name in bank[1]])
        keys = BankKeys(encoder(query_views(stored, bank[0], 1)[:, 0])["projection"], texts)
    shown = query_views(stored, torch.from_numpy(images.images[:7]), 2)
    found = losses_and_gradients(
        encoder, "projection", shown, keys, measure, encoder.text(images.captions[:7]).detach()
    )
    assert found.shape == (7, 1 + 3)
    np.testing.assert_allclose(found, [rows[name.partition("/")[2]] for name in names], rtol=1e-3)
    (entry,) = storage.read_json(f"{tmp_path}/run/report.json")["attacks"]
    assert (entry["attack"], entry["auc"]["n"], entry["queries"]["per_sample"]) == ("white-box", 96, 2)


def test_dino_is_read_by_its_own_loss_and_mae_by_that_of_its_views(local_ray: None, tmp_path: Path) -> None:
    raw = config()
    trained = raw["encoders"]["target"] | {"checkpoints": []}
    small = {"projection_hidden": 16, "projection_width": 8, "prototypes": 12}
    decoder = {"decoder_width": 16, "decoder_layers": 1, "decoder_heads": 2}
    views = {"crop_scale": [0.75, 1.0]}
    raw["encoders"] = {
        "target": trained
        | {"objective": "mae", "backbone": "vit-tiny/2", "parameters": decoder, "augmentation": views},
        "dino": trained | {"objective": "dino", "parameters": small, "augmentation": views},
        "plain": {"load": "checkpoint:conv4", "fresh": True},
    }
    own = SMALL | {"reference": "known"}
    raw["attacks"] = [
        own | {"outputs": ["backbone"]},
        own | {"target": "dino", "loss": "dino", "outputs": ["prototypes"], "keys": "momentum"},
    ]
    raw["validity"] = {"references": ["plain"]}
    raw["queries"] = {"outputs": ["backbone"]}
    (tmp_path / "out").mkdir()
    raw["report"] = {"after": f"cp --target-directory={tmp_path / 'out'}", "trust_code": True}
    audit.run(parse(raw, "x"), str(tmp_path / "run"))
    entries = storage.read_json(f"{tmp_path}/out/report.json")["attacks"]  # handed over at the end
    assert [(entry["target"], entry["output"], entry["auc"]["n"]) for entry in entries] == [
        ("target", "backbone", 96),
        ("dino", "prototypes", 96),
    ]


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


def test_a_reference_that_is_not_named_gives_gradients() -> None:
    raw = config(reference="known")
    target, shadow = raw["encoders"]["target"], raw["encoders"]["shadow"]
    guarded = {"defends": "shadow", "defense": "output-noise", "settings": {"scale": 0.1}}
    raw["encoders"] = {"target": target, "guarded": guarded, "shadow": shadow}
    chosen = checked(raw)
    white, lpla = chosen.attacks
    assert references_of(chosen, white) == ("shadow",)
    assert passed_over(chosen, white) == ("guarded", "is behind output-noise, which changes answers and not weights")
    assert (references_of(chosen, lpla), passed_over(chosen, lpla)) == (("guarded",), None)
