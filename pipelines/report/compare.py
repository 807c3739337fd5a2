"""Two reports side by side: what two runs say of the same questions, and in what their configs differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mi_core.metrics.pooled import difference
from mi_core.records import Estimate
from mi_core.report.contents import final_rows, known_in_words, pooled_rows, schema
from mi_core.report.defenses import defense_tables, measures
from mi_core.report.numbers import DAGGER, count, estimate, percent, supported
from mi_core.report.sides import share_found, sides_of, unsupported
from mi_core.report.wording import TITLES, probe
from pipelines.config.attacks import CANDIDATE_ROLES, KNOWN_ROLES, TARGET_ROLES
from pipelines.config.fields import differing
from pipelines.errors import UserError
from pipelines.files import storage

Report = Mapping[str, Any]
Row = dict[str, Any]
SIDES = ("first", "second")
FPR = "0.01"
_SAME = ("attack", "target", "output", "reference", "shadow", "settings", "epoch")
_MEASURED = {
    "attack_auc": "AUC of the primary attack",
    "blind_auc": "AUC of the blind classifier",
    "control_auc": "AUC on the control encoder",
    "delta_auc": "attack minus blind",
    "delta_control_auc": "target minus control",
}
_REMARKS = {
    "none": (
        "Differences are second minus first. Their intervals take the two runs for independent: the root of the summed "
        "squared standard errors, read off the bounds of both intervals. That holds if no image was audited in both, "
        "which the reports do not tell: they say that no role is the same."
    ),
    "some": (
        "Differences are second minus first. Their intervals take the two runs for independent (the root of the summed "
        "squared standard errors, read off the bounds of both intervals), but the runs share images, so they are not: "
        "too wide where both AUCs err alike on what is shared, and not valid where they err in opposite ways."
    ),
    "all": (
        "Differences are second minus first. Both runs audited the same images, and a paired test on their scores "
        "would be sharper. These intervals take the runs for independent (the root of the summed squared standard "
        "errors, read off the bounds of both intervals): they are conservative, too wide, where both AUCs err alike on "
        "the images, as two runs of one attack mostly do, and not valid where they err in opposite ways."
    ),
}
_TRAINING = "No interval covers how much another training of the same encoders would differ."
_LONGEST = 60  # letters of a config's value in a table


def compare(first: str, second: str) -> dict[str, Any]:
    """What two finished runs found, side by side; what only one has, stands on its side alone.

    Args:
        first, second: folders of runs.

    Raises:
        UserError: a folder holds no report, or not one that this version reads; or both are the same.
    """
    if storage.absolute(first) == storage.absolute(second):
        raise UserError(f"{first} and {second} are one run; give two")
    reports = [_read(folder) for folder in (first, second)]
    encoders = _entries("encoder", reports, lambda report: report["encoders"])
    good_for = [{row["encoder"]: measures(row.get(side, {})) for row in encoders} for side in SIDES]
    configs = [report["config"] for report in reports if "config" in report]
    return {
        "runs": [
            {"folder": folder, **{name: report[name] for name in ("name", "created", "config_sha256")}}
            for folder, report in zip((first, second), reports, strict=True)
        ],
        "verdict": _sides(report.get("validity", {}).get("verdict", "undecided") for report in reports),
        "membership": "asked" if all(report.get("membership") == "asked" for report in reports) else "known",
        "validity": [
            row
            for row in _entries("name", reports, lambda report: report.get("validity", {}))
            if row["name"] in _MEASURED
        ],
        "roles": _entries("role", reports, lambda report: report["data"]["roles"]),
        "same_images": _same_images(*reports),
        "encoders": encoders,
        "attacks": _attacks(*(pooled_rows(report) for report in reports)),
        "utility": [
            {"encoder": name, **row}
            for name in good_for[0]
            for row in _entries("measure", [side[name] for side in good_for], lambda found: found)
        ],
        "defenses": _entries("defense", reports, _defenses),
        **({"config": list(_fields(*configs))} if len(configs) == 2 else {}),
    }


def table(found: Mapping[str, Any]) -> RenderableType:
    """What `compare` returned, for a rich console."""
    runs = [
        f"{side:>6}  {run['folder']}: {run['name']}, {run['created']}"
        for side, run in zip(SIDES, found["runs"], strict=True)
    ]
    sides = sides_of(found)
    parts: list[RenderableType] = [Text("\n".join(runs), style="bold"), _verdict(found), _made_of(found)]
    for target, output in dict.fromkeys((row["target"], row["output"]) for row in found["attacks"]):
        rows = [row for row in found["attacks"] if (row["target"], row["output"]) == (target, output)]
        parts.append(_of_attacks(f"AUC on {target}, {output} output", rows, "auc"))
        if any("tpr" in row.get(side, {}) for row in rows for side in SIDES):
            parts.append(_of_attacks(f"{_capital(share_found(FPR, sides))} on {target}, {output} output", rows, "tpr"))
    shown = [row[side].get("tpr", {}) for row in found["attacks"] for side in SIDES if side in row]
    parts += [] if all(map(supported, shown)) else [Text(f"{DAGGER} {unsupported(sides)}", style="dim")]
    parts.append(Text(f"{_REMARKS[found['same_images']]} {_TRAINING}", style="dim"))
    if found["utility"]:
        rows = [{"name": f"{row['encoder']}, {probe(row['measure'])}", **row} for row in found["utility"]]
        parts.append(_table("Utility", "encoder, measure", rows, estimate))
    if found["defenses"]:
        rows = [{"name": row["defense"], **row} for row in found["defenses"]]
        parts.append(_table("Defenses: AUC of the strongest attack, utility lost", "defense", rows, _defense_in_words))
    if "config" not in found:
        parts.append(Text("One of the reports does not hold its config: what differs there is not known."))
    elif not found["config"]:
        parts.append(Text("The configs are the same."))
    else:
        rows = [{"name": row["field"], **row} for row in found["config"]]
        parts.append(_table("Fields of the config that differ", "field", rows, _short))
    return Group(*parts)


def _read(folder: str) -> dict[str, Any]:
    """The report of a run."""
    path = f"{folder.rstrip('/')}/report.json"
    again = f"run encoder-audit report {folder}"
    if not storage.is_folder(folder):
        raise UserError(f"{folder} is no folder; give the folder of a run")
    if not storage.exists(path):
        raise UserError(f"{path} is not there; {again}")
    try:
        report = storage.read_json(path)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); {again}") from error
    known = schema()
    missing = [name for name in known["required"] if not isinstance(report, dict) or name not in report]
    if missing:
        raise UserError(f"{path} has no {missing[0]}; {again}")
    version = known["properties"]["schema_version"]["const"]
    if report["schema_version"] != version:
        raise UserError(f"{path} has schema_version {report['schema_version']}, expected {version}; {again}")
    return dict(report)


def _sides(values: Iterable[Any]) -> Row:
    return {side: value for side, value in zip(SIDES, values, strict=True) if value is not None}


def _entries(key: str, reports: Sequence[Report], part: Callable[[Report], Mapping[str, Any]]) -> list[Row]:
    """One row per name that a part of either report has, with its entry on both sides."""
    parts = [part(report) for report in reports]
    names = dict.fromkeys(name for one in parts for name in one)
    return [{key: name, **_sides(one.get(name) for one in parts)} for name in names]


def _attacks(first: Sequence[Row], second: Sequence[Row]) -> list[Row]:
    """All rows; side by side those alike in everything, and last checkpoints of what is alike but for the epoch."""
    pairs = _alike(first, second, _SAME)
    taken = {id(row) for pair in pairs for row in pair}
    last = [[row for row in final_rows(rows) if id(row) not in taken] for rows in (first, second)]
    pairs += _alike(last[0], last[1], _SAME[:-1])
    mates = {id(row): mate for row, mate in pairs}
    matched = {id(mate) for _, mate in pairs}
    return [
        *(_pair(row, mates.get(id(row))) for row in first),
        *(_pair(None, row) for row in second if id(row) not in matched),
    ]


def _alike(first: Sequence[Row], second: Sequence[Row], names: Sequence[str]) -> list[tuple[Row, Row]]:
    others = {tuple(row.get(name) for name in names): row for row in second}
    keys = [(row, tuple(row.get(name) for name in names)) for row in first]
    return [(row, others[key]) for row, key in keys if key in others]


def _pair(first: Row | None, second: Row | None) -> Row:
    rows = [row for row in (first, second) if row is not None]
    pair = {name: rows[0][name] for name in _SAME[:-1] if name in rows[0]} | {"known": known_in_words(rows[0])}
    pair |= _sides(None if row is None else _numbers(row) for row in (first, second))
    if len(rows) == 2:
        pair["difference"] = difference(*(Estimate.from_json(row["auc"]) for row in rows)).as_json()
    return pair


def _numbers(row: Row) -> Row:
    tpr = {"tpr": row["tpr_at_fpr"][FPR]} if FPR in row["tpr_at_fpr"] else {}
    kept = ("epoch", "seeds", "n_member", "n_nonmember", "auc")
    return {name: row[name] for name in kept if name in row} | tpr


def _same_images(first: Report, second: Report) -> str:
    """Whether both runs audited ``all`` the same images, ``some`` or, as far as their roles tell, ``none``.

    What an attack is fitted on (known samples) it is not judged on, so these have to be the same too.
    """
    audited = []
    for report in (first, second):
        names = CANDIDATE_ROLES if set(CANDIDATE_ROLES) <= report["data"]["roles"].keys() else TARGET_ROLES
        seeds = [seed["roles"] for seed in report["data"].get("per_seed", [report["data"]])]
        audited.append(
            {(name, roles[name]["sha256"]) for roles in seeds for name in (*names, *KNOWN_ROLES) if name in roles}
        )
    if audited[0] == audited[1]:
        return "all"
    shared = {digest for _, digest in audited[0]} & {digest for _, digest in audited[1]}
    return "some" if shared else "none"


def _defenses(report: Report) -> dict[str, Row]:
    kept = ("utility", "loss", "auc", "attack")
    return {
        f"{row['name']} on {target}": {name: row[name] for name in kept if name in row}
        for target, rows in defense_tables(report)
        for row in rows
    }


def _fields(first: Report, second: Report) -> Iterator[Row]:
    """Fields of two configs that differ, by their dotted names; one that a config lacks is absent on its side."""
    padded = _padded(first, second), _padded(second, first)
    before = dict(differing(padded[1], padded[0]))
    for name, after in differing(*padded):
        yield {"field": name, **_sides((before[name], after))}


def _padded(one: Any, other: Any) -> Any:
    """Plain values with the keys that another one has besides, as None."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: _padded(one.get(key), other.get(key)) for key in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_padded(*both) for both in zip(one, other, strict=True)]
    return one


