"""A report as a row, whatever it holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mi_core.records import Estimate
from mi_core.report.contents import LONGEST, plain
from mi_core.report.page.index import Entry, Unread, entry_of


def entry(report: dict[str, Any], folder: str = "run") -> Entry:
    found = entry_of(report, folder, f"{folder}/report.html")
    assert isinstance(found, Entry), found
    return found


def test_an_entry_says_what_the_report_says(report: dict[str, Any]) -> None:
    found, validity = entry(report), report["validity"]
    assert found.name == report["name"]
    assert found.created == datetime.fromisoformat(report["created"]).astimezone(UTC)
    assert found.answer.verdict == validity["verdict"] == "leak"
    assert [found.auc, found.blind, found.control] == [
        Estimate.from_json(validity[name]) for name in ("attack_auc", "blind_auc", "control_auc")
    ]
    assert (found.family, found.encoder) == ("moco-v2, conv4", "moco-v2, conv4, 400 epochs")
    assert found.weights == tuple(seed["fingerprint"] for seed in report["encoders"]["target"]["per_seed"])
    assert len(set(found.weights)) == 3
    assert (found.attack, found.folded) == ("encodermi-v, projection output", "3 seeds")
    assert found.share.startswith("at least ")


def test_the_share_used_is_given_for_a_leak_only(short_report: dict[str, Any]) -> None:
    (row,) = [row for row in short_report["evidence"]["tests"] if row.get("primary")]
    row["least_share"] = 0.917
    assert entry(short_report).share == "at least 91 % (95 % confidence)"  # a lower bound is never rounded up
    row["share"] = {"value": 0.62, "ci95": [0.5, 0.7], "n": 9}
    assert entry(short_report).share == "62 % [50 %, 70 %]"
    short_report["validity"]["verdict"] = "no-evidence"
    assert entry(short_report).share == ""


def test_sweeps_and_what_was_not_measured(short_report: dict[str, Any]) -> None:
    short_report["sweeps"] = [{"name": "views", "points": [{"label": "2", "rows": []}, {"label": "4", "rows": []}]}]
    del short_report["validity"], short_report["evidence"]
    found = entry(short_report)
    assert (found.folded, found.blind, found.control, found.share) == ("sweep of views: 2 points", None, None, "")
    assert found.answer.verdict == "undecided"
    assert found.auc is not None


def _changed(path: str, value: Any) -> Any:
    def change(report: dict[str, Any]) -> None:
        *above, last = path.split(".")
        part = report
        for name in above:
            part = part[name]
        part[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda report: report.pop("encoders"), "has no encoders"),
        (_changed("schema_version", 2), "has schema_version 2, expected 1"),
        (_changed("validity.verdict", "fine"), "KeyError"),
        (_changed("validity.attack_auc", {"value": 0.6}), "KeyError"),
        (_changed("validity.blind_auc.value", float("nan")), "p-value = nan"),
        (_changed("validity.control_auc.ci95", [0.1, 7.0]), "NumericError"),
        (_changed("validity.control_auc.ci95", ["a", "b"]), "TypeError"),
        (_changed("created", 12), "TypeError"),
        (_changed("created", "yesterday"), "ValueError"),
        (_changed("encoders", []), "TypeError"),
        (lambda report: report.update(encoders={}, attacks=[], pooled=[]), "KeyError"),
        (_changed("pooled", "text"), "Error"),
        (_changed("data", None), "TypeError: data is None, expected dict"),
    ],
)
def test_a_report_that_cannot_be_read_says_why(change: Any, why: str, short_report: dict[str, Any]) -> None:
    change(short_report)
    found = entry_of(short_report, "run", "")
    assert isinstance(found, Unread)
    assert why in found.why
    assert "\n" not in found.why


@pytest.mark.parametrize("report", [None, [], 3, "report", {}])
def test_what_is_no_report_at_all(report: Any) -> None:
    assert entry_of(report, "run", "") == Unread("run", "report.json has no schema_version")


def test_texts_are_one_line_that_can_be_printed() -> None:
    assert plain("\ud800\x00\u202e\u2066") == "\ufffd" * 4
    assert len(plain("x" * 10**6)) == LONGEST
    assert plain(["a", 1]) == "['a', 1]"
    assert plain("日本語 עברית") == "日本語 עברית"
