"""One call: what it refuses, what it leaves as it was, and what it shows."""

from __future__ import annotations

import io
import json
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from rich.console import Console
from sklearn.datasets import load_digits
from torch import nn

from mi_core import audit
from mi_core.attacks.base import Attack, State
from mi_core.auditing import attacks, config_text, judging
from mi_core.auditing.asking import Bar
from mi_core.auditing.found import Found
from mi_core.auditing.images import Picture, items_of
from mi_core.auditing.reading import CANDIDATES, CONTROLS, read
from mi_core.checks import ConfigError
from mi_core.features import Measure
from mi_core.features.embedding import Embedding
from mi_core.images import Decoder, decode, encode_png
from mi_core.records import Features
from mi_core.report.contents import schema, to_json
from mi_core.report.model.judgement import SampleAnswers, TopSample
from mi_core.validity.file_features import shrunken
from tests.endpoints import serving
from tests.raising import refused


@dataclass(frozen=True)
class FirstNumberParameters:
    sign: int = 1


SIDE = 8
IMAGES = np.random.default_rng(0).integers(0, 256, (260, SIDE, SIDE, 3), dtype=np.uint8)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 16))


class Scrambled(nn.Module):
    """A network whose first number no other classifier can tell from the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first = torch.sin(1e3 * images.sum(dim=(1, 2, 3)))
        return torch.cat([first[:, None], self.network(images)[:, 1:]], dim=1)


def found_in(candidates: Any = IMAGES[:100], controls: Any = IMAGES[100:], **settings: Any) -> Found:
    settings = {"quick": "references" not in settings, "nonce": "7", "progress": False} | settings
    return audit(settings.pop("model", None) or network(), candidates, controls, **{"size": SIDE} | settings)


def test_an_untrained_network_leaks_nothing_and_stays_as_it_was(tmp_path: Path) -> None:
    model = network().train()
    model[1].eval()  # type: ignore[index]
    before = {name: one.clone() for name, one in model.state_dict().items()}
    found = found_in(model=model)
    assert found.validity.judgement == ("undecided", "encoder-broken")
    assert found.flagged() == [] and len(found.table) == 100
    assert 0.3 < found.auc < 0.7 and found.auc_interval[0] < 0.5 < found.auc_interval[1]
    assert (found.p_value, found.share_used, found.flagged()) == (None, None, [])  # no number reads as a leak
    assert [part.training for part in model.modules()] == [True, True, False, True, True, True]
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    found.save(tmp_path / "report.json")
    jsonschema.Draft202012Validator(schema()).validate(json.loads((tmp_path / "report.json").read_text()))
    found.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert found.answer in page and "<script" not in page
    refused(ConfigError, r"suffix of the file = '\.pdf', allowed: \.html, \.json", found.save, "report.pdf")


def test_the_same_again_and_another_seed() -> None:
    first, again, other = found_in(), found_in(), found_in(seed=1)
    assert first.auc == again.auc and first.p_value == again.p_value
    assert first.table == again.table
    assert first.auc != other.auc
    assert first.auc != found_in(nonce="8").auc


def test_a_nonce_is_drawn_anew_and_written_down() -> None:
    first, second = found_in(nonce=None), found_in(nonce=None)
    drawn = [yaml.safe_load(one.config())["queries"]["nonce"] for one in (first, second)]
    assert drawn[0] != drawn[1] and all(len(one) == 32 for one in drawn)
    assert found_in(nonce=drawn[0]).table == first.table
    assert first.report["registration"]["nonce"] == {"from": "operating system", "value": drawn[0]}
    assert found_in().report["registration"]["nonce"] == {"from": "given", "value": "7"}


def test_names_and_order_change_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names the files chooses neither views, nor halves, nor which controls fix the threshold."""
    monkeypatch.setattr(config_text, "EPOCHS", 4)
    rng = np.random.default_rng(5)
    folders, names = [], []
    for turn in range(2):
        names.append([f"{number:04d}" for number in rng.permutation(9999)[: len(IMAGES)]])
        folders.append(tmp_path / str(turn))
        for row, (name, pixels) in enumerate(zip(names[turn], IMAGES, strict=True)):
            place = folders[turn] / ("candidates" if row < 100 else "controls") / ("a" if row % 7 < 3 + turn else "b")
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{name}.png").write_bytes(encode_png(pixels))
    found = [
        audit(network(), one / "candidates", one / "controls", size=SIDE, nonce="7", progress=False) for one in folders
    ]
    scores = []
    for one, own in zip(found, names, strict=True):
        by_name = {row["key"].rpartition("/")[2].removesuffix(".png"): row["score"] for row in one.table}
        scores.append([by_name[name] for name in own[:100]])
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    for one in found:  # the AUC of the verdict, below a limit that is closer than its interval
        (bounds,) = one.report["bounds"]
        assert one.auc == bounds["limits"][0]["auc"] < bounds["at_most"] < one.auc_interval[1]
    for name in ("attack_auc", "blind_auc", "control_auc", "semantic_auc"):
        first, second = (getattr(one.validity, name) for one in found)
        assert first.value == pytest.approx(second.value, abs=1e-4), name


