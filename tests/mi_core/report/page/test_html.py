"""The page: whole, safe against hostile names, self-contained, every number with its n and interval."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.figure import Figure

from mi_core.report.figures.drawing import Drawing, blank, label_axes
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.page.html import render_html
from mi_core.report.words.numbers import count, interval, rate
from tests.mi_core.report.page.page import Page

HOSTILE = '"><script>alert(1)</script>'


def hostile_figure() -> Figure:
    figure, (panel,) = blank()
    panel.plot([0, 1], [0, 1], marker="o", label=HOSTILE)
    label_axes(panel, HOSTILE, "y")
    return figure


def test_the_page_is_whole_and_loads_nothing(report: dict[str, Any], drawings: dict[str, Drawing]) -> None:
    source = render_html(typed(report), drawings)
    page = Page(source)
    assert source.startswith("<!DOCTYPE html>")
    assert not any(tag in ("script", "link", "iframe", "object") for tag, _ in page.tags)
    images = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(images) == len(drawings)  # and no picture of dots where the truth is known
    assert all(image["role"] == "img" and image["aria-label"] for image in images)
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))  # several figures in one page
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", source)
    assert "default-src 'none'" in source
    targets = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = {str(attributes["href"])[1:] for tag, attributes in page.tags if tag == "a"}
    assert links <= targets


def test_names_cannot_break_out(short_report: dict[str, Any]) -> None:
    hostile = copy.deepcopy(short_report)
    hostile["name"] = hostile["command"] = hostile["data"]["source"] = HOSTILE
    hostile["rejected"][0]["key"] = hostile["rejected"][0]["reason"] = HOSTILE
    hostile["caveats"] = [HOSTILE]
    hostile["encoders"][HOSTILE] = hostile["encoders"].pop("shadow")
    source = render_html(typed(hostile), {"loss": Drawing(hostile_figure(), HOSTILE, HOSTILE)})
    assert "<script" not in source
    assert Page(source).text.count("alert(1)") >= 6


def test_every_final_estimate_stands_with_interval_and_n(report: dict[str, Any]) -> None:
    text = Page(render_html(typed(report), {})).text
    for row in report["pooled"]:
        if row["epoch"] != 400:
            continue
        for name in ("accuracy", "auc", "precision", "recall"):
            entry = row[name]
            wanted = f"{rate(entry['value'])} {interval(entry['ci95'])} n {count(entry['n'])}"
            assert wanted in text, (row["attack"], row["output"], name)


def test_rates_that_the_images_do_not_carry_are_left_out_and_among_others_marked(short_report: dict[str, Any]) -> None:
    def page(supported: Callable[[int], bool]) -> str:
        changed = copy.deepcopy(short_report)
        for number, entry in enumerate([*changed["attacks"], *changed["pooled"]]):
            for at in entry["tpr_at_fpr"].values():
                at["supported"] = supported(number)
        return render_html(typed(changed), {})

    none, some, every = page(lambda _: False), page(lambda number: number % 2 == 0), page(lambda _: True)
    heads = [len(re.findall(r'<th scope="col"[^>]*>TPR at', source)) for source in (none, some, every)]
    assert heads[0] == 0 < heads[1] <= heads[2]
    assert ["†" in source for source in (none, some, every)] == [False, True, False]


@pytest.mark.parametrize("missing", ["validity", "queries", "throughput", "timings", "methods", "rejected", "caveats"])
def test_parts_may_be_missing(missing: str, short_report: dict[str, Any]) -> None:
    less = {name: part for name, part in short_report.items() if name != missing}
    page = Page(render_html(typed(less), {}))
    if missing == "validity":
        assert "Undecided" in page.text
        assert "controls" not in {attributes.get("id") for _, attributes in page.tags}


def test_samples_of_lost_shards_are_in_the_number_of_rejected_ones(short_report: dict[str, Any]) -> None:
    assert "Rejected: 2 samples left out of the run" in Page(render_html(typed(short_report), {})).text
    total = {"samples": 505, "shards": 5, "estimated": True}
    text = Page(render_html(typed(short_report | {"rejected_total": total}), {})).text
    assert "Rejected: about 505 samples left out of the run (5 shards unreadable or short)" in text
    older = {name: part for name, part in short_report.items() if name != "rejected_total"}
    assert "Rejected: 2 samples left out of the run" in Page(render_html(typed(older), {})).text


def test_photographs_keep_their_colours_in_the_dark(short_report: dict[str, Any], drawings: dict[str, Drawing]) -> None:
    """Charts are inverted on a dark page; a photograph would be its negative."""
    shown = {"views": Drawing(blank()[0], "Views", "views", photographs=True), "loss": drawings["loss"]}
    source = render_html(typed(short_report), shown)
    (style,) = re.findall(r"<style>(.*?)</style>", source, re.DOTALL)
    inverted = re.findall(r"([^{}]+)\{[^{}]*invert", style)
    assert [selector.strip() for selector in inverted] == ["figure:not(.photographs) svg"]
    figures = [attributes.get("class") for tag, attributes in Page(source).tags if tag == "figure"]
    assert sorted(figures, key=str) == [None, "photographs"]


def test_hashes_stand_at_the_end(report: dict[str, Any]) -> None:
    source = render_html(typed(report), {})
    role = report["data"]["roles"]["target-member"]["sha256"]
    assert source.index(role) > source.index('id="reproduction"')
    with_config = render_html(typed(report | {"config": {"seeds": [0]}}), {})
    assert '<dt class="unprinted">Every setting' in with_config
    assert re.search(r"@media print \{.*\.unprinted \{ display: none", source, re.DOTALL)


def test_the_answer_comes_first_and_details_last(report: dict[str, Any], drawings: dict[str, Drawing]) -> None:
    rates = {name: report["pooled"][0][name] for name in ("auc", "recall")}
    of_class = {"class": "4", "n_member": 48, "n_nonmember": 40, "false_positive_rate": rates["auc"], **rates}
    report["classes"] = [of_class, of_class | {"class": "7"}]
    source = render_html(typed(report), drawings)
    order = ["verdict", "evidence", "figures", "attacks", "controls", "classes", "audited", "glossary", "reproduction"]
    places = [source.index(f'id="{name}"') for name in order]
    assert places == sorted(places)
    role = report["data"]["roles"]["target-member"]["sha256"]
    for folded in (">Each class", "Threat models", "Output: backbone", role):
        before = source[: source.index(folded)]
        assert before.count("<details") > before.count("</details"), folded
    first = next(attributes.get("href") for tag, attributes in Page(source).tags if tag == "a")
    assert first == "#verdict"
    head = Page(source).text
    assert head.index("AUC: the chance that") < head.index("p: chance of so high")


def test_a_phone_shows_few_columns_and_offers_the_others(report: dict[str, Any]) -> None:
    source = render_html(typed(report), {})
    (style,) = re.findall(r"<style>(.*?)</style>", source, re.DOTALL)
    kept = {int(number) for number in re.findall(r'<table class="keep-(\d)', source)}
    assert kept == {3, 4}
    for number in kept:  # hidden until the fold that follows the table is open
        assert f".more:not([open]) + .sheet .keep-{number} :is(th, td):nth-child(n + {number + 1})" in style
    tables = re.findall(
        r'(Slide the table sideways to see them.</p></details>\n)?<div class="sheet[^>]*><table class="keep-(\d)[^>]*>'
        r"(.*?)</table></div>",
        source,
        re.DOTALL,
    )
    assert len(tables) > 5
    for fold, number, table in tables:  # what it says stands above its table
        assert bool(fold) == (table.count('<th scope="col"') > int(number))
    attack = next(table for *_, table in tables if "Output: projection" in table)
    assert re.findall(r'<th scope="col"[^>]*>([^<]*)', attack)[:3] == ["Attack", "AUC", "Accuracy"]


def test_rows_that_only_their_small_words_tell_apart_keep_them(report: dict[str, Any]) -> None:
    assert 'class="told"' not in render_html(typed(report), {})
    again = [row | {"settings": "variant = released"} for row in report["pooled"] if row["attack"] == "lpla"]
    report["pooled"] += again
    assert '<small class="told">variant = released; fitted on' in render_html(typed(report), {})
    report["pooled"] = report["pooled"][: -len(again)]
    report["evidence"]["tests"][0]["direction"] = "lower"
    assert '<small class="told">target, projection; direction lower</small>' in render_html(typed(report), {})


def test_tests_of_one_attack_say_what_it_was_fitted_on(report: dict[str, Any]) -> None:
    """An attack that stands once needs no more words; one that was fitted on several things stands several times."""
    tests = report["evidence"]["tests"]
    assert "fitted on “shadow”" not in render_html(typed(report), {}).split("What each attack found")[0]
    tests += [tests[0] | {"reference": "audited"}]
    page = render_html(typed(report), {})
    assert "target, projection, fitted on the audited samples before the one that is judged" in page
    assert f"target, projection, fitted on “{tests[0]['reference']}”" in page


def test_tests_on_other_outputs_are_folded(report: dict[str, Any]) -> None:
    source = render_html(typed(report), {})
    fold = source.index("The same on the other outputs and encoders")
    assert source.index("target, projection") < fold < source.index("target, backbone")
    assert source.count("<small>target, ") == len(report["evidence"]["tests"])
    report["evidence"]["tests"] = [row for row in report["evidence"]["tests"] if row["output"] == "backbone"]
    source = render_html(typed(report), {})
    assert "The same on the other outputs and encoders" not in source and "target, backbone" in source


def test_a_printed_page_names_its_run_and_no_name_breaks_the_style(short_report: dict[str, Any]) -> None:
    short_report["name"] = 'x"; } </style><b>\\\n'
    source = render_html(typed(short_report), {})
    (footer,) = re.findall(r'@bottom-left \{ content: "((?:[A-Za-z0-9]|\\[0-9a-f]+ )*)"; \} \}', source)
    told = re.sub(r"\\([0-9a-f]+) ", lambda code: chr(int(code[1], 16)), footer)
    date, short = short_report["created"], short_report["config_sha256"][:12]
    assert told == f"Encoder audit · {short_report['name']} · {date} · configuration {short}"
    assert source.count("</style>") == 1


def _luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_words_stand_out_from_what_they_stand_on(short_report: dict[str, Any]) -> None:
    """WCAG 2.2 AA: a contrast of 4.5 (1.4.3), by day and in the dark."""
    for scheme in re.findall(r":root \{(.*?)\}", render_html(typed(short_report), {}), re.DOTALL)[:2]:
        colour = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))
        tints = [name for name in colour if name.endswith("-tint")]
        pairs = [(name.removesuffix("-tint"), name) for name in tints]
        pairs += [(ink, on) for ink in ("ink", "soft", "link") for on in ("page", "card", "faint", *tints)]
        for ink, on in pairs:
            low, high = sorted((_luminance(colour[ink]), _luminance(colour[on])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, on)


def test_all_flagged_images_are_in_a_fold(report: dict[str, Any]) -> None:
    report["evidence"]["samples"][0]["flagged"] = 2
    source = render_html(typed(report), {}, flagged=["pool/000000", HOSTILE])
    fold = source.index("<details><summary>All 2 flagged images, the highest score first</summary>")
    assert (
        fold < source.index('<li><span class="whole">pool/000000</span></li>', fold) < source.index("</details>", fold)
    )
    assert '<code class="whole">seed-0/validity/flagged.csv</code>' in source[fold:]
    assert "<script" not in source
    assert "flagged images, the highest" not in render_html(typed(report), {})


def test_names_and_numbers_do_not_break(report: dict[str, Any]) -> None:
    """Names of several parts, intervals, n and units; commands and files stay as they can be copied."""
    report["command"] = "encoder-audit audit encodermi-v.yaml -n 5 --out runs/50 %"
    report["encoders"]["my-" + "long" * 9] = report["encoders"]["shadow"]
    source = render_html(typed(report), {})
    body = re.sub(
        r"<(style|code)\b.*?</\1>|<title>.*?</title>|<[^>]*(?:title|label|alt)=.*?>", "", source, flags=re.DOTALL
    )
    assert body.count("encodermi-v") == body.count('<span class="whole">encodermi-v</span>') > 5
    assert '<th scope="row"><span class="whole">encodermi-t</span>' in source
    assert "my-longlong" in body and 'whole">my-longlong' not in body  # longer than the line of a phone
    assert not re.findall(r"\bn \d|\d (?:%|s\b)|\[[−.\d]+, [−.\d]", body)
    assert f"<code>{report['command']}</code>" in source
    (style,) = re.findall(r"<style>(.*?)</style>", source, re.DOTALL)
    assert ".whole { white-space: nowrap; }" in style


def test_sections_are_folded_but_what_was_found(report: dict[str, Any], drawings: dict[str, Drawing]) -> None:
    """A link to a section opens it, so what it leads to stands inside the fold."""
    source = render_html(typed(report), drawings)
    parts = re.findall(r'<details class="part"( open)?><summary>.*?</summary>\n<div id="([\w-]+)">', source)
    assert [name for opened, name in parts if opened] == ["evidence", "figures"]
    assert {name for _, name in parts} > {"attacks", "controls", "audited", "scope", "glossary", "reproduction"}
    shown = " ".join(Page(unfolded(source)).text.split("Skip to the answer")[1].split())
    assert len(shown.split()) < 900


def unfolded(source: str) -> str:
    """A page without what its closed folds hide."""
    while fold := re.search(r"<details(?![^>]* open)[^>]*>", source):
        depth, end = 0, len(source)
        for found in re.finditer(r"<(/?)details", source[fold.start() :]):
            depth += -1 if found[1] else 1
            if not depth:
                end = fold.start() + found.end() + 1
                break
        source = source[: fold.start()] + source[end:]
    return source


@pytest.mark.parametrize(
    ("grounds", "mark"),
    [
        ({}, '<li class="pass"><a href="#controls"><b>Blind check</b> pass'),
        ({"blind_auc": None}, '<li class="unasked"><a href="#rule"><b>Blind check</b> not asked'),
        (
            {"blind_auc": {"value": 0.7, "ci95": [0.66, 0.74], "n": 880}},
            '<li class="fail"><a href="#controls"><b>Blind check</b> fail',
        ),
        ({"trained": False}, '<li class="unasked"><a href="#controls"><b>References</b> untrained only'),
        ({"registered": True}, '<li class="pass"><a href="#reproduction"><b>Registered before</b> pass'),
        ({"registered": False}, '<li class="fail"><a href="#reproduction"><b>Registered before</b> fail'),
        ({"works": False}, '<li class="fail"><a href="#audited"><b>Encoder works</b> fail'),
    ],
)
def test_every_check_is_a_mark_that_leads_to_its_section(
    grounds: dict[str, Any], mark: str, asked: dict[str, Any]
) -> None:
    asked["validity"] |= grounds
    asked["validity"] = {name: part for name, part in asked["validity"].items() if part is not None}
    assert mark in render_html(typed(asked), {})


def test_a_strip_shows_what_a_leak_takes(asked: dict[str, Any]) -> None:
    """By choice the line stands where the attack's effect is the factor times that of the largest check."""
    source = render_html(typed(asked), {})
    (needed,) = re.findall(r"whole bar right of the line at\s+(\.\d+)\.", source)
    validity = typed(asked).judged.validity
    assert validity is not None and validity.robustness is not None
    limit = replace(validity, attack_auc=replace(validity.attack_auc, low=float(needed)))
    assert limit.robustness is not None and limit.robustness.at_least == pytest.approx(limit.factor, abs=0.02)
    start = 0.4
    (line,) = re.findall(r'<u style="left:([\d.]+)%">', source)
    assert start + (1 - start) * float(line) / 100 == pytest.approx(float(needed), abs=0.001)


