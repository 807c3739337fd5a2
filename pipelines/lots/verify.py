"""Check the statement of a claim, offline and without the vault.

All follows from the statement but the answers themselves: `pipelines.lots.again` asks for some of them anew.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mi_core.checks import ConfigError
from mi_core.lots import commitment
from mi_core.lots.draw import asking_order, beacon_fault, waves_of
from mi_core.lots.merkle import root_from
from mi_core.lots.verdict import USED
from mi_core.lots.words import CHOSEN, MEANINGS
from mi_core.report.statement import differences
from pipelines.console import count_of
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.question import chosen_parts, whole
from pipelines.lots.statement import OPENED, Stated, judge_answers
from pipelines.report.bindings import file_digest
from pipelines.report.statement import FAILS, HOLDS, NEAR, NOTE, OPEN, Check
from pipelines.run.registration import code_digest

ENCODER = "encoder"
"""The check that the answers are the encoder's."""
_MOST = 6  # fields that one line names
_MOST_COSINE = 1 + 1e-4
_FIRST = (OPEN, FAILS)  # outcomes that stand before all others


def verify_claim(file: str, *, roots: str | None = None, again: Check | None = None) -> list[Check]:
    """Check the statement of a claim, offline and without the vault: first what cannot be checked, then what fails.

    Args:
        file: statement.json, with opened.parquet beside it.
        roots: file (PEM) of certificates that time stamps are checked by; None: the stamps' signatures stay open.
        again: what asking the encoder again has shown; None: nobody asked.

    Raises:
        UserError: a file is missing, damaged or no statement of a claim.
    """
    stated = Stated.read(file)
    try:
        checks = list(_checks(stated, f"{storage.absolute(file).rpartition('/')[0]}/{OPENED}", roots))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, pa.ArrowInvalid) as error:
        raise UserError(f"{file} is damaged ({type(error).__name__}: {error})") from error
    text = "nobody asked the encoder again here, so the answers are unchecked; with the lot at hand give --encoder"
    checks.insert(0, again or Check(ENCODER, OPEN, text))
    return sorted(checks, key=lambda check: _FIRST.index(check.outcome) if check.outcome in _FIRST else len(_FIRST))


def in_a_line(stated: Stated, checks: Sequence[Check]) -> str:
    """The outcome of all checks in a sentence."""
    failed = sum(check.outcome == FAILS for check in checks)
    if failed:
        return f"DOES NOT HOLD: {count_of(failed, 'check FAILS', 'checks FAIL')}, so the statement shows nothing."
    verdict = stated.entries["result"]["verdict"]
    said = f"The statement says {verdict.upper()}, grade: {stated.entries['grade']}."
    if any(check.about == ENCODER and check.outcome == HOLDS for check in checks):
        innocent = "" if verdict == USED else " That does not prove that the images were not used."
        return f"CHECKED. {said}{innocent} Lines that begin with open still have to be looked up."
    return f"CANNOT TELL. {said} Nothing here shows that its answers are the encoder's: ask the encoder again."


def _lines(about: str, faults: Sequence[str], fine: str) -> list[Check]:
    return [Check(about, FAILS, fault) for fault in faults] or [Check(about, HOLDS, fine)]


def _checks(stated: Stated, opened: str, roots: str | None) -> Iterator[Check]:
    answers = stated.entries["answers"]
    same = file_digest(opened) == answers["opened"]["sha256"]
    yield from _lines("opened", [] if same else [f"{OPENED} has other bytes than stated"], f"{OPENED} is as stated")
    try:
        faults = list(_faults_of_links(stated))
    except ConfigError as error:
        faults = [str(error)]
    number = commitment.entry_digest(answers)
    yield from _lines("chain", faults, f"releases, question and answers follow each other; the answers are {number}")
    if faults:
        return
    faults = [
        f"release {place + 1}: {fault}"
        for place, (header, entry) in enumerate(zip(stated.headers, stated.entries["releases"], strict=True))
        for fault in _faults_of_release(header, entry, stated.opened, place)
    ]
    fine = "images, albums, salts and designs are those of the commitments, and the coins follow from them"
    yield from _lines("commitment", faults, fine)
    if faults:
        return
    yield from _check_drawings(stated)
    yield from _check_question(stated)
    yield from _check_stamps(stated, roots)
    yield from _check_result(stated)


