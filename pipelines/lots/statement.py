"""A claim as a statement to hand over, written and read; `pipelines.lots.verify` checks it.

A statement is two files. ``statement.json`` has the chain of the lot up to the question, for each release its beacon,
salt, albums, and the nodes that lead from the opened leaves to the root, then the answers' link and the result.
``opened.parquet`` has a row for each image that was asked about: its leaf's content and blinding number, and the
answers. Images that were not asked about stay closed.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mi_core.captions import CREDITS
from mi_core.checks import ConfigError
from mi_core.lots import commitment
from mi_core.lots.draw import Drawn, counted_against, draw, joined_draws
from mi_core.lots.merkle import proof_of
from mi_core.lots.verdict import ClaimResult, judge_claim
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.vault import STAMPS, Lot, Release, contents_of
from pipelines.report.bindings import file_digest

KIND = "encoder-audit claim, version 1"
STATEMENT, OPENED = "statement.json", "opened.parquet"
ANSWERS = ("score", *(f"caption-{number}" for number in range(CREDITS)))
"""The answers about an image: of the image alone, and of it with each caption."""
Answers = npt.NDArray[np.float64]


def answers_in(table: pa.Table) -> Answers:
    """The answers (M, 1 + K) of a table; NaN: there is none."""
    return np.stack([np.asarray(table[name]) for name in ANSWERS], axis=1)


def judge_answers(
    drawn: Drawn,
    units: npt.NDArray[np.int64],
    waves: npt.NDArray[np.int64],
    answers: Answers,
    chain: Sequence[commitment.Link],
    question: commitment.Question,
    nonce: str,
) -> ClaimResult:
    """Judge the answers (M, 1 + K) to a question of a chain; ``drawn``, ``units`` and ``waves`` as in `judge_claim`."""
    scores = counted_against(answers, drawn, units)
    number, counted = commitment.number_of(chain, question), question.plan["counted"]
    return judge_claim(drawn, units, waves, *scores, counted=counted, questions_asked=number, seed=nonce)


def write_statement(
    lot: Lot,
    releases: Sequence[Release],
    question: commitment.Question,
    value: str,
    order: npt.NDArray[np.int64],
    answers: Answers,
    result: ClaimResult,
) -> str:
    """Write both files of a statement into the folder of the claim.

    Args:
        lot, releases: that were asked about.
        question: that was registered.
        value: of the later number that decided the nonce; empty: there is none.
        order: (M,) numbers of the units over all releases, in the order of asking.
        answers: (M, 1 + K); NaN: there is none.
        result: of `judge_claim`.

    Returns:
        The number of the answers: 64 hex digits.
    """
    folder = f"{lot.claims}/{question.commitment[:12]}"
    headers = [release.header for release in releases]
    chain = lot.chain()
    places = [link.commitment for link in chain]
    wanted = {question.commitment, *(header.commitment for header in headers)}
    chain = chain[: 1 + max(place for place, number in enumerate(places) if number in wanted)]
    starts = np.cumsum([0, *(len(release.units) for release in releases)])
    tables, parts = [], []
    for number, release in enumerate(releases):
        mine = np.flatnonzero((order >= starts[number]) & (order < starts[number + 1]))
        units = order[mine] - starts[number]
        contents = list(contents_of(release.units.take(pa.array(units))))
        opened = sorted(units.tolist())
        proof = [node.hex() for node in proof_of(release.leaves(), opened)] if opened else []
        told = {"beacon": release.drawing["beacon"], "salt": release.secret["salt"], "albums": list(release.strata)}
        parts.append(told | {"proof": proof})
        columns: dict[str, Any] = {
            "release": np.full(len(units), number),
            "unit": units,
            "blind": [release.blind(unit) for unit in units.tolist()],
            "sha256": [unit.sha256 for unit in contents],
            "captions": [list(unit.captions) for unit in contents],
            **dict(zip(ANSWERS, answers[mine].T, strict=True)),
        }
        tables.append(pa.table(columns, _OPENED))
    storage.write_table(f"{folder}/{OPENED}", pa.concat_tables(tables))
    rows = {"name": OPENED, "sha256": file_digest(f"{folder}/{OPENED}"), "rows": len(order)}
    link = {"previous": question.commitment, "value": value, "opened": rows}
    stamps = storage.list_files(f"{lot.path}/{STAMPS}")
    content = {
        "kind": KIND,
        "grade": commitment.grade_of(headers, question),
        "result": result.as_json(),
        "chain": [link.as_json() for link in chain],
        "releases": parts,
        "question": question.commitment,
        "answers": link,
        "stamps": [base64.b64encode(storage.read_bytes(path)).decode() for path in stamps],
    }
    storage.write_json(f"{folder}/{STATEMENT}", content)
    return commitment.entry_digest(link)


_OPENED = pa.schema(
    {
        "release": pa.int64(),
        "unit": pa.int64(),
        "blind": pa.binary(),
        "sha256": pa.string(),
        "captions": pa.list_(pa.string()),
        **{name: pa.float64() for name in ANSWERS},
    }
)


def is_claim(file: str) -> bool:
    """Tell whether a file is the statement of a claim."""
    try:
        content = storage.read_json(file)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("kind") == KIND


@dataclass(frozen=True)
class Stated:
    """A statement that was read: its entries, and the rows of opened.parquet."""

    entries: Mapping[str, Any]
    opened: pa.Table

    @classmethod
    def read(cls, file: str) -> Stated:
        """Raises UserError: a file is missing or no statement of a claim."""
        if not is_claim(file):
            raise UserError(f"{file} is no statement of a claim")
        opened = f"{storage.absolute(file).rpartition('/')[0]}/{OPENED}"
        if not storage.exists(opened):
            raise UserError(f"{opened} is missing; it belongs to the statement")
        return cls(storage.read_json(file), storage.read_table(opened))

    @cached_property
    def chain(self) -> list[commitment.Link]:
        """The links. Raises ConfigError: one is none."""
        return [commitment.link_from_json(entry) for entry in self.entries["chain"]]

    @cached_property
    def headers(self) -> list[commitment.Header]:
        """Of all releases that were asked about."""
        return [link for link in self.chain if isinstance(link, commitment.Header)]

    @cached_property
    def question(self) -> commitment.Question:
        """The question that the answers are to. Raises ConfigError: it is not in the chain."""
        wanted = self.entries["answers"]["previous"]
        for link in self.chain:
            if isinstance(link, commitment.Question) and link.commitment == wanted:
                return link
        raise ConfigError("the answers follow no question of the chain")

    @property
    def value(self) -> str:
        """Of the later number that decided the nonce."""
        return str(self.entries["answers"]["value"])

    @cached_property
    def nonce(self) -> str:
        """Of the views."""
        headers = commitment.headers_before(self.chain, self.question)
        beacons = [entry["beacon"] for entry in self.entries["releases"]]
        return commitment.nonce_of(headers, beacons[: len(headers)], self.question, self.value)

    @cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """(M,) numbers over all releases of the units in opened.parquet."""
        starts = np.cumsum([0, *(sum(header.design.sizes) for header in self.headers)])
        return np.asarray(starts[np.asarray(self.opened["release"])] + np.asarray(self.opened["unit"]))

    @cached_property
    def drawn(self) -> Drawn:
        """The coins of all releases, drawn anew from salts and beacons."""
        designs, entries = [header.design for header in self.headers], self.entries["releases"]
        draws = [draw(one, entry["salt"], entry["beacon"]) for one, entry in zip(designs, entries, strict=True)]
        albums = [entry["albums"] for entry in entries]
        return joined_draws(designs, albums, draws, captions=self.question.plan["captions"])

    @property
    def answers(self) -> Answers:
        """(M, 1 + K) as opened.parquet has them."""
        return answers_in(self.opened)
