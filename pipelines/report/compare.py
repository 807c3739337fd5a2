"""Two reports side by side: what two runs say of the same questions, and in what their configs differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mi_core.metrics.pooled import difference
from mi_core.records import Estimate
from mi_core.report.contents import fault_of, final_rows, pooled_rows, primary_row
from mi_core.report.defenses import defense_tables, measures
from mi_core.report.model.as_json import given_values, part_as_json, part_from_json
from mi_core.report.model.attacks import EncoderPart, PooledRow
from mi_core.report.model.report import Report, report_from_json
from mi_core.report.words.numbers import DAGGER, count, estimate, percent
from mi_core.report.words.sentences import capital, checks, say, share_found, sides_by
from mi_core.report.words.wording import TITLES
from pipelines.config.roles import CANDIDATE_ROLES, KNOWN_ROLES, TARGET_ROLES
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.damage import reading

Row = dict[str, Any]
SIDES = ("first", "second")
FPR = "0.01"
_SAME = ("attack", "target", "output", "reference", "shadow", "settings", "epoch")
_SUFFIX = ".json"  # of a report that is named by itself
_LONGEST = 60  # letters of a config's value in a table


def compare(first: str, second: str) -> Row:
    """Set the findings of two finished runs side by side; a finding that only one has stands on its side alone.

    Args:
        first, second: folders of runs, or their files report.json.

    Raises:
        UserError: a folder holds no report, or not one that this version reads; or both are the same.
    """
    check_two(first, second)
    reports = [read_report(run) for run in (first, second)]
    with reading(f"report.json of {first} or {second}"):
        found = _side_by_side((first, second), reports)
        table(found)  # a value that cannot be shown is damaged too
    return found


def check_two(first: str, second: str) -> None:
    """Raise UserError if both are one run."""
    if storage.absolute(path_of_report(first)) == storage.absolute(path_of_report(second)):
        raise UserError(f"{first} and {second} are one run; give two")


def path_of_report(run: str) -> str:
    """The file of a report that a user names by itself or by the folder of its run."""
    return run if run.endswith(_SUFFIX) and not storage.is_folder(run) else f"{run.rstrip('/')}/report.json"


def read_report(run: str) -> Report:
    """The report of a run.

    Args:
        run: its folder, or its report.json.

    Raises:
        UserError: it holds no report, or not one that this version reads.
    """
    path = path_of_report(run)
    if path != run and not storage.is_folder(run):
        raise UserError(f"{run} is no folder; give the folder of a run")
    with reading(path):
        entry: Row | None = storage.read_json_or(path, None)
    if fault := "is not there" if entry is None else fault_of(entry):
        raise UserError(f"{path} {fault}; run encoder-audit report {path.rpartition('/')[0]}")
    with reading(path):
        return report_from_json(entry)


def leak_difference(baseline: Report, report: Report) -> Estimate | None:
    """AUC of the primary attack of ``report`` minus that of the same attack of ``baseline``, as in a comparison.

    None: the two cannot be compared. One of them has no such attack, or audits candidates and the other members.
    """
    row = primary_row(pooled_rows(report))
    if row is None or sides_by(baseline.membership) != sides_by(report.membership):
        return None
    mate = _mates([row], pooled_rows(baseline)).get(id(row))
    return None if mate is None else difference(mate.auc, row.auc)


def _side_by_side(folders: Sequence[str], reports: Sequence[Report]) -> Row:
    first, second = reports
    judged = [{name: getattr(report.judged, name) for name in checks("compared")} for report in reports]
    utility = [{name: measures(encoder) for name, encoder in report.encoders.items()} for report in reports]
    defenses = [
        {
            f"{row.name} on {target}": {name: getattr(row, name) for name in ("utility", "loss", "auc", "attack")}
            for target, rows in defense_tables(report)
            for row in rows
        }
        for report in reports
    ]
    found: Row = {
        "runs": [
            {"folder": folder, "name": report.name, "created": report.created, "config_sha256": report.config_sha256}
            for folder, report in zip(folders, reports, strict=True)
        ],
        "verdict": _sides(report.judged.verdict for report in reports),
        "membership": "asked" if all(report.membership == "asked" for report in reports) else "known",
        "validity": _rows("name", judged),
        "roles": _rows("role", [report.data.roles for report in reports]),
        "same_images": _same_images(reports),
        "encoders": _rows("encoder", [report.encoders for report in reports]),
        "attacks": _attacks(pooled_rows(first), pooled_rows(second)),
        "utility": [
            {"encoder": name, **row}
            for name in dict.fromkeys((*first.encoders, *second.encoders))
            for row in _rows("measure", [of.get(name, {}) for of in utility])
        ],
        "defenses": _rows("defense", defenses),
    }
    if first.config and second.config:
        found["config"] = list(_differing(first.config, second.config))
    return found


def _sides(values: Iterable[Any]) -> Row:
    return {side: value for side, value in zip(SIDES, values, strict=True) if value is not None}


def _rows(key: str, of_sides: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row per name that either part has, with its entry on both sides as in report.json."""
    parts = [given_values(part_as_json(part)) for part in of_sides]
    names = dict.fromkeys(name for part in parts for name in part)
    return [{key: name, **_sides(part.get(name) for part in parts)} for name in names]