def _faults_of_links(stated: Stated) -> Iterator[str]:
    yield from commitment.faults_of_chain(stated.chain)
    question = stated.question
    after = len(stated.headers) - len(commitment.headers_before(stated.chain, question))
    if stated.entries["question"] != question.commitment:
        yield "the question is not the one that the answers follow"
    if len(stated.entries["releases"]) != len(stated.headers):
        yield f"{len(stated.headers)} releases are committed, and {len(stated.entries['releases'])} are opened"
    if after and question.plan["counted"] != commitment.UNTIL_DECIDED:
        yield f"{after} releases came after the question"
    if question.plan["counted"] != stated.headers[0].counted:
        yield f"the first release says that {stated.headers[0].counted} images count, not {question.plan['counted']}"
    if bool(question.decided_by) != bool(stated.value):
        yield "the question was to be decided by a later number and was not, or the other way round"
    elif question.decided_by and (fault := beacon_fault(question.decided_by, stated.value)):
        yield f"the question: {fault}"
    if len({header.salt_sha256 for header in stated.headers}) < len(stated.headers):
        yield "two releases have one salt, so that their coins are not independent"
    sizes = np.array([sum(header.design.sizes) for header in stated.headers])
    release, unit = (np.asarray(stated.opened[name]) for name in ("release", "unit"))
    if not (
        (release >= 0) & (release < len(sizes)) & (unit >= 0) & (unit < sizes[release.clip(0, len(sizes) - 1)])
    ).all():
        yield f"{OPENED} names images that no release has"


def _faults_of_release(
    header: commitment.Header, entry: Mapping[str, Any], table: pa.Table, number: int
) -> Iterator[str]:
    if commitment.text_digest(entry["salt"]) != header.salt_sha256:
        yield "its salt is not the one that was committed"
    albums = entry["albums"]
    if commitment.entry_digest(albums) != header.albums_sha256 or len(albums) != len(header.design.sizes):
        yield "its albums are not those that were committed"
    if bool(entry["beacon"]) != bool(header.beacon):
        yield "it was committed with a beacon and drawn without one, or the other way round"
    elif header.beacon and (fault := beacon_fault(header.beacon, entry["beacon"])):
        yield fault
    leaves: dict[int, bytes] = {}
    for row in table.select(["release", "unit", "sha256", "captions", "blind"]).to_pylist():
        if row["release"] == number:
            unit = commitment.Unit(row["sha256"], tuple(row["captions"]))
            leaves[row["unit"]] = unit.leaf(row["blind"])
            if fault := unit.fault(row["blind"], header.design):
                yield f"image {row['unit']} {fault}"
    if leaves:
        try:
            found = root_from(sum(header.design.sizes), leaves, [bytes.fromhex(node) for node in entry["proof"]])
        except ConfigError:
            found = b""
        if found.hex() != header.root:
            yield "the opened images are not those that were committed"


def _check_drawings(stated: Stated) -> Iterator[Check]:
    for number, (entry, header) in enumerate(zip(stated.entries["releases"], stated.headers, strict=True), start=1):
        text = (
            f"release {number}: look up that {header.beacon} was {entry['beacon']}, in exactly these characters, and "
            f"that somebody else knew the commitment {header.commitment} before that number came out; else the draw is "
            "the owner's own"
        )
        alone = (
            f"release {number} was DRAWN BY THE OWNER ALONE: he may have drawn many lots and kept the luckiest, "
            f"unless the commitment {header.commitment} was known before the encoder was made"
        )
        yield Check("draw", OPEN, text if header.beacon else alone)


def _check_question(stated: Stated) -> Iterator[Check]:
    question, grade = stated.question, commitment.grade_of(stated.headers, stated.question)
    faults = [] if stated.entries["grade"] == grade else [f"the grade is {grade}, not {stated.entries['grade']}"]
    yield Check("grade", FAILS if faults else NOTE, faults[0] if faults else f"{grade}: {MEANINGS[grade]}")
    chosen = ", ".join(CHOSEN.get(part, part) for part in question.given if part != commitment.ENCODER)
    unasked = any(header.design.captions for header in stated.headers) and not question.plan["captions"]
    for text, applies in {
        f"look up that {question.decided_by} was {stated.value}, in exactly these characters, and that somebody else "
        f"knew the registration {question.commitment} before; else the claim is the owner's word": question.decided_by,
        f"the owner chose {chosen}: ask the provider whether the encoder is used like that": chosen,
        "captions were drawn, and the encoder was not asked about them: look up that it reads no texts": unasked,
    }.items():
        if applies:
            yield Check("question", OPEN, text)
    yield from _check_plan(question)
    before = [
        link.encoder
        for link in stated.chain
        if isinstance(link, commitment.Question) and link.commitment != question.commitment
    ]
    number = commitment.number_of(stated.chain, question)
    earlier = f"; the chain has others about {', '.join(before[:_MOST])}" if before else ""
    yield Check("question", NOTE, f"question {number} about this lot that the chain shows{earlier}")