def test_a_printed_page_is_light_and_whole(short_report: dict[str, Any]) -> None:
    source = render_html(typed(short_report), {})
    assert re.findall(r"@media[^{]*prefers-color-scheme: dark[^{]*", source) == [
        "@media screen and (prefers-color-scheme: dark) "
    ]
    printed = source.rpartition("@media print {")[2]
    assert ".sheet, .ids { overflow: visible; max-height: none; }" in printed
    assert "p:has(+ .sheet, + .more) { break-after: avoid; }" in printed


def test_a_list_that_is_not_whole_says_so(report: dict[str, Any]) -> None:
    """Of very many flagged images the page holds the first ones, and tells how many there are."""
    report["evidence"]["samples"][0]["flagged"] = 6000
    text = Page(render_html(typed(report), {}, flagged=[f"pool/{number:06}" for number in range(6000)])).text
    assert "The first 5,000 of 6,000 flagged images" in text
    assert "pool/004999" in text and "pool/005000" not in text


def test_a_share_of_nothing_is_no_acquittal(asked: dict[str, Any]) -> None:
    """Zeros would read as "none was used" and "this image was surely not used"."""
    rows = [row | {"least_share": 0.2} for row in asked["evidence"]["tests"]]
    asked["evidence"]["tests"] = rows
    assert (
        "Used at least: if nothing but training sets the groups apart, with 95 % confidence,"
        in Page(render_html(typed(asked), {})).text
    )
    assert ">not shown" not in render_html(typed(asked), {}) and ">not known" not in render_html(typed(asked), {})
    next(row for row in rows if row.get("primary"))["least_share"] = 0.0
    for samples in asked["evidence"]["samples"]:
        samples |= {"share": 0.0, "top": [one | {"posterior": 0.0} for one in samples["top"]]}
    source = render_html(typed(asked), {})
    assert source.count(">not shown") == 1
    assert source.count(">not known") == len(asked["evidence"]["samples"][0]["top"])  # shown for the first seed
