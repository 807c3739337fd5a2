"""The report as one HTML file: no script, no external resource, readable on a phone, on paper and in the dark.

Every text of the report passes through the escaping of jinja2; a content security policy in the page forbids it to
load or run anything, whatever a file name or a caption contains.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from markupsafe import Markup, escape

from mi_core.metrics.membership import TITLES
from mi_core.records import Estimate
from mi_core.report.contents import carried_rates, final_inferences, final_rows, pooled_rows, primary_row
from mi_core.report.defenses import defense_tables, front_of
from mi_core.report.figures.curves import swept_inferences
from mi_core.report.figures.drawing import Drawing
from mi_core.report.model.attacks import AttackRow, CurvePoint, EncoderPart, PooledRow, Sweep
from mi_core.report.model.report import Report
from mi_core.report.pooling import grouped
from mi_core.report.words import numbers, wording
from mi_core.report.words.sentences import PAGES, Sides, checks, glossary, say, share_found, sides_of, template
from mi_core.validity.verdict import CHOICE

_DIFFERENCE = "Minus primary"
_place = attrgetter("target", "output")  # where an attack was tried
_SHOWN = 440 / 280.8  # pixels of the page for a point of a figure
_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_TEXT = re.compile(r"<(style|svg|pre|title|code)\b.*?</\1>|<[^>]*>|(?P<text>[^<]+)", re.DOTALL)
_APART = re.compile(
    r"(?<=[\d],) (?=[.−\d][^\[]*\])|(?<=\b[np]) (?=[.\d≤])|(?<=[≤≥=]) (?=[.\d])|(?<=\d) (?=%|(?:s|min|h)\b)"
)
_NAME = re.compile(r"(?<![\w./+-])[\w.]+(?:[/+-][\w.]*\w)+(?![\w/+-])")  # of parts between which a browser may break
_SHORT = 24  # letters of a name that a phone shows on one line
_LISTED = 5000  # ids of flagged images in the page, some 150 kB


def render_html(
    report: Report,
    figures: Mapping[str, Drawing],
    thumbnails: Mapping[str, bytes] | None = None,
    flagged: Sequence[str] = (),
) -> str:
    """The page that shows a report.

    Args:
        report: of a run.
        figures: what `draw_figures` returned; the page embeds them.
        thumbnails: WebP files of the candidates shown, by id.
        flagged: ids of the flagged candidates of the first seed, the highest score first; the page holds
            the first 5,000.

    Returns:
        A complete HTML5 document.
    """
    rows = pooled_rows(report)
    lead = primary_row(rows)
    sides = sides_of(report)
    groups = _groups(report, rows, sides)
    tests = () if report.evidence is None else report.evidence.tests
    here = [row for row in tests if lead is not None and _place(row) == _place(lead)] or tests
    footer = f"Encoder audit · {report.name} · {report.created} · configuration {report.config_sha256[:12]}"
    terms = glossary(sides)
    judged = report.judged
    page = template(f"{PAGES}/report.html.j2").render(
        report=report,
        answer=wording.answer(report),
        dots=wording.dots(report),
        stages=wording.stages(report),
        sides=sides,
        measured={field: title for field, title in checks("column").items() if getattr(judged, field) is not None},
        attack_auc=judged.attack_auc or (None if lead is None else lead.auc),
        needed=_needed(report),
        lead=lead,
        groups=groups,
        matrices=_matrices(rows, lead),
        sweep_rows=_sweep_rows,
        swept_inferences=swept_inferences,
        terms=terms,
        tested=(here, [row for row in tests if row not in here]),
        # in a style sheet all but letters and digits of ASCII stands as its code point
        footer=Markup(re.sub(r"[^A-Za-z0-9]", lambda found: f"\\{ord(found[0]):x} ", footer)),
        seeds=sorted({entry.seed for entry in report.attacks}),
        epochs=sorted({row.epoch for row in rows if row.epoch}),
        cells=partial(_cells, sides),
        utilities=_utilities,
        checkpoints=lambda curve: _utilities((at.epoch, at) for at in curve),
        inferred=final_inferences(report.attribute_inference),
        defense_tables=defense_tables,
        front_of=front_of,
        columns_of=lambda rows: list(dict.fromkeys(column for _, by_probe in rows for column in by_probe)),
        figures=_figures(figures, lead),
        settings=list(_settings(report.config)),
        shares=any(row.share is not None for row in tests),
        flagged=flagged[:_LISTED],
        thumbnails={name: _embedded(data, "webp") for name, data in (thumbnails or {}).items()},
        dagger=numbers.DAGGER,
        rates_shown=any("%" in column for group in groups for column in group["columns"]),
        any_unsupported=any(
            entry is not None and not entry.supported
            for group in groups
            for row in (*group["rows"], *group["seed_rows"], *group["earlier"])
            for _, entry in _cells(sides, row, group["columns"])
        ),
    )
    return unbroken(page)


def _needed(report: Report) -> float | None:
    """The AUC that a leak takes: by choice by the rule, by lot as it is usually found; None: not known."""
    validity, power = report.judged.validity, () if report.evidence is None else report.evidence.power
    if validity is not None and validity.by == CHOICE:
        return validity.needed_auc
    return next((entry.auc for entry in power if entry.used == 1), None)


def _settings(config: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf of a config with the path to it; lists of plain values in one line."""
    plain = not isinstance(config, Mapping | list) or (
        isinstance(config, list) and not any(isinstance(part, Mapping | list) for part in config)
    )
    if plain or not config:
        yield name, json.dumps(config, ensure_ascii=False)
        return
    for key, part in config.items() if isinstance(config, Mapping) else enumerate(config):
        yield from _settings(part, f"{name}.{key}" if name else str(key))