def _check_plan(question: commitment.Question) -> Iterator[Check]:
    """Tell whether the parts of the plan that nobody chose are those that the encoder's name settles."""
    address = question.encoder.partition(", model ")[0]
    if commitment.ENCODER in question.given:
        return
    try:
        parts = chosen_parts(address, whole({}), question.plan)
    except ConfigError:
        yield Check("question", OPEN, f"{question.encoder} is not known here, so its usual views and size are not")
        return
    hidden = [part for part in parts if part not in question.given]
    own = dict(question.tool) == json.loads(json.dumps(code_digest()))
    version = "" if own else "; perhaps another version of the tool would: then check with that"
    yield from _lines(
        "question",
        [f"encoder and lot do not settle {', '.join(hidden)} as registered{version}"] if hidden else [],
        "encoder and lot settle how it is asked" + (", but for what the owner chose" if question.given else ""),
    )


def _check_stamps(stated: Stated, roots: str | None) -> Iterator[Check]:
    """Check the time stamps (RFC 3161) of the numbers of the chain."""
    if not stated.entries["stamps"]:
        return
    try:
        from cryptography import x509
        from rfc3161_client import VerificationError, VerifierBuilder, decode_timestamp_response
    except ImportError:
        yield Check("stamp", OPEN, "there are time stamps; pip install 'encoder-audit[stamps]' to check them")
        return
    known = {link.commitment: link for link in stated.chain}
    for text in stated.entries["stamps"]:
        try:
            token = decode_timestamp_response(base64.b64decode(text))
            digest, at = token.tst_info.message_imprint.message, token.tst_info.gen_time
        except ValueError as error:
            yield Check("stamp", FAILS, f"a time stamp cannot be read ({error})")
            continue
        if digest.hex() not in known:
            yield Check("stamp", NOTE, f"a time stamp of {at} is of no number in the chain")
        elif roots is None:
            yield Check("stamp", OPEN, f"{digest.hex()} is stamped {at}; give --roots to check who signed that")
        else:
            authorities = VerifierBuilder()
            for one in x509.load_pem_x509_certificates(storage.read_bytes(roots)):
                authorities = authorities.add_root_certificate(one)
            try:
                authorities.build().verify(token, digest)
                yield Check("stamp", HOLDS, f"{digest.hex()} was known at {at}, by an authority of {roots}")
            except VerificationError as error:
                yield Check("stamp", FAILS, f"the time stamp of {at} is of no authority of {roots} ({error})")


def _check_result(stated: Stated) -> Iterator[Check]:
    """Tell whether all was asked that had to be, and whether the answers give the stated result."""
    question, result, headers, rows = stated.question, stated.entries["result"], stated.headers, stated.rows
    sizes = [sum(header.design.sizes) for header in headers]
    order, waves = asking_order([header.commitment for header in headers], sizes), waves_of(sizes)
    faults = []
    if sorted(rows.tolist()) != sorted(order[: len(rows)].tolist()):
        faults.append("the images that were asked about are not the first in the order that the commitment fixes")
    elif question.plan["counted"] == commitment.ALL and len(rows) < len(order):
        faults.append(f"{len(order) - len(rows)} images were not asked about, though all were to be")
    elif 0 < len(rows) < len(order) and waves[len(rows) - 1] == waves[len(rows)]:
        faults.append("the images that were asked about end within a wave")
    if (np.abs(stated.answers) > _MOST_COSINE).any():
        faults.append("some answers are no cosines")
    gone = int(np.isnan(stated.answers[:, 0]).sum())
    fine = f"{len(rows):,} of {len(order):,} images were asked about, none left out"
    lost = f"; {gone:,} gave no answer, which counts against the claim" if gone else ""
    yield from _lines("completeness", faults, fine + lost)
    if faults:
        return
    asked, place = order[: len(rows)], np.empty(len(order), dtype=np.int64)
    place[rows] = np.arange(len(rows))
    found = judge_answers(
        stated.drawn, asked, waves[: len(rows)], stated.answers[place[asked]], stated.chain, question, stated.nonce
    ).as_json()
    changed = differences(result, json.loads(json.dumps(found)), tolerance=NEAR)
    yield from _lines(
        "result",
        [f"the answers give another {', '.join(changed[:_MOST])} than stated"] if changed else [],
        f"if the answers are true, {result['verdict'].upper()} follows by the exact test of the draw",
    )