def _verdict(found: Mapping[str, Any]) -> Table:
    rows = [{"name": "verdict", **{side: TITLES[verdict] for side, verdict in found["verdict"].items()}}]
    rows += [
        {"name": _MEASURED[row["name"]], **{side: estimate(row[side], 3) for side in SIDES if side in row}}
        for row in found["validity"]
    ]
    return _table("Verdict", "", rows, str)


def _made_of(found: Mapping[str, Any]) -> Table:
    rows = [
        {
            "name": row["role"],
            **{side: _images(row[side]) for side in SIDES if side in row},
            "same": _same(row, "sha256"),
        }
        for row in found["roles"]
    ]
    rows += [
        {
            "name": row["encoder"],
            **{side: _encoder(row[side]) for side in SIDES if side in row},
            "same": _same(row, "fingerprint"),
        }
        for row in found["encoders"]
    ]
    return _table("Images and encoders", "", rows, str, same="same")


def _same(row: Row, key: str) -> str:
    return "yes" if all(side in row for side in SIDES) and row[SIDES[0]][key] == row[SIDES[1]][key] else "no"


def _images(role: Row) -> str:
    return f"{count(role['n'])} images"


def _encoder(entry: Row) -> str:
    if "load" in entry:
        return str(entry["load"])
    epochs = f"{entry['epochs']} epochs" if "epochs" in entry else ""
    return ", ".join(filter(None, (entry.get("objective"), entry.get("backbone"), epochs)))