def test_the_config_flags_at_the_same_rate() -> None:
    assert yaml.safe_load(found_in(fdr=0.2).config())["validity"] == {"fdr": 0.2, "factor": 2.0}
    assert yaml.safe_load(found_in(factor=3).config())["validity"]["factor"] == 3


def other_network(scale: float = 1.0) -> nn.Module:
    torch.manual_seed(1)
    made = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 32))
    made[1].weight.data *= scale
    return made


def test_an_encoder_that_is_noisy_is_said_to_be() -> None:
    model = network().eval()
    found = found_in(model=lambda images: nn.functional.dropout(model(images), 0.3, training=True))
    (said,) = (line for line in found.lines if "gives a different answer again" in line)
    assert (
        said in found.report["caveats"]
        and "gives a different answer again" in found.report["encoders"]["target"]["answers"]
    )
    jsonschema.Draft202012Validator(schema()).validate(json.loads(to_json(found.report)))
    assert not any("answer again" in line for line in found_in(model=lambda images: model(images) + 0).lines)


def test_a_result_is_the_same_after_pickling() -> None:
    model = network().eval()
    found = found_in(model=lambda images: model(images) + 0)
    again = pickle.loads(pickle.dumps(found))
    assert again.table == found.table and repr(again) == repr(found) and again.config() == found.config()
    assert again.report == found.report and again.html == found.html


def test_references_that_the_user_has_are_asked_and_tried_out() -> None:
    found = found_in(references=[other_network(), other_network(100.0)])
    asked = {
        row["encoder"]: row["queries"] for row in found.report["queries"]["entries"] if row["role"] == "candidates"
    }
    assert asked == {"target": 1000, "reference-0": 1100, "reference-1": 1100}
    assert found.validity.control_auc is not None and found.validity.semantic_auc is not None
    assert not found.validity.trained  # random weights are no trained encoder
    assert found.report["encoders"]["reference-1"]["load"] == "the Python network Sequential"
    assert yaml.safe_load(found.config())["validity"]["references"] == ["reference-0", "reference-1"]
    alone = found_in(references=[other_network()])
    assert alone.validity.control_auc.value == pytest.approx(found.validity.control_auc.value, abs=0.01)
    quick = found_in()
    assert quick.validity.control_auc is None and "references" not in yaml.safe_load(quick.config())["validity"]


