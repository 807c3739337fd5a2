"""One call: what it refuses, what it leaves as it was, and what it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import yaml
from torch import nn

from mi_core import audit
from mi_core.auditing.found import Found
from mi_core.checks import ConfigError
from mi_core.images import encode_png
from mi_core.report.contents import schema
from tests.endpoints import serving

SIDE = 8
IMAGES = np.random.default_rng(0).integers(0, 256, (260, SIDE, SIDE, 3), dtype=np.uint8)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 16))


def found_in(candidates: Any = IMAGES[:100], controls: Any = IMAGES[100:], **settings: Any) -> Found:
    return audit(settings.pop("model", None) or network(), candidates, controls, size=SIDE, progress=False, **settings)


def test_an_untrained_network_leaks_nothing_and_stays_as_it_was(tmp_path: Path) -> None:
    model = network().train()
    model[1].eval()  # type: ignore[index]
    before = {name: one.clone() for name, one in model.state_dict().items()}
    found = found_in(model=model)
    assert found.verdict in ("no-evidence", "undecided")
    assert found.flagged() == [] and len(found.table) == 100
    assert 0.3 < found.auc < 0.7 and found.auc_interval[0] < 0.5 < found.auc_interval[1]
    assert found.p_value is not None and found.p_value > 0.001
    assert [part.training for part in model.modules()] == [True, True, False, True, True, True]
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    found.save(tmp_path / "report.json")
    jsonschema.Draft202012Validator(schema()).validate(json.loads((tmp_path / "report.json").read_text()))
    found.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert found.answer in page and "<script" not in page
    with pytest.raises(ConfigError, match=r"suffix of the file = '\.pdf', allowed: \.html, \.json"):
        found.save("report.pdf")


def test_the_same_again_and_another_seed() -> None:
    first, again, other = found_in(), found_in(), found_in(seed=1)
    assert first.auc == again.auc and first.p_value == again.p_value
    assert first.table == again.table
    assert first.auc != other.auc


def test_the_config_flags_at_the_same_rate() -> None:
    assert yaml.safe_load(found_in(fdr=0.2).config())["validity"] == {"control": "fresh", "fdr": 0.2}


def test_all_forms_of_an_image_give_one_answer(tmp_path: Path) -> None:
    for row, pixels in enumerate(IMAGES):
        (tmp_path / f"{row:03d}.png").write_bytes(encode_png(pixels))
    files = sorted(tmp_path.glob("*.png"))
    by_key = {"array": IMAGES, "bytes": [one.read_bytes() for one in files]}
    aucs = {name: found_in(one[:100], one[100:]).auc for name, one in by_key.items()}
    assert len(set(aucs.values())) == 1, aucs


def test_groups_that_differ_prove_nothing() -> None:
    """Darker controls: the blind classifier tells them apart, so that nothing is flagged and there is no p-value."""
    found = found_in(IMAGES[:100], IMAGES[100:] // 3)
    assert found.verdict == "confounded"
    assert found.p_value is None and found.share_used is None and found.flagged(0.5) == []
    assert set(found.table[0]) == {"key", "score"}


def test_the_blind_classifier_sees_no_more_of_a_side_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three AUCs of the verdict are of the images that it saw; the flags are of all."""
    monkeypatch.setattr("mi_core.auditing.audit.BLIND", 60)
    found = found_in()
    assert found.validity.attack_auc.n == found.validity.blind_auc.n == found.validity.control_auc.n
    assert len(found.table) == 100


def test_what_a_notebook_shows_is_escaped(tmp_path: Path) -> None:
    found = found_in()
    shown = found._repr_html_()
    assert found.answer in shown and shown.count("<tr>") == 4
    assert found.verdict in repr(found) and f"{found.auc:.3f}" in repr(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"controls": IMAGES[99:]}, "candidates/99 and controls/000 have the same pixels"),
        ({"controls": IMAGES[100:130]}, r"30 controls are left, .* give at least 100 controls"),
        ({"candidates": IMAGES[:3]}, "3 candidates are left; give at least 5"),
        ({"candidates": [b"nothing"] * 9}, "no image of candidates can be used; 0: "),
        ({"objective": "dino"}, "objective = 'dino', allowed: barlow-twins, byol, clip"),
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
        ({"control_weights": "file.pth"}, "control_weights are given without a control"),
    ],
)
def test_what_it_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        found_in(**arguments)


def test_losses_are_counted() -> None:
    images = [encode_png(one) for one in IMAGES[:100]]
    found = found_in([*images, images[0], b"\x89PNG\r\n\x1a\n broken"])
    data = found.report["data"]
    assert "lpla" in found.report["not_tested"][0] and "metric-loss" not in found.report["not_tested"][0]
    assert "metric-loss" in " ".join(found.report["not_applying"])
    assert (data["roles"]["candidate"]["n"], data["duplicates_removed"]) == (100, 1)
    assert [bad["key"] for bad in found.report["rejected"]] == ["101"]
    assert found.report["rejected_total"] == {"samples": 1, "shards": 0, "estimated": False}


def test_more_losses_are_allowed_where_the_user_says_so() -> None:
    found = found_in([*IMAGES[:97], b"", b"", b""], max_rejected=0.02)
    assert found.report["rejected_count"] == 3
    assert yaml.safe_load(found.config())["data"]["max_rejected"] == 0.02


def test_an_encoder_behind_an_api_answers_like_the_network_itself() -> None:
    """Over a real connection, in PNG files of 8 bits; the control is another fresh network."""
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
    with pytest.raises(ConfigError, match=r"the control, a fresh checkpoint:resnet18-imagenet, has backbone; give a"):
        found_in(model=f"{server.url}/json", output="projection", endpoint={"outputs": ("projection",)})
    assert asked == sum(one["queries"] for one in queries if one["encoder"] == "target")
    assert remote.report["encoders"]["fresh"]["load"] == "checkpoint:resnet18-imagenet"
    assert f"{server.url}/json" in remote.config()
    assert "white-box" in local.report["not_tested"][0] and "white-box" not in remote.report["not_tested"][0]
    assert "white-box: the weights of the encoder are not at hand" in remote.report["not_applying"]