def _attacks(first: Sequence[PooledRow], second: Sequence[PooledRow]) -> list[Row]:
    """All rows; side by side those alike in everything, and last checkpoints of what is alike but for the epoch."""
    mates = _mates(first, second)
    matched = {id(mate) for mate in mates.values()}
    alone = [_pair(None, row) for row in second if id(row) not in matched]
    return [_pair(row, mates.get(id(row))) for row in first] + alone


def _mates(first: Sequence[PooledRow], second: Sequence[PooledRow]) -> dict[int, PooledRow]:
    """The rows of the second run that are alike to some of the first, by the ids of these."""
    mates: dict[int, PooledRow] = {}
    for same, mine, theirs in ((_SAME, first, second), (_SAME[:-1], final_rows(first), final_rows(second))):
        alike = attrgetter(*same)
        taken = {id(mate) for mate in mates.values()}
        there = {alike(row): row for row in theirs if id(row) not in taken}
        mates |= {id(row): there[alike(row)] for row in mine if id(row) not in mates and alike(row) in there}
    return mates


def _pair(*rows: PooledRow | None) -> Row:
    there = [row for row in rows if row is not None]
    pair: Row = {name: getattr(there[0], name) for name in _SAME[:-1]} | {"known": say("known", there[0])}
    for side, row in zip(SIDES, rows, strict=True):
        if row is not None:
            numbers = {name: getattr(row, name) for name in ("epoch", "seeds", "n_member", "n_nonmember", "auc")}
            pair[side] = numbers | {"tpr": row.tpr_at_fpr.get(FPR)}
    if len(there) == 2:
        pair["difference"] = difference(*(row.auc for row in there))
    return dict(given_values(part_as_json(pair)))


def _same_images(reports: Iterable[Report]) -> str:
    """Tell whether both runs audited ``all`` the same images, ``some`` or, as far as their roles tell, ``none``.

    What an attack is fitted on (known samples) it is not judged on, so these have to be the same too.
    """
    audited = []
    for data in (report.data for report in reports):
        names = (*(CANDIDATE_ROLES if set(CANDIDATE_ROLES) <= data.roles.keys() else TARGET_ROLES), *KNOWN_ROLES)
        seeds = [seed.roles for seed in data.per_seed or (data,)]
        audited.append({(name, roles[name].sha256) for roles in seeds for name in names if name in roles})
    first, second = ({digest for _, digest in roles} for roles in audited)
    return "all" if audited[0] == audited[1] else "some" if first & second else "none"


