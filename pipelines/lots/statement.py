"""A claim as a statement to hand over, and its check without the vault.

A statement is two files. ``statement.json`` has the headers and their commitments, the salts, the beacons, what was
registered, the result, and for each release the nodes that lead from the opened leaves to the root. ``opened.parquet``
has a row for each image that was asked about: its leaf's content and blinding number, and the answers. Images that were
not asked about stay closed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.checks import ConfigError
from mi_core.lots.commitment import Header, Unit, text_digest
from mi_core.lots.draw import draw
from mi_core.lots.drawn import asking_order, counted_against, joined_draws, waves_of
from mi_core.lots.merkle import proof_of, root_from
from mi_core.lots.verdict import ALL, ClaimResult, judge_claim
from mi_core.report.statement import differences
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.vault import LONE, Release, contents_of
from pipelines.report.bindings import file_digest
from pipelines.report.verify import FAILS, HOLDS, NEAR, NOTE, OPEN, Check

KIND = "encoder-audit claim, version 1"
STATEMENT, OPENED = "statement.json", "opened.parquet"
_MOST = 6  # fields that one line names
SCORES, CAPTION_SCORES = ("score-0", "score-1"), ("caption-0", "caption-1")


@dataclass(frozen=True)
class Asked:
    """Questions and answers.

    Args:
        order: (M,) numbers of the units over all releases, in the order of asking.
        scores: (M, 2) of both versions; captions: (M, 2) of both captions; NaN: there is none.
    """

    order: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    captions: npt.NDArray[np.float64]


def write_statement(
    folder: str,
    releases: Sequence[Release],
    registered: Mapping[str, Any],
    asked: Asked,
    result: ClaimResult,
    seed: str,
) -> None:
    """Write both files of a statement into the folder of the claim; ``seed``: of `judge_claim`."""
    starts = np.cumsum([0, *(len(release.units) for release in releases)])
    tables, parts = [], []
    for number, release in enumerate(releases):
        mine = np.flatnonzero((asked.order >= starts[number]) & (asked.order < starts[number + 1]))
        units = asked.order[mine] - starts[number]
        contents = list(contents_of(release.units.take(pa.array(units))))
        opened = sorted(units.tolist())
        entry = {
            "header": release.header.as_json(),
            "commitment": release.header.commitment,
            "drawing": release.drawing,
            "salt": release.secret["salt"],
            "albums": list(release.strata),
            "proof": [node.hex() for node in proof_of(release.leaves(), opened)] if opened else [],
        }
        parts.append(entry)
        columns: dict[str, Any] = {
            "release": np.full(len(units), number),
            "unit": units,
            "blind": [release.blind(unit) for unit in units.tolist()],
            "versions": [list(unit.versions) for unit in contents],
            "captions": [list(unit.captions) for unit in contents],
        }
        for names, values in ((SCORES, asked.scores), (CAPTION_SCORES, asked.captions)):
            columns |= {name: values[mine, at] for at, name in enumerate(names)}
        tables.append(pa.table(columns, _OPENED))
    storage.write_table(f"{folder}/{OPENED}", pa.concat_tables(tables))
    told = {"kind": KIND, "releases": parts, "registered": dict(registered)}
    told |= {"seed": seed, "result": result.as_json()}
    told["opened"] = {"name": OPENED, "sha256": file_digest(f"{folder}/{OPENED}"), "rows": len(asked.order)}
    storage.write_json(f"{folder}/{STATEMENT}", told)


_OPENED = pa.schema(
    {
        "release": pa.int64(),
        "unit": pa.int64(),
        "blind": pa.binary(),
        "versions": pa.list_(pa.string()),
        "captions": pa.list_(pa.string()),
        **{name: pa.float64() for name in (*SCORES, *CAPTION_SCORES)},
    }
)


def is_claim(file: str) -> bool:
    """Tell whether a file is the statement of a claim."""
    try:
        content = storage.read_json(file)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("kind") == KIND


def verify_claim(file: str, folder: str | None = None) -> list[Check]:
    """Check the statement of a claim, offline and without the vault.

    Args:
        file: statement.json.
        folder: that holds opened.parquet; None: that of the file.

    Raises:
        UserError: a file is missing, damaged or no statement of a claim.
    """
    if not is_claim(file):
        raise UserError(f"{file} is no statement of a claim")
    stated = storage.read_json(file)
    place = folder or storage.absolute(file).rpartition("/")[0]
    try:
        return list(_checks(stated, f"{place}/{OPENED}"))
    except (KeyError, TypeError, IndexError, pa.ArrowInvalid) as error:
        raise UserError(f"{file} is damaged ({type(error).__name__}: {error})") from error


def _checks(stated: Mapping[str, Any], opened: str) -> Iterator[Check]:
    if not storage.exists(opened):
        raise UserError(f"{opened} is missing; it belongs to the statement")
    same = file_digest(opened) == stated["opened"]["sha256"]
    yield Check(
        "opened", HOLDS if same else FAILS, f"{OPENED} {'is as stated' if same else 'has other bytes than stated'}"
    )
    table = storage.read_table(opened)
    headers, faults = [], []
    for number, entry in enumerate(stated["releases"], start=1):
        try:
            header = Header.from_json(entry["header"])
            faults += [f"release {number}: {fault}" for fault in _faults_of_release(header, entry, table, number - 1)]
            headers.append(header)
        except ConfigError as error:
            faults.append(f"release {number}: {error}")
    yield from _lines(
        "commitment", faults, "images, salts and designs are those of the commitments, and the coins follow from them"
    )
    if faults:
        return
    yield from _check_drawings(stated["releases"], headers)
    yield from _check_result(stated, headers, table)


def _lines(about: str, faults: Sequence[str], fine: str) -> list[Check]:
    return [Check(about, FAILS, fault) for fault in faults] or [Check(about, HOLDS, fine)]


def _faults_of_release(header: Header, entry: Mapping[str, Any], table: pa.Table, number: int) -> Iterator[str]:
    if header.commitment != entry["commitment"]:
        yield f"its header does not have the commitment {entry['commitment']}"
    if text_digest(entry["salt"]) != header.salt_sha256:
        yield "its salt is not the one that was committed"
    if bool(entry["drawing"]["beacon"]) != bool(header.beacon):
        yield "it was committed with a beacon and drawn without one, or the other way round"
    leaves = {
        row["unit"]: Unit(tuple(row["versions"]), tuple(row["captions"])).leaf(row["blind"])
        for row in table.select(["release", "unit", "versions", "captions", "blind"]).to_pylist()
        if row["release"] == number
    }
    if leaves:
        found = root_from(sum(header.design.sizes), leaves, [bytes.fromhex(node) for node in entry["proof"]])
        if found.hex() != header.root:
            yield "the opened images are not those that were committed"


def _check_drawings(entries: Sequence[Mapping[str, Any]], headers: Sequence[Header]) -> Iterator[Check]:
    for number, (entry, header) in enumerate(zip(entries, headers, strict=True), start=1):
        drawing = entry["drawing"]
        if drawing["by"] == LONE:
            yield Check("draw", NOTE, f"release {number} was DRAWN BY THE OWNER ALONE: many lots may have been tried")
        else:
            yield Check(
                "draw",
                OPEN,
                f"release {number}: look up that {header.beacon} was {drawing['beacon']}, and that the commitment "
                f"{header.commitment} was known before",
            )


def _check_result(stated: Mapping[str, Any], headers: Sequence[Header], table: pa.Table) -> Iterator[Check]:
    """Tell whether all was asked that had to be, and whether the answers give the stated result."""
    registered, result = stated["registered"], stated["result"]
    sizes = [sum(header.design.sizes) for header in headers]
    starts = np.cumsum([0, *sizes])
    rows = starts[np.asarray(table["release"])] + np.asarray(table["unit"])
    order = asking_order([header.commitment for header in headers], sizes)
    waves = waves_of(sizes)
    faults = []
    place = np.argsort(np.argsort(order)[rows]) if len(rows) else rows
    if set(rows.tolist()) != set(order[: len(rows)].tolist()):
        faults.append("the images that were asked about are not the first in the order that the commitment fixes")
    elif registered["counted"] == ALL and len(rows) < len(order):
        faults.append(f"{len(order) - len(rows)} images were not asked about, though all were to be")
    yield from _lines("completeness", faults, f"{len(rows):,} of {len(order):,} images were asked about, none left out")
    if faults:
        return
    sorted_rows = np.empty_like(rows)
    sorted_rows[place] = np.arange(len(rows))
    designs, entries = [header.design for header in headers], stated["releases"]
    draws = [draw(one, entry["salt"], entry["drawing"]["beacon"]) for one, entry in zip(designs, entries, strict=True)]
    drawn = joined_draws(designs, [entry["albums"] for entry in entries], draws, captions=registered["captions"])
    scores, captions = (
        np.stack([np.asarray(table[name]) for name in names], axis=1)[sorted_rows] for names in (SCORES, CAPTION_SCORES)
    )
    asked = order[: len(rows)]
    scores, texts = counted_against(scores, captions, drawn, asked)
    found = judge_claim(
        drawn,
        asked,
        waves[: len(rows)],
        scores,
        texts,
        counted=registered["counted"],
        questions_asked=registered["number"],
        seed=stated["seed"],
    ).as_json()
    changed = differences(result, json.loads(json.dumps(found)), tolerance=NEAR)
    yield from _lines(
        "result",
        [f"the answers give another {', '.join(changed[:_MOST])} than stated"] if changed else [],
        f"{result['verdict']} follows from the answers by the exact test of the draw",
    )
    yield Check("question", NOTE, f"question {registered['number']} about this lot, by the owner's own count")
    yield Check("encoder", OPEN, f"that the answers are those of {registered['encoder']}: ask it again to see")
