"""The report in the terminal: verdict, controls, attacks, utility and time as rich tables, whole in 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mi_core.report.contents import carried_rates, final_inferences, final_rows, pooled_rows, primary_row
from mi_core.report.defenses import TableRow, defense_tables, front_of, loss_of
from mi_core.report.model.attacks import InferenceRow, PooledRow, Sweep
from mi_core.report.model.defenses import Tuning
from mi_core.report.model.judgement import Evidence
from mi_core.report.model.report import Report
from mi_core.report.pooling import grouped
from mi_core.report.words import wording
from mi_core.report.words.numbers import DAGGER, count, duration, estimate, percent, rate, settings
from mi_core.report.words.sentences import Sides, measured_by, rate_or_share, say, share_found, sides_of

_TRIALS = 12  # shown of a search
_STYLES = {"leak": "bold red", "confounded": "bold yellow", "no-evidence": "bold cyan", "undecided": "bold"}


def terminal_table(report: Report, *, whole: bool = True) -> RenderableType:
    """The results of a run, for ``rich.console.Console.print``.

    Args:
        report: of a run.
        whole: every table; else the verdict, its controls and the attacks on the output that it rests on, and the names
            of what else there is.
    """
    answer = wording.answer(report)
    style = _STYLES[answer.verdict]
    parts: list[RenderableType] = [
        Panel(_head(answer), title=Text(report.name), title_align="left", border_style=style, padding=(0, 1))
    ]
    if answer.conditions:
        conditions = _table("What a leak takes", ["condition"])
        for column in ("measured", "needed", ""):
            conditions.add_column(column, no_wrap=True)
        for one in answer.conditions:
            conditions.add_row(one.name, one.measured, one.needed, "met" if one.holds else "not met")
        parts.append(conditions)
    parts += _questions(report)
    lead = primary_row(pooled_rows(report))
    if not whole:
        place = None if lead is None else (lead.target, lead.output)
        shown = [row for row in pooled_rows(report) if place in (None, (row.target, row.output))]
        elsewhere = say("elsewhere", report, len(shown) < len(pooled_rows(report)))
        more = [Text(f"{elsewhere}\n", style="dim")] if elsewhere else []
        return Group(*parts, *_attacks(shown, sides_of(report)), *more)
    if report.evidence is not None:
        parts.append(_evidence(report, report.evidence))
    parts += _attacks(pooled_rows(report), sides_of(report))
    parts += [table for sweep in report.sweeps if (table := _sweep(sweep, lead)) is not None]
    inferred = final_inferences(report.attribute_inference)
    if inferred:
        parts.append(_inferred(inferred))
    parts += [_defenses(target, rows) for target, rows in defense_tables(report)]
    if report.tuning is not None:
        parts.append(tuning_table(report.tuning))
    if report.timings:
        parts.append(_timings(report.timings, wording.stages(report)))
    return Group(*parts)


def _head(answer: wording.Answer) -> Text:
    """The question, the answer, what it means, and the same in numbers."""
    said = Text.assemble((answer.title, _STYLES[answer.verdict]), "\n")
    if answer.question:
        said.append(f"{answer.question}\n")
    said.append(f"{answer.headline}\n", style="bold")
    if answer.warning:
        said.append(f"WARNING. {answer.warning}\n", style="bold yellow")
    for label, text in answer.parts:
        said.append(f"{label}: " if label else "", style="bold").append(f"{text}\n")
    return said.append(f"\nIn numbers: {answer.sentence}", style="dim")


def _table(title: str, columns: Iterable[str], words: int = 1) -> Table:
    """An empty table; the first ``words`` columns hold words, the others numbers."""
    table = Table(
        title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < words else "right", no_wrap=index >= words)
    return table


def _section(heading: str, lines: Iterable[str]) -> Group:
    """A heading with sentences below it, and an empty line."""
    return Group(Text(heading, style="bold"), *(Padding(Text(line), (0, 0, 0, 2)) for line in lines), Text())


def _questions(report: Report) -> Iterator[Group]:
    """The questions beside the verdict that the run asked: limits of attacks, memorisation, promises of privacy."""
    limits = [f"{one.target}: {say('bound', one)} {say('bound_basis', one)}".rstrip() for one in report.bounds]
    kept = [
        f"{say('memorised_by', one)}: {say('memorised', one)} {say('memorised_singly', one)}"
        for one in report.memorisation
    ]
    guessed = [f"{one.target}: {say('promise', one)} {say('promise_basis', one)}" for one in report.dp_audit]
    for heading, lines, meaning in (
        (say("bound_heading"), limits, "about_bounds"),
        ("Memorisation of single images", kept, "about_memorisation"),
        ("Promise of differential privacy", guessed, "about_promises"),
    ):
        if lines:
            yield _section(heading, [*lines, say(meaning)])


def _evidence(report: Report, proved: Evidence) -> Group:
    """Candidates as a whole by the primary attack, single ones, and what could be seen at all."""
    sides = sides_of(report)
    lines = [say("believed", report, proved), say("power", report, proved)]
    if proved.withheld_because is None:
        lines.reverse()
        lines[:0] = [say("flagged", samples, sides) for samples in proved.samples[:1]]
        lines[:0] = [say("whole", row, sides) for row in proved.tests if row.primary]
    return _section(say("candidates_heading", sides), filter(None, lines))


def _attacks(rows: Sequence[PooledRow], sides: Sides) -> list[RenderableType]:
    final = final_rows(rows)
    lead = primary_row(rows)
    alphas = [alpha for alpha in carried_rates(final) if float(alpha) <= 0.01][:1]
    rated = ["accuracy"] if sides.known else []
    tables: list[RenderableType] = []
    marked = False
    for (target, output), here in grouped(final, attrgetter("target", "output")).items():
        columns = ["attack", *rated, "AUC", *(share_found(alpha, sides) for alpha in alphas), "images"]
        table = _table(f"Attacks on {target}, {output} output", columns)
        several = Counter(row.attack for row in here)
        for row in here:
            rates = [row.tpr_at_fpr.get(alpha) for alpha in alphas]
            marked = marked or any(entry is not None and not entry.supported for entry in rates)
            name = Text(row.attack, style="bold" if row is lead else "")
            if several[row.attack] > 1:
                name.append(f"\n  {row.settings or say('known', row)}", style="dim")
            if row.difference is not None:
                name.append(f"\n  {estimate(row.difference)} to the primary", style="dim")
            numbers = [
                *(estimate(getattr(row, part)) for part in (*rated, "auc")),
                *("" if entry is None else rate_or_share(entry, sides) for entry in rates),
            ]
            table.add_row(name, *numbers, count(row.auc.n))
        tables.append(table)
    if marked:
        tables.append(Text(f"{DAGGER} {say('unsupported', sides)}\n", style="dim"))
    return tables


def _sweep(sweep: Sweep, lead: PooledRow | None) -> Table | None:
    """The primary attack at every point, if it changes; the other attacks stand in the HTML report."""
    attack = lead.attack if lead else sweep.points[0].rows[0].attack
    rows = [(point.label, row) for point in sweep.points for row in point.rows if row.primary or lead is None]
    measure, _ = measured_by(row for _, row in rows)
    if len({getattr(row, measure).value for _, row in rows}) < 2:
        return None
    shown = dict.fromkeys((measure, "auc"))
    table = _table(
        f"Sweep of {sweep.name}: {attack}", ["point", *("AUC" if name == "auc" else name for name in shown), "images"]
    )
    for label, row in rows:
        table.add_row(label, *(estimate(getattr(row, name)) for name in shown), count(row.auc.n))
    return table


def _inferred(rows: Sequence[InferenceRow]) -> Table:
    table = _table("Attribute inference", ["attribute", "from", "accuracy", "most frequent", "images"], words=2)
    for row in rows:
        source = ", ".join(filter(None, (row.target, row.output, row.settings)))
        table.add_row(row.attribute, source, estimate(row.accuracy), estimate(row.majority), count(row.accuracy.n))
    return table


def _defenses(target: str, rows: Sequence[TableRow]) -> Table:
    names = ["auc", *(["attribute"] if any(row.attribute is not None for row in rows) else [])]
    columns = ["defense", "utility", "lost", "strongest attack's AUC", "attribute inferred"]
    table = _table(f"Defenses of {target}", columns[: 3 + len(names)])
    for row in rows:
        shown = [row.utility, *(getattr(row, name) for name in names)]
        utility, *told = ("" if entry is None else estimate(entry) for entry in shown)
        lost = "" if row.loss is None else percent(round(row.loss, 3))
        table.add_row(row.name, utility, lost, *told)
    return table


def tuning_table(search: Tuning) -> RenderableType:
    """A search for ``rich.console.Console.print``: the trials that no other trial beats, and the one chosen."""
    metric, kind = (search.metric, "attack") if search.hides is None else ("accuracy", "inference")
    columns = ["parameters", "utility lost", f"{metric}, upper end", f"strongest {kind}"]
    table = _table(f"Search on {search.target}: trials that no other trial beats", columns)
    front = front_of(search)
    for row in front[:_TRIALS]:
        parameters = Text(settings(row.parameters), style="bold" if row.winner else "")
        table.add_row(parameters, percent(round(loss_of(row), 3)), rate(row.leak or 0.0), row.strongest or "")
    more = [Text(f"and {len(front) - _TRIALS} more in tune/trials.parquet", style="dim")]
    return Group(table, *(more if len(front) > _TRIALS else []), Text(say("search", search)))


def _timings(timings: Mapping[str, float], stages: Mapping[str, str]) -> Table:
    spent = sum(timings.values())
    table = _table(f"Where the time went: {duration(spent)}", ["stage", "time", "share"])
    for stage, title in stages.items():
        if stage in timings:
            share = percent(round(timings[stage] / spent, 2)) if spent else ""
            table.add_row(title, duration(timings[stage]), share)
    return table
