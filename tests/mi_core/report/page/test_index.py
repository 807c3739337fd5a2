"""The page over many runs: every run on it, safe against hostile reports, no script, filters by style rules."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mi_core.records import Estimate
from mi_core.report.contents import LONGEST, plain
from mi_core.report.page.index import FILTERS, Entry, Unread, entry_of, render_index
from mi_core.report.words.numbers import interval, rate
from tests.mi_core.report.page.page import Page

HOSTILE = '"></style></title><script>alert(1)</script>'
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
VERDICTS = ("leak", "no-evidence", "confounded", "undecided")
ENCODERS = ("open_clip:ViT-B-32", "timm:vit_small", "simclr")


def planted(report: dict[str, Any], n: int) -> list[Entry]:
    """Runs with all verdicts, of three encoders, with new weights every few days."""
    entries = []
    for number in range(n):
        changed = copy.deepcopy(report)
        changed["name"] = f"audit {number}"
        changed["created"] = (NOW + timedelta(days=number)).isoformat()
        changed["validity"]["verdict"] = VERDICTS[number % 4]
        changed["encoders"]["target"] |= {"load": ENCODERS[number % 3], "fingerprint": f"{number // 9:064x}"}
        found = entry_of(changed, f"team/run-{number}", f"team/run-{number}/report.html")
        assert isinstance(found, Entry)
        entries.append(found)
    return entries


def rows(page: Page) -> list[set[str]]:
    """The classes of every run's row."""
    found = [str(attributes["class"]).split() for tag, attributes in page.tags if tag == "tr" and "class" in attributes]
    return [set(classes) for classes in found if "run" in classes]


def shown(source: str, *checked: str) -> list[set[str]]:
    """The rows that the style rules leave when some radio buttons are chosen."""
    left = rows(Page(source))
    for chosen in checked:
        for wanted, unless in re.findall(rf"body:has\(#{chosen}:checked\) \.(\w+):not\(\.([\w-]+)\)[,\s{{]", source):
            left = [row for row in left if wanted not in row or unless in row]
    return left


def test_every_run_is_on_the_page_with_its_numbers(short_report: dict[str, Any]) -> None:
    entries, unread = planted(short_report, 100), [Unread("gone", "no report.json; stopped")]
    source = render_index(entries, unread, "runs", NOW)
    page = Page(source)
    assert len(rows(page)) == 100
    assert "101 runs seen: 100 with a report, 1 without" in page.text
    assert "gone no report.json; stopped" in page.text
    links = [str(attributes["href"]) for tag, attributes in page.tags if tag == "a"]
    assert sorted(link for link in links if not link.startswith("#")) == sorted(one.link for one in entries)
    for one in entries:
        assert one.name in page.text
        assert one.auc is not None
        assert f"{rate(one.auc.value)} {interval([one.auc.low, one.auc.high])}" in page.text
    order = [page.text.index(f" {one.name} {one.date}") for one in entries]
    assert order == sorted(order, reverse=True)  # the newest first
    for verdict in VERDICTS:
        assert "25 audits" in page.text, verdict
    assert len(source) < 500_000


def test_filters_leave_what_they_say(short_report: dict[str, Any]) -> None:
    entries = planted(short_report, 100)
    source = render_index(entries, [], "runs", NOW)
    page = Page(source)
    radios = [attributes for tag, attributes in page.tags if tag == "input"]
    groups = {str(radio["name"]) for radio in radios}
    assert groups == {"verdict", "age", "encoder"}
    for group in groups:
        (chosen,) = [radio for radio in radios if radio["name"] == group and "checked" in radio]
        assert str(chosen["id"]).endswith("-all")
        assert len(shown(source, str(chosen["id"]))) == 100
    for number, verdict in enumerate(VERDICTS):
        assert shown(source, f"v-{verdict}") == [row for row in rows(page) if verdict in row]
        assert len(shown(source, f"v-{verdict}")) == 25, number
    sizes = [len(shown(source, f"e-{number}")) for number in range(3)]
    assert sizes == [34, 33, 33]
    assert len(shown(source, "latest")) == 3
    both = [one for one in entries if one.answer.verdict == "leak" and one.family == "open_clip:ViT-B-32"]
    assert len(shown(source, "v-leak", "e-0")) == len(both)
    labels = re.findall(r'id="([\w-]+)"(?: checked)?> (?:[^<]*)<small>(\d+)</small>', source)
    assert len(labels) == len(radios)
    for name, count in labels:
        assert len(shown(source, name)) == int(count), name  # a button says how many it leaves