class FirstNumber(Attack):
    """An attack of the user's own, which reads embeddings alone."""

    name = "first-number"
    threat_model = "an embedding"
    source = "this test"
    reference = frozenset({"nonmembers"})
    Parameters = FirstNumberParameters

    @property
    def needs(self) -> tuple[Measure, ...]:
        return (Embedding(),)

    def _fit(self, features: Features, member: Any) -> State:
        return {"threshold": np.array(np.quantile(self._score(features, {}), 0.9))}

    def _score(self, features: Features, state: State) -> Any:
        return self.parameters.sign * features[Embedding()][:, 0].astype(np.float64)


def test_further_attacks_stand_beside_the_verdict_and_change_nothing_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(config_text, "EPOCHS", 2)
    alone = found_in(quick=False)
    own = FirstNumber(FirstNumberParameters(-1))
    found = found_in(quick=False, attacks=["lira", {"attack": "combined", "penalty": 5.0}, FirstNumber], seed=0)
    assert (found.validity, found.table) == (alone.validity, alone.table)
    rows = {row["attack"]: row for row in found.report["attacks"]}
    assert list(rows) == ["mean-cosine", "lira", "combined", "first-number"]
    assert [row["reference"] for row in rows.values()] == ["nonmembers", "shadows", "audited", "nonmembers"]
    assert [row.get("primary", False) for row in rows.values()] == [True, False, False, False]
    jsonschema.Draft202012Validator(schema()).validate(json.loads(to_json(found._report)))
    assert {"combined", "first-number"} <= {one["attack"] for one in found.report["bounds"][0]["limits"]}
    assert any(line.startswith("first-number, fitted on known non-members: AUC") for line in found.lines)
    assert sum(-(-len(line) // 80) for line in str(found).splitlines()) <= 24  # one screen
    listed = yaml.safe_load(found.config())["attacks"]
    assert listed[2] == {"attack": "combined", "target": "target", "reference": "audited", "penalty": 5.0}
    assert listed[1]["reference"] == "reference"
    assert listed[3]["attack"] == f"python:{__name__}:FirstNumber" and listed[3]["trust_code"] is True
    assert yaml.safe_load(found.config())["queries"]["augmentation"] == {}  # the target's recipe, for LiRA too
    with pytest.raises(ConfigError, match="lira is fitted on shadows, .*; those trained here are simclr's, the target"):
        found_in(quick=False, attacks=["lira"], objective="byol")
    turned = found_in(attacks=[own])
    assert turned.report["attacks"][1]["auc"]["value"] == pytest.approx(1 - rows["first-number"]["auc"]["value"])
    assert yaml.safe_load(turned.config())["attacks"][1]["sign"] == -1
    found.save(tmp_path / "report.html")
    assert "first-number" in (tmp_path / "report.html").read_text()


def test_scores_of_an_own_attack_are_those_of_the_judged_images() -> None:
    """Asked once more, image by image: the AUC is that of the first numbers of the embeddings."""
    found = found_in(attacks=[FirstNumber])
    model = network().eval()
    with torch.no_grad():
        numbers = model(torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float() / 255)[:, 0].numpy()
    judged = [int(key) for key in found._keys]
    samples = read({CANDIDATES: items_of(IMAGES[:100], ""), CONTROLS: items_of(IMAGES[100:], "")}, Decoder(SIDE), 0)
    known = samples.known(0)
    place = np.where(samples.candidate, 0, 100) + np.array([int(item.key) for item in samples.items])
    inside, outside = numbers[place[samples.candidate]], numbers[place[~samples.candidate & ~known]]
    wins = (inside[:, None] > outside).mean() + 0.5 * (inside[:, None] == outside).mean()
    assert len(judged) == len(place)
    assert found.report["attacks"][1]["auc"]["value"] == pytest.approx(wins, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("lira", r"attacks = 'lira'; give a list, such as \['lira'\]"),
        (["lpla"], "lpla is fitted on known or shadow, which this audit does not have; run it from a config"),
        (["lira"], "lira is fitted on shadows, which this audit does not have; leave quick out"),
        (["clip-loss"], "clip-loss reads projection, not backbone|clip-loss reads captions"),
        (["nope"], "attacks = 'nope', allowed: baseline-a"),
        ([3], "attacks: 3 is no attack; give a name, a class of Attack, or a dictionary"),
        (["combined", "combined"], "attacks: combined stands twice"),
        (["mean-cosine"], "attacks: mean-cosine stands twice, or is that of the verdict"),
        ([{"attack": "combined", "penalti": 1}], "attacks: parameter of combined = 'penalti', allowed: caption"),
        ([{"attack": "combined", "reference": "known"}], "reference of combined = 'known', allowed: audited"),
        ([{"attack": "combined", "penalty": -1}], "penalty = -1"),
    ],
)
def test_attacks_that_cannot_run_here_are_named(given: Any, message: str) -> None:
    refused(ConfigError, message, found_in, attacks=given)


def test_an_encoder_of_grey_images_is_asked_about_grey_images() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 16))
    found = found_in(IMAGES[:100, ..., 0], IMAGES[100:, ..., 0], model=model, channels=1)
    assert yaml.safe_load(found.config())["data"]["channels"] == 1
    assert len(found.table) == 100
    refused(ConfigError, "channels = 2, allowed: 1 or 3", found_in, channels=2)


