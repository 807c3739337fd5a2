"""The registration of audits in Python: a result never says more of earlier looks than something recorded."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from mi_core import audit
from mi_core.auditing import config_text
from mi_core.auditing.found import Found
from mi_core.checks import ConfigError
from mi_core.registration import faults_of, file_of, line_digest
from mi_core.report import build
from mi_core.report.contents import schema, to_json
from mi_core.report.terminal import terminal_table

SIDE = 8
IMAGES = np.random.default_rng(0).integers(0, 256, (190, SIDE, SIDE, 3), dtype=np.uint8)
CANDIDATES, CONTROLS = IMAGES[:60], IMAGES[60:]
UNRECORDED = "Nothing recorded how often these images were looked at."
BEFORE, AFTER = "chosen before the encoder was queried", "chosen after the encoder was queried"


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 16)).eval()


def found_in(**changes: Any) -> Found:
    settings = {"model": network(), "candidates": CANDIDATES, "controls": CONTROLS, "size": SIDE, "views": 2}
    return audit(**settings | {"quick": True, "progress": False} | changes)


def front_ends(found: Found) -> dict[str, str]:
    """What every front end of a result says, without line breaks."""
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(terminal_table(found._report, whole=False))
    shown = {
        "print": str(found),
        "notebook": found._repr_html_(),
        "page": re.sub(r"<[^>]+>", "", found.html),
        "json": to_json(found._report),
        "terminal": console.export_text().replace("│", " "),
    }
    return {name: " ".join(unescape(text).split()) for name, text in shown.items()}


def lines_in(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in place.read_text().splitlines()]


def rewritten(place: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write the file anew with other content, each line with its digest."""
    changed = [line | change(line) for line in lines_in(place)]
    place.write_bytes(file_of([one | {"sha256": line_digest(one)} for one in changed]))


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file after one look."""
    found_in(registration=(place := tmp_path_factory.mktemp("look") / "looks.jsonl"), nonce="7")
    return place.read_bytes()


def test_without_a_file_every_front_end_says_that_nothing_recorded_the_looks() -> None:
    """Six audits of the same images in other ways, of which somebody may show the highest."""
    crops: list[dict[str, Any]] = [{"crop_scale": (low, 1.0)} for low in (0.2, 0.6)]
    ways = [{}, {"seed": 1}, {"seed": 2}, {"views": 3}, *({"augmentation": one} for one in crops)]
    for number, found in enumerate(found_in(**way) for way in ways):
        for name, said in ({"print": str(found)} if number else front_ends(found)).items():
            assert UNRECORDED in said, name
            assert "the encoder was queried" not in said, name
        assert found.validity.registered is None and "registered" not in found.report["validity"]
        assert found.report["registration"].keys() == {"nonce", "note"}


def test_with_a_file_the_plan_stands_in_it_before_the_first_image_is_asked_about(tmp_path: Path) -> None:
    place, asked = tmp_path / "looks.jsonl", list[list[str]]()

    def watched(images: torch.Tensor) -> torch.Tensor:
        asked.append([line["event"] for line in lines_in(place)] if place.exists() else [])
        return images.flatten(1)

    found = found_in(model=watched, registration=place, nonce=None)
    begun = next(number for number, events in enumerate(asked) if events)
    assert begun <= 3 and all(events == ["roles", "plan", "start"] for events in asked[begun:])  # before: noise
    roles, plan, _, look = lines_in(place)
    assert roles["roles"] == {"0": found.report["data"]["roles"]}
    assert plan["primary_attack"] == plan["attacks"][0]
    assert plan["primary_attack"]["attack"] == "mean-cosine" and plan["primary_attack"]["views"] == 2
    assert plan["primary_attack"]["encoder"] == found.report["encoders"]["target"]["fingerprint"]
    assert plan["nonce"] == found.report["registration"]["nonce"] and plan["nonce"]["from"] == "operating system"
    assert look["auc"] == found.auc and found.report["registration"]["sha256"] == look["sha256"]
    assert found.report["validity"]["registered"] is True
    for said in front_ends(found).values():
        assert "The file looks.jsonl records this; it shows no look that was made without it" in said
        assert UNRECORDED not in said
    assert BEFORE in str(found) and AFTER not in str(found)
    jsonschema.Draft202012Validator(schema()).validate(json.loads(to_json(found._report)))


def test_the_same_again_is_another_look_of_the_same_numbers(tmp_path: Path) -> None:
    place = tmp_path / "looks.jsonl"
    first, again = (found_in(registration=place, nonce=None) for _ in range(2))
    assert first.table == again.table  # with the nonce of the first
    assert [line["event"] for line in lines_in(place)] == ["roles", "plan", "start", "look", "start", "look"]
    assert again.validity.registered is True and BEFORE in str(again)
    assert "1 attack was planned on these images; this is report 2." in str(again)
    assert first.report["registration"]["reports"] == 1 and again.report["registration"]["reports"] == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"views": 3},
        {"augmentation": {"crop_scale": (0.4, 1.0)}},
        {"objective": "byol"},
        {"nonce": "another"},
        {"factor": 1.5},
        {"mean": (0.5,), "std": (0.5,)},
        {"model": network(1)},
        {"references": [network(1)], "quick": False},
        {"candidates": CANDIDATES[:-1]},
        {"controls": CONTROLS[1:]},
        {"near_duplicates": False, "candidates": np.concatenate([CANDIDATES, CANDIDATES[:1] ^ 1])},
        {"decoding": {"fit": "squash", "resize": 9}},
    ],
    ids=", ".join,
)
def test_what_is_chosen_after_an_earlier_look_is_said_to_be(
    changes: dict[str, Any], looked: bytes, tmp_path: Path
) -> None:
    place = tmp_path / "looks.jsonl"
    place.write_bytes(looked)
    late = found_in(**{"registration": str(place), "nonce": "7"} | changes)
    assert late.validity.registered is False and late.report["registration"]["after_looking"] is True
    assert "this is report 2." in str(late) and AFTER in str(late) and BEFORE not in str(late)
    assert not faults_of(lines_in(place))


def test_six_audits_in_one_file_are_counted_and_none_but_the_first_is_chosen_before(tmp_path: Path) -> None:
    place = tmp_path / "looks.jsonl"
    ways = [{"seed": seed} for seed in range(3)] + [{"views": views} for views in (3, 4, 5)]
    found = [found_in(registration=place, attacks=["combined"], **way) for way in ways]
    assert [one.validity.registered for one in found] == [True, *[False] * 5]
    for said in front_ends(found[-1]).values():
        if not said.startswith("{"):
            assert "12 attacks were planned on these images; this is report 6." in said
    assert found[-1].report["registration"] | {"attacks": 12, "reports": 6} == found[-1].report["registration"]


def test_an_audit_that_was_stopped_counts_as_looking(tmp_path: Path) -> None:
    """Whoever sees answers and then stops has looked: the start is written, and another plan comes after it."""
    calls = list[int]()

    def stopping(images: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        if sum(calls) > 100:
            raise KeyboardInterrupt
        return images.flatten(1)

    place = tmp_path / "looks.jsonl"
    with pytest.raises(KeyboardInterrupt):
        found_in(model=stopping, registration=place)
    assert lines_in(place)[-1]["event"] == "start"
    calls[:] = [-(10**9)]
    assert found_in(model=stopping, registration=place).validity.registered is True  # the same plan
    assert found_in(model=stopping, registration=place, views=3).validity.registered is False


def test_attacks_that_are_left_out_later_still_count_against_the_p_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_text, "EPOCHS", 1)
    planned = list[Any]()
    evidence = build.evidence
    monkeypatch.setattr(build, "evidence", lambda *given, **told: planned.append(told) or evidence(*given, **told))
    for views in (2, 3, 4):
        found_in(registration=tmp_path / "looks.jsonl", views=views)
    assert [one["planned"] for one in planned] == [{"target": 1}, {"target": 2}, {"target": 3}]


def test_a_file_that_was_changed_is_refused_before_anything_is_asked(looked: bytes, tmp_path: Path) -> None:
    place, whole = tmp_path / "looks.jsonl", looked

    def refused(message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            found_in(model=lambda _: pytest.fail("it was asked"), registration=place)

    place.write_bytes(whole.replace(b'"views": 2', b'"views": 3'))
    refused(r"registration = .*looks.jsonl' is damaged: line 2 does not have its sha256; name another file")
    place.write_bytes(whole)
    rewritten(place, lambda line: {"command": "another"} if line["event"] == "start" else {})
    refused(r"is damaged: line 4 does not follow line 3")
    place.write_bytes(whole.replace(whole.splitlines(keepends=True)[1], b""))
    refused(r"is damaged: line 2 does not follow line 1")
    place.write_bytes(whole[:-9])
    refused("cannot be read: line 4 is cut off")
    place.write_bytes(b"[]\n7\n")
    refused("cannot be read: ")
    place.write_bytes(b"\xff\n")
    refused("cannot be read: ")
    place.unlink()
    place.mkdir()
    refused("cannot be read: ")
    with pytest.raises(ConfigError, match=r"registration = .*/none/looks.jsonl' cannot be written: .*No such file"):
        found_in(registration=tmp_path / "none" / "looks.jsonl")
    with pytest.raises(ConfigError, match="registration = 7, allowed: a path, or None"):
        found_in(registration=7)