def _embedded(image: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def inline_svg(drawing: Drawing, number: int) -> Markup:
    """An SVG as a part of the page: its words are those of the figure, its names are those of no other figure.

    Text in it was escaped when it was drawn.
    """
    drawn = drawing.image.decode()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{number}-", drawn)
    width, height = (round(float(side) * _SHOWN) for side in _SIZE.findall(drawn)[0])
    label = escape(f"{drawing.title}. {drawing.alt}")
    head = f'<svg role="img" aria-label="{label}" width="{width}" height="{height}"'
    return Markup(drawn.replace("<svg", head, 1))


def unbroken(page: str) -> str:
    """Keep on one line: a number and its unit, the bounds of an interval, and names of several parts."""

    def whole(name: re.Match[str]) -> str:
        return name[0] if len(name[0]) > _SHORT else f'<span class="whole">{name[0]}</span>'

    def kept(found: re.Match[str]) -> str:
        return found[0] if found["text"] is None else _NAME.sub(whole, _APART.sub("\u00a0", found["text"]))

    return _TEXT.sub(kept, page)


def _groups(report: Report, rows: Sequence[PooledRow], sides: Sides) -> list[dict[str, Any]]:
    """One table per (target, output), the primary attack's first and its row on top.

    A false-positive rate is a column only where the images of some row carry it.
    """
    lead, metrics = primary_row(rows), _metrics(sides).values()
    several = len({entry.seed for entry in report.attacks}) > 1
    of_seeds = grouped(final_rows(report.attacks) if several else [], _place)
    by_place = grouped(rows, _place)
    groups = []
    for place in sorted(by_place, key=lambda place: lead is not None and place != _place(lead)):
        mine = by_place[place]
        here = sorted(final_rows(mine), key=lambda row: not row.primary)
        last = {(row.attack, row.epoch) for row in here}
        groups.append(
            {
                "target": place[0],
                "output": place[1],
                "rows": here,
                "epochs": sorted({row.epoch for row in here if row.epoch}),
                "columns": [
                    *metrics,
                    *(share_found(alpha, sides) for alpha in carried_rates(here)),
                    *([_DIFFERENCE] if any(row.difference is not None for row in here) else []),
                ],
                "seed_rows": of_seeds.get(place, []),
                "earlier": [row for row in mine if (row.attack, row.epoch) not in last],
            }
        )
    return groups


def side_by_side(
    rows: Iterable[PooledRow], output: str
) -> tuple[list[str], list[tuple[str, str, dict[str, PooledRow]]]]:
    """The attacks as columns against targets and what was known: attack names, then (target, known, row by attack).

    Rows of one attack that differ by settings only keep their settings in the column's name.
    """
    table: dict[tuple[str, str], dict[str, PooledRow]] = {}
    for row in final_rows(rows):
        if row.output == output:
            name = ", ".join(filter(None, (row.attack, row.settings)))
            table.setdefault((row.target, say("known", row)), {})[name] = row
    columns = list(dict.fromkeys(name for by_name in table.values() for name in by_name))
    return columns, [(target, known, by_name) for (target, known), by_name in table.items()]


def _matrices(rows: Sequence[PooledRow], lead: PooledRow | None) -> list[dict[str, Any]]:
    """The attacks that stand in two rows or more, against targets and what was known, for each output."""
    tables = []
    for output in dict.fromkeys([*([lead.output] if lead else []), *(row.output for row in rows)]):
        columns, table = side_by_side(rows, output)
        columns = [column for column in columns if sum(column in found for *_, found in table) > 1]
        table = [row for row in table if any(column in row[-1] for column in columns)]
        if len(table) > 1:
            tables.append({"output": output, "columns": columns, "rows": table})
    return tables


def _sweep_rows(sweep: Sweep, lead: PooledRow | None) -> tuple[list[str], list[tuple[str, dict[str, PooledRow]]]]:
    """The attacks as columns against the points of a sweep, on the primary output: names, and (label, row by name)."""
    by_point = []
    for point in sweep.points:
        _, table = side_by_side(point.rows, lead.output if lead else point.rows[0].output)
        by_name = {
            " / ".join([name, target, known]) if len(table) > 1 else name: row
            for target, known, rows in table
            for name, row in rows.items()
        }
        by_point.append((point.label, by_name))
    return list(dict.fromkeys(name for _, rows in by_point for name in rows)), by_point


def _metrics(sides: Sides) -> dict[str, str]:
    """The estimates of attacks and their titles, the AUC first; others only where it is known who is a member."""
    return {"auc": TITLES["auc"], **(TITLES if sides.known else {})}


def _cells(sides: Sides, row: AttackRow, columns: Sequence[str]) -> list[tuple[str, Estimate | None]]:
    """The estimates of a row under the columns of its table; None where a part is absent."""
    metrics = _metrics(sides) | {"difference": _DIFFERENCE}
    by_title: dict[str, Estimate | None] = {title: getattr(row, name) for name, title in metrics.items()}
    by_title |= {share_found(alpha, sides): entry for alpha, entry in row.tpr_at_fpr.items()}
    return [(column, by_title.get(column)) for column in columns]


def _utilities(rows: Iterable[tuple[object, EncoderPart | CurvePoint]]) -> list[tuple[str, dict[str, Estimate]]]:
    """The downstream accuracies of encoders or checkpoints by probe, where there are any."""
    return [
        (str(name), {say("probe", probe): entry for probe, entry in row.utility.probes.items()})
        for name, row in rows
        if row.utility is not None
    ]


def _figures(figures: Mapping[str, Drawing], lead: PooledRow | None) -> dict[str, list[dict[str, Any]]]:
    """The drawings by section, those of the primary attack's output first."""
    own = ("roc", "scores", "compare", "sweep", "attributes", "views", "training", "defenses", "tuning")
    sections: dict[str, list[dict[str, Any]]] = {section: [] for section in own}
    joined = dict(zip(own, own, strict=True)) | {"statistic": "scores", "queries": "sweep"}
    for number, (name, drawing) in enumerate(figures.items()):
        shown = {
            "first": lead is not None and f"-{lead.output}" in name,
            "primary": lead is not None and lead.attack in name,
            **({"source": _embedded(drawing.image)} if drawing.photographs else {"svg": inline_svg(drawing, number)}),
            "title": drawing.title,
            "photographs": drawing.photographs,
            "alt": drawing.alt,
        }
        sections[joined.get(name.split("-")[0], "training")].append(shown)
    for shown_here in sections.values():
        shown_here.sort(key=lambda figure: (not figure["first"], not figure["primary"]))
    return sections