def test_what_was_lost_or_left_out_is_printed_and_counted() -> None:
    pictures = [encode_png(one) for one in IMAGES]
    found = found_in([*pictures[:100], b"\x89PNG\r\n\x1a\n broken", pictures[0]], pictures[100:], max_rejected=0.02)
    text, report = str(found), found.report
    assert "Images that cannot be used: 1; first candidates/100: " in text
    assert "Images left out as copies or near-copies of others: 1." in text
    assert all(caveat in text for caveat in report["caveats"])
    assert (report["data"]["roles"]["candidate"]["n"], report["data"]["duplicates_removed"]) == (100, 1)
    assert [bad["key"] for bad in report["rejected"]] == ["100"] and report["rejected_count"] == 1
    assert report["rejected_total"] == {"samples": 1, "shards": 0, "estimated": False}
    assert yaml.safe_load(found.config())["data"]["max_rejected"] == 0.02
    assert "lpla" in report["not_tested"][0] and "metric-loss" not in report["not_tested"][0]
    assert "metric-loss" in " ".join(report["not_applying"])


def test_an_encoder_that_does_not_work_is_told_before_groups_that_differ() -> None:
    """The user is not sent for other controls, and reads the warning first."""
    found = found_in(IMAGES[:100], IMAGES[100:] // 3)
    assert found.validity.differing and found.validity.judgement == ("undecided", "encoder-broken")
    first, second, *_ = str(found).splitlines()
    assert first == "undecided: No answer: with these views the encoder does not recognise images."
    assert second.startswith("WARNING. The encoder target: this encoder recognises images no better than")
    for shown in (str(found), found.html):
        assert "differ by themselves" not in shown and "Choose control" not in shown


def test_another_planned_attack_that_finds_something_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are chosen by the first number of their embeddings, which the attack of the verdict does not see."""
    monkeypatch.setattr(judging, "fault_in_words", lambda _: "")
    model = Scrambled().eval()
    with torch.inference_mode():
        order = np.argsort(-model(torch.from_numpy(IMAGES).permute(0, 3, 1, 2) / 255)[:, 0].numpy())
    images = IMAGES[order[:100]], IMAGES[order[160:]]
    assert found_in(*images, model=model).validity.judgement == ("no-evidence", "nothing-found")
    found = found_in(*images, model=model, attacks=[FirstNumber])
    assert found.validity.judgement == ("undecided", "another-attack")
    assert found.validity.other_attack == "first-number, fitted on nonmembers, on the backbone output"
    assert found.answer.endswith("but first-number, fitted on nonmembers, on the backbone output found something.")
    assert found.p_value is None and found.flagged() == []
    jsonschema.Draft202012Validator(schema()).validate(json.loads(to_json(found._report)))


def test_groups_that_differ_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Darker controls: the blind classifier tells them apart, so that nothing is flagged and there is no p-value."""
    with monkeypatch.context() as patched:
        patched.setattr(judging, "fault_in_words", lambda _: "")
        found = found_in(IMAGES[:100], IMAGES[100:] // 3)
    assert found.verdict == "confounded"
    assert "AUC" not in str(found).splitlines()[0] and str(found).splitlines()[-1].startswith("AUC 0.")
    assert found.p_value is None and found.share_used is None and found.flagged(0.5) == []
    assert set(found.table[0]) == {"key", "score"}


def test_only_what_the_classifiers_see_is_kept_and_it_is_what_they_saw_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against all images, decoded and shrunk one by one, and the answers for all, of which rows are taken."""
    given: dict[str, list[Any]] = {}
    for name in ("blind_scores", "semantic_scores"):
        real = getattr(attacks, name)

        def recorded(*arguments: Any, name: str = name, real: Any = real, **settings: Any) -> Any:
            given.setdefault(name, []).append(arguments)
            return real(*arguments, **settings)

        monkeypatch.setattr(attacks, name, recorded)
    monkeypatch.setattr("mi_core.auditing.audit.CLASSIFIED", 60)
    references = [network(1), network(2)]
    found_in(references=references)
    monkeypatch.setattr("mi_core.auditing.audit.CLASSIFIED", len(IMAGES))
    found_in(references=references)
    (summaries, pixels, member), (all_summaries, all_pixels, all_member) = given["blind_scores"]
    samples = read({CANDIDATES: items_of(IMAGES[:100], ""), CONTROLS: items_of(IMAGES[100:], "")}, Decoder(SIDE), 0)
    seen = np.isin(np.arange(len(samples.items)), samples.first(60, 0))
    one_by_one = np.stack([shrunken(decode(item.data(), Decoder(SIDE))) for item in samples.items])
    assert (len(pixels), len(all_pixels)) == (120, len(samples.items))
    np.testing.assert_array_equal(all_pixels, one_by_one)
    np.testing.assert_array_equal(pixels, one_by_one[seen])
    np.testing.assert_array_equal(summaries, all_summaries[seen])
    np.testing.assert_array_equal(member, all_member[seen])
    (embeddings, _, hashes), (all_embeddings, _, all_hashes) = given["semantic_scores"]
    assert embeddings.shape == (120, 32) and all_hashes == samples.hashes
    np.testing.assert_array_equal(embeddings, all_embeddings[seen])
    np.testing.assert_array_equal(hashes, np.array(all_hashes)[seen])


@pytest.mark.parametrize("notebook", [True, False])
def test_where_no_bar_can_be_shown_all_is_quiet(
    notebook: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    class ZMQInteractiveShell:
        """By this name rich knows a notebook."""

    if notebook:
        monkeypatch.setattr("builtins.get_ipython", ZMQInteractiveShell, raising=False)
        monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert Console().is_jupyter == notebook
    with Bar(True) as bar:
        tick = bar.begin("reading", 2)
        tick()
        tick()
    assert not recwarn.list
    assert tuple(capsys.readouterr()) == ("", "")


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Bar(True) as bar:
        bar.begin("reading", 2)()
    assert "reading" in capsys.readouterr().err


def test_what_a_notebook_shows_is_escaped(tmp_path: Path) -> None:
    found = found_in()
    shown = found._repr_html_()
    assert found.answer in shown and shown.count("<tr>") == 3
    assert found.verdict in repr(found) and f"{found.auc:.3f}" in repr(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"controls": IMAGES[99:]}, "candidates/99 and controls/000 have the same pixels"),
        ({"controls": IMAGES[100:130]}, r"30 controls are left, .* give at least 100 controls"),
        ({"candidates": IMAGES[:3]}, "3 candidates are left; give at least 5"),
        ({"candidates": [b"nothing"] * 9}, "no image of candidates can be used; 0: "),
        ({"objective": "swav"}, "objective = 'swav', allowed: barlow-twins, byol, clip"),
        ({"augmentation": {"zoom": 2}}, "augmentation = 'zoom', allowed: "),
        ({"output": "projection"}, "output = 'projection': model has backbone"),
        ({"views": 1}, "views = 1"),
        ({"fdr": 0}, "fdr = 0"),
        ({"max_rejected": 2}, "max_rejected = 2"),
        (
            {"candidates": [*IMAGES[:97], b"", b"", b""]},
            r"3 of 260 images cannot be used, more than max_rejected = 1\.00% allows: candidates/97: ",
        ),
        ({"fdr": 1}, r"fdr = 1, allowed: \(0, 1\)"),
        ({"factor": 0.5}, r"factor = 0\.5"),
        ({"references": ["checkpoint:conv4"], "quick": True}, "references are given with quick=True"),
        ({"references": "checkpoint:conv4"}, "references are no list of encoders"),
        ({"references": []}, "references are no list of encoders"),
        ({"candidates": IMAGES[:10], "controls": IMAGES[10:120], "quick": False}, "120 images are too few to train"),
    ],
)
def test_what_it_refuses(arguments: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, found_in, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size = 0, allowed: a whole number from 1 to 4096, or None"),
        ({"size": 8.0}, r"size = 8\.0, allowed: a whole"),
        ({"size": (8, 8)}, r"size = \(8, 8\), allowed: a whole"),
        ({"size": True}, "size = True"),
        ({"seed": None}, "seed = None, allowed: a whole number from 0"),
        ({"seed": -1}, "seed = -1, allowed"),
        ({"views": "10"}, "views = '10', allowed"),
        ({"fdr": "0.05"}, r"fdr = '0\.05', allowed: a number"),
        ({"max_rejected": None}, "max_rejected = None, allowed: a number"),
        ({"factor": [2]}, r"factor = \[2\], allowed: a number"),
        ({"mean": 0.5, "std": 0.5}, r"mean = 0\.5, allowed: 1 or 3 numbers; std = 0\.5"),
        ({"mean": "0.5", "std": (1,)}, r"mean = '0\.5', allowed"),
        ({"mean": (0.5,) * 4, "std": (1,)}, "allowed: 1 or 3 numbers"),
        ({"mean": (0.5,)}, "mean is given without std; give both"),
        ({"std": (0.5,)}, "std is given without mean"),
        ({"mean": [123.7, 116.3, 103.5], "std": [58.4, 57.1, 57.4]}, r"mean = .*pixels are in \[0, 1\].*; std = \[58"),
        ({"mean": (0.5,), "std": (0,)}, r"std = \[0\], allowed: above 0"),
        ({"augmentation": {"crop_scale": "0.4"}}, r"augmentation\.crop_scale = '0\.4', allowed: 2 numbers"),
        ({"augmentation": {"crop_scale": 0.4}}, r"augmentation\.crop_scale = 0\.4, allowed: 2 numbers"),
        ({"augmentation": {"flip": "yes"}}, r"augmentation\.flip = 'yes', allowed: a number"),
        ({"augmentation": {"interpolation": 3}}, r"augmentation\.interpolation = 3, allowed: a text"),
        ({"augmentation": [0.4, 1]}, r"augmentation = \[0\.4, 1\], allowed: a dictionary"),
        ({"endpoint": "openai"}, "endpoint = 'openai', allowed: a dictionary"),
        ({"nonce": 7}, "nonce = 7, allowed: a text"),
        ({"output": 1}, "output = 1, allowed: a text"),
        ({"weights": 3}, "weights = 3, allowed: a path"),
        ({"quick": "yes"}, "quick = 'yes', allowed: True or False"),
        ({"references": 3}, "references are no list of encoders"),
        ({"size": 0, "views": 1, "seed": None}, "size = 0.*; views = 1.*; seed = None"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named_before_anything_is_read(arguments: dict[str, Any], message: str) -> None:
    def unasked(images: torch.Tensor) -> torch.Tensor:
        raise AssertionError("it was asked")

    with pytest.raises(ConfigError, match=message):
        audit(unasked, Unread(), Unread(), **{"size": SIDE} | arguments)


class Unread:
    """A data set that nobody may read."""

    def __len__(self) -> int:
        raise AssertionError("it was read")

    __getitem__ = __len__


def test_an_encoder_behind_an_api_answers_like_the_network_itself() -> None:
    """Over a real connection, in PNG files of 8 bits."""
    model = network().eval()

    def embed(images: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            return {"backbone": model(images)}

    with serving(embed) as server:
        remote = found_in(model=f"{server.url}/json", views=3, endpoint={"batch": 128})
        asked = server.asked
    local = found_in(model=model, views=3)
    assert abs(remote.auc - local.auc) < 0.02  # a PNG rounds to 8 bits
    queries = remote.report["queries"]["entries"]
    assert asked == sum(one["queries"] for one in queries if one["encoder"] == "target")
    assert f"{server.url}/json" in remote.config()


def test_an_api_is_not_paid_for_an_audit_that_cannot_be_made() -> None:
    with serving(lambda images: {"backbone": images.mean(dim=(2, 3))}) as server:
        with pytest.raises(ConfigError, match="120 images are too few to train references on"):
            found_in(model=f"{server.url}/json", candidates=IMAGES[:10], controls=IMAGES[10:120], quick=False)
        assert server.asked == 0


def test_an_api_is_asked_twice_and_in_other_company() -> None:
    model = network().eval()

    def noisy(images: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            return {"backbone": nn.functional.dropout(model(images), 0.3, training=True)}

    def mixed(images: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            rows = model(images)
            return {"backbone": rows - rows.mean(dim=0)}

    with serving(noisy) as server:
        found = found_in(model=f"{server.url}/json", views=2, quick=True, endpoint={"batch": 128})
    assert any("gives a different answer again" in line for line in found.lines)
    with serving(mixed) as server, pytest.raises(ConfigError, match="depends on the other images of the batch"):
        found_in(model=f"{server.url}/json", views=2, quick=True, endpoint={"batch": 128})


def with_answers(found: Found, ids: Sequence[str]) -> Found:
    """The result, had it answers for some candidates."""
    top = tuple(TopSample(id=name, score=0.0, p_value=0.5, q_value=0.5, posterior=0.5) for name in ids)
    numbers = {"fdr": 0.05, "n_candidate": 9, "n_control": 9, "flagged": 0, "least_flags": 1, "share": 0.0}
    answers = SampleAnswers(seed=0, file="here", top=top, **numbers)  # type: ignore[arg-type]
    assert found._report.evidence is not None
    return replace(found, _report=replace(found._report, evidence=replace(found._report.evidence, samples=(answers,))))


def test_images_that_were_turned_are_counted_and_can_be_left_as_stored(tmp_path: Path) -> None:
    """A training that never turned images saw them as stored: the audit then has the scores of the stored pixels."""
    upright = Image.Exif()
    upright[0x112] = 6
    for side, images in (("a", IMAGES[:40]), ("b", IMAGES[100:])):
        (tmp_path / side).mkdir()
        for number, pixels in enumerate(images):
            Image.fromarray(pixels).save(tmp_path / side / f"{number:03d}.png", exif=upright)
    places = {"candidates": tmp_path / "a", "controls": tmp_path / "b"}
    turned = found_in(**places, nonce="n", quick=True)
    stored = found_in(**places, nonce="n", quick=True, decoding={"orientation": "stored"})
    plain = found_in(IMAGES[:40], nonce="n", quick=True)
    assert stored.auc == plain.auc != turned.auc
    caveat, _ = (one for one in turned.report["caveats"] if "turned" in one)
    assert caveat.startswith(
        "40 images of candidates were turned as EXIF data ask; if the training did not turn images"
    )
    assert not any("turned" in one for one in plain.report["caveats"])
    assert yaml.safe_load(stored.config())["data"]["orientation"] == "stored"
    assert "left as stored" in stored.html
    ids = ["candidates/000.png"]
    for found, right in ((stored, IMAGES[0]), (turned, np.rot90(IMAGES[0], -1))):
        shown = np.asarray(Image.open(io.BytesIO(with_answers(found, ids)._thumbnails()[ids[0]])))
        wanted = decode(encode_png(right), Decoder(48)).transpose(1, 2, 0)
        assert np.abs(shown.astype(int) - wanted).mean() < np.abs(shown.astype(int) - wanted[::-1]).mean() / 2
    refused(ConfigError, "orientation = 'upright'", found_in, decoding={"orientation": "upright"})
    refused(ConfigError, "decoding = 'size'", found_in, decoding={"size": 3})


def test_images_of_few_pixels_are_no_copies_of_each_other() -> None:
    """Hand-written digits look alike at 8 x 8 pixels, and every one is an image of its own."""
    digits = np.round(load_digits().images[:600] * (255 / 16)).astype(np.uint8)
    given = {side: items_of(part, side) for side, part in ((CANDIDATES, digits[:300]), (CONTROLS, digits[300:]))}
    samples = read(given, Decoder(40), 0)
    assert len(samples.items) + samples.copies == len(digits)
    assert samples.remarks[CANDIDATES]["smaller than 32 pixels a side, too small to tell near-copies"] == 300
    assert "smaller" not in str(read(given, Decoder(40), 0, near_duplicates=False).remarks)
    larger = {
        side: items_of(digits[rows].repeat(4, 1).repeat(4, 2), side)
        for side, rows in ((CANDIDATES, slice(9)), (CONTROLS, slice(9, 20)))
    }
    assert "smaller" not in str(read(larger, Decoder(40), 0).remarks)


def test_of_copies_the_same_one_stays_in_whatever_order_they_come() -> None:
    """As a run does: the one whose key has the lowest hash, not the one that is read first."""
    images = np.random.default_rng(2).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    files = {f"{number:02d}": images[number // 2] for number in range(80)}

    def kept_names(names: Sequence[str]) -> list[str]:
        items = {CANDIDATES: [Picture(name, partial(encode_png, files[name])) for name in names]}
        samples = read(items | {CONTROLS: items_of(images[:5, ::-1], CONTROLS)}, Decoder(32), 0)
        assert samples.copies == 40
        return [item.key for item in samples.items[: int(samples.candidate.sum())]]

    names = sorted(files)
    assert sorted(kept_names(names[::-1])) == kept_names(names)
    assert kept_names(names) != names[::2]


def test_near_copies_stay_where_the_user_says_so() -> None:
    """Every control has a brighter copy: by default one of the two is left out."""
    images = np.random.default_rng(1).integers(0, 200, (160, 8, 8, 3), dtype=np.uint8).repeat(5, 1).repeat(5, 2)
    small = nn.Sequential(nn.AvgPool2d(5), nn.Flatten(), nn.Linear(192, 16))
    controls = np.concatenate([images[40:], images[40:] + np.uint8(20)])
    alone = found_in(images[:40], controls, size=40, model=small)
    every = found_in(images[:40], controls, size=40, model=small, near_duplicates=False)
    assert alone.report["data"]["near_duplicates_removed"] == 120
    assert every.report["data"]["near_duplicates_removed"] == 0
    assert yaml.safe_load(alone.config())["data"]["near_duplicates"] == {}
    assert yaml.safe_load(every.config())["data"]["near_duplicates"] is None