def _differing(first: Any, second: Any, name: str = "") -> Iterator[Row]:
    """Fields of two configs that differ, by their dotted names; one that a config lacks is absent on its side."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in first | second:
            yield from _differing(first.get(key), second.get(key), f"{name}.{key}" if name else key)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, both in enumerate(zip(first, second, strict=True)):
            yield from _differing(*both, f"{name}.{number}")
    elif first != second:
        yield {"field": name, **_sides((first, second))}


def table(found: Mapping[str, Any]) -> RenderableType:
    """The result of `compare`, for a rich console."""
    sides, attacks = sides_by(found["membership"]), found["attacks"]
    runs = zip(SIDES, found["runs"], strict=True)
    lines = [f"{side:>6}  {run['folder']}: {run['name']}, {run['created']}" for side, run in runs]
    judged = [("verdict", _sides(TITLES[found["verdict"][side]] for side in SIDES))]
    judged += [
        (checks("compared")[row["name"]], {side: _estimate(row[side], 3) for side in SIDES if side in row})
        for row in found["validity"]
    ]
    made = [(row[key], row) for key in ("role", "encoder") for row in found[f"{key}s"]]
    parts: list[RenderableType] = [
        Text("\n".join(lines), style="bold"),
        _table("Verdict", "", judged, str),
        _table("Images and encoders", "", made, _made, same=_same),
    ]
    for place in dict.fromkeys((row["target"], row["output"]) for row in attacks):
        rows = [row for row in attacks if (row["target"], row["output"]) == place]
        named, where = _named(rows), "on {}, {} output".format(*place)
        parts.append(
            _table(f"AUC {where}", "attack", named, lambda entry: _estimate(entry["auc"]), difference=_difference)
        )
        if any("tpr" in row.get(side, {}) for row in rows for side in SIDES):
            title = capital(f"{share_found(FPR, sides)} {where}")
            parts.append(
                _table(title, "attack", named, lambda entry: _estimate(entry["tpr"]) if "tpr" in entry else None)
            )
    if not all(row[side].get("tpr", {}).get("supported", True) for row in attacks for side in SIDES if side in row):
        parts.append(Text(f"{DAGGER} {say('unsupported', sides)}", style="dim"))
    parts.append(Text(say("independence", found["same_images"]), style="dim"))
    if found["utility"]:
        measured = [(f"{row['encoder']}, {say('probe', row['measure'])}", row) for row in found["utility"]]
        parts.append(_table("Utility", "encoder, measure", measured, _estimate))
    if found["defenses"]:
        defended = [(row["defense"], row) for row in found["defenses"]]
        parts.append(_table("Defenses: AUC of the strongest attack, utility lost", "defense", defended, _defended))
    if found.get("config"):
        fields = [(row["field"], row) for row in found["config"]]
        parts.append(_table("Fields of the config that differ", "field", fields, _short))
    else:
        unknown = "One of the reports does not hold its config: what differs there is not known."
        parts.append(Text("The configs are the same." if "config" in found else unknown))
    return Group(*parts)


def _table(
    title: str,
    header: str,
    rows: Iterable[tuple[str, Row]],
    words: Callable[[Any], str | None],
    **more: Callable[[Row], str],
) -> Table:
    """Names with both sides; a side without an entry says so, and ``more`` are further columns."""
    shown = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in (header, *SIDES, *more):
        shown.add_column(column, overflow="fold")
    for name, row in rows:
        told = [words(row[side]) if side in row else None for side in SIDES]
        cells = [Text("not there", style="dim") if text is None else Text(text) for text in told]
        shown.add_row(Text(name), *cells, *(Text(cell(row)) for cell in more.values()))
    return shown


def _estimate(entry: Mapping[str, Any], digits: int | None = None) -> str:
    return estimate(Estimate.from_json(entry), digits)


def _made(entry: Row) -> str:
    """Images of a role, or what an encoder is."""
    if "sha256" in entry:
        return f"{count(entry['n'])} images"
    return say("encoder", part_from_json(EncoderPart, entry))


def _same(row: Row) -> str:
    key = "sha256" if "role" in row else "fingerprint"
    return "yes" if all(side in row for side in SIDES) and row["first"][key] == row["second"][key] else "no"


def _named(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Attacks with what they were fitted on, their settings and, where there are several, their checkpoints."""
    epochs = [[str(row[side]["epoch"]) for side in SIDES if "epoch" in row.get(side, {})] for row in rows]
    several = len({epoch for mine in epochs for epoch in mine}) > 1
    named = []
    for row, mine in zip(rows, epochs, strict=True):
        at = f"epoch {' and '.join(dict.fromkeys(mine))}" if several and mine else None
        named.append((f"{row['attack']}\n  {', '.join(filter(None, (row['known'], row.get('settings'), at)))}", row))
    return named


def _difference(row: Row) -> str:
    return _estimate(row["difference"], 3) if "difference" in row else ""


def _defended(entry: Row) -> str:
    lost = f"{percent(round(entry['loss'], 3))} lost" if "loss" in entry else ""
    return ", ".join(filter(None, (_estimate(entry["auc"]) if "auc" in entry else "", lost)))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