def _of_attacks(title: str, rows: Sequence[Row], name: str) -> Table:
    several = len({epoch for row in rows for epoch in _epochs(row)}) > 1
    told = [
        {
            "name": f"{row['attack']}\n  {_details(row, several)}",
            **{side: estimate(row[side][name]) for side in SIDES if name in row.get(side, {})},
            **({"difference": estimate(row["difference"], 3)} if "difference" in row else {}),
        }
        for row in rows
    ]
    return _table(title, "attack", told, str, **({"difference": "difference"} if name == "auc" else {}))


def _details(row: Row, several: bool) -> str:
    """What an attack was fitted on, its settings and, where there are ``several``, the checkpoints."""
    epochs = " and ".join(dict.fromkeys(str(epoch) for epoch in _epochs(row)))
    return ", ".join(filter(None, (row["known"], row.get("settings"), f"epoch {epochs}" if several and epochs else "")))


def _epochs(row: Row) -> list[int]:
    return [row[side]["epoch"] for side in SIDES if "epoch" in row.get(side, {})]


def _defense_in_words(entry: Row) -> str:
    lost = f"{percent(round(entry['loss'], 3))} lost" if "loss" in entry else ""
    return ", ".join(filter(None, (estimate(entry["auc"]) if "auc" in entry else "", lost)))


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _table(title: str, name: str, rows: Iterable[Row], words: Callable[[Any], str], **more: str) -> Table:
    """Rows with a name and both sides; a side without an entry says so, and ``more`` are further columns."""
    table = Table(
        title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for column in (name, *SIDES, *more.values()):
        table.add_column(column, overflow="fold")
    for row in rows:
        told = [Text(words(row[side])) if side in row else Text("not there", style="dim") for side in SIDES]
        table.add_row(Text(row["name"]), *told, *(Text(row.get(key, "")) for key in more))
    return table