def test_a_page_of_one_run_and_of_none(short_report: dict[str, Any]) -> None:
    text = Page(render_index(planted(short_report, 1), [], "runs", NOW)).text
    assert "1 run seen: 1 with a report." in text
    assert "1 audit found a leak." in text
    text = Page(render_index([], [Unread("a", "why"), Unread("b", "why")], "runs", NOW)).text
    assert "2 runs seen: 0 with a report, 2 without" in text


def test_many_encoders_are_all_shown_though_few_have_a_filter(short_report: dict[str, Any]) -> None:
    (one,) = planted(short_report, 1)
    entries = [replace(one, family=f"encoder {number}", folder=str(number)) for number in range(FILTERS + 6)]
    page = Page(render_index(entries, [], "runs", NOW))
    assert len(rows(page)) == FILTERS + 6
    assert "6 more encoders have no filter" in page.text


def test_hostile_reports_cannot_break_out(short_report: dict[str, Any]) -> None:
    hostile = copy.deepcopy(short_report)
    hostile["name"] = HOSTILE + "\ud800\u202e" + "x" * 10**6
    hostile["encoders"]["target"] |= {"load": HOSTILE, "fingerprint": HOSTILE}
    hostile["sweeps"] = [{"name": HOSTILE, "points": []}]
    for row in hostile["pooled"]:
        row["attack"] = HOSTILE
    first = entry_of(hostile, HOSTILE, "a%22/report.html")
    assert isinstance(first, Entry)
    source = render_index([first, replace(first, weights=("other",))], [Unread(HOSTILE, HOSTILE)], HOSTILE, NOW)
    page = Page(source)
    source.encode()
    assert len(source) < 60_000
    assert "<script" not in source
    assert source.count("</style>") == source.count("</title>") == 1
    assert len(rows(page)) == 2


def test_the_page_runs_and_loads_nothing(short_report: dict[str, Any]) -> None:
    source = render_index(planted(short_report, 20), [Unread("a", "b")], "runs", NOW)
    page = Page(source)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "object", "img", "form", "embed", "base"}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "src"]
    (policy,) = [str(attributes["content"]) for tag, attributes in page.tags if "http-equiv" in attributes]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert not re.search(r"url\(|@import|https?:", source.partition("</style>")[0])
    names = [str(attributes["id"]) for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))
    targets = {str(attributes["href"])[1:] for tag, attributes in page.tags if tag == "a"} & set(names)
    assert targets == {"unread"}


@pytest.mark.parametrize("dark", ["", "(prefers-color-scheme: dark)"])
def test_every_tone_has_a_colour(dark: str, short_report: dict[str, Any]) -> None:
    style = render_index(planted(short_report, 4), [], "runs", NOW)
    place = style.partition(dark)[2] if dark else style
    for verdict in VERDICTS:
        assert f"--{verdict}: #" in place


def entry(report: dict[str, Any], folder: str = "run") -> Entry:
    found = entry_of(report, folder, f"{folder}/report.html")
    assert isinstance(found, Entry), found
    return found


def test_an_entry_says_what_the_report_says(report: dict[str, Any]) -> None:
    found, validity = entry(report), report["validity"]
    assert found.name == f"{report['name']}: moco-v2, conv4, 400 epochs"
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
