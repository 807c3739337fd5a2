"""The registration of an audit: what its verdict will rest on, written down before the target is queried.

Its file holds one line of JSON for every event, in their order: ``roles`` when images have their roles, ``plan`` when
it is settled what is judged and how, ``start`` whenever the target is about to be queried, ``look`` whenever a report
is written. Every line has the time and the SHA-256 of the line before it, so that none can be changed or taken out
without changing all that follow.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mi_core.provenance import now

ROLES, PLAN, START, LOOK = "roles", "plan", "start", "look"
"""The kinds of events."""
DECISIVE = ("primary_attack", "output", "epoch", "nonce", "by", "factor", "references")
"""The parts of a plan that a verdict rests on."""
OF_BOUND = (*DECISIVE, "bound")
"""The parts that the answer to `validity.bound` rests on; the verdict does not ask for it."""
Line = Mapping[str, Any]
_CHAIN = ("time", "previous", "sha256")  # what a line holds besides what happened
_FIRST = "0" * 64


def lines_in(file: bytes) -> list[dict[str, Any]]:
    """The lines of a file.

    Raises:
        TypeError, ValueError: a line cannot be read, or is cut off.
    """
    *lines, rest = file.decode().split("\n")
    if rest:
        raise ValueError(f"line {len(lines) + 1} is cut off")
    return [dict(json.loads(line)) for line in lines]


def next_line(lines: Sequence[Line], event: str, content: Mapping[str, Any]) -> Line | None:
    """The line of an event after others; None: roles or a plan as the last line of their kind has them."""
    told = json.loads(json.dumps({"event": event, **content}))
    last = next((without_chain(line) for line in reversed(lines) if line["event"] == event), None)
    if event in (ROLES, PLAN) and last == told:
        return None
    line = {"time": now(), "previous": lines[-1]["sha256"] if lines else _FIRST, **told}
    return {**line, "sha256": line_digest(line)}


def file_of(lines: Sequence[Line]) -> bytes:
    """The content of the file that holds some lines."""
    return "".join(f"{_text(one)}\n" for one in lines).encode()


def without_chain(line: Line) -> dict[str, Any]:
    """The event of a line, without the time and the digests."""
    return {name: part for name, part in line.items() if name not in _CHAIN}


def line_digest(line: Line) -> str:
    """The SHA-256 of a line without its own: 64 hex digits."""
    return hashlib.sha256(_text({name: part for name, part in line.items() if name != "sha256"}).encode()).hexdigest()


def _text(line: Line) -> str:
    return json.dumps(line, sort_keys=True, ensure_ascii=False)


def faults_of(lines: Sequence[Line]) -> list[str]:
    """The faults of the chain: lines that were changed, or whose predecessor is another one."""
    faults, previous = [], _FIRST
    for number, line in enumerate(lines, start=1):
        if line.get("sha256") != line_digest(line):
            faults.append(f"line {number} does not have its sha256")
        if line.get("previous") != previous:
            faults.append(f"line {number} does not follow line {number - 1}")
        previous = str(line.get("sha256"))
    return faults


def is_after_looking(lines: Sequence[Line], parts: Sequence[str] = DECISIVE) -> bool:
    """Tell whether the images, or what the verdict rests on, were chosen after the first start of the queries.

    What counts of a plan is ``parts``, and that no attack is left out: some that are added change nothing.
    """
    first = next((number for number, line in enumerate(lines) if line["event"] == START), len(lines))
    for event, names in ((ROLES, ("roles",)), (PLAN, parts)):
        kind = [line for line in lines if line["event"] == event]
        told = [[line.get(name) for name in names] for line in kind]
        attacks = [set(map(_text, line.get("attacks", ()))) for line in kind]
        before = sum(line["event"] == event for line in lines[:first])
        begun, later = max(0, before - 1), range(before, len(kind))
        if any(told[row] != told[begun] or attacks[begun] - attacks[row] for row in later) or (told and not before):
            return True
    return False


def attempts(lines: Sequence[Line], output: str | None = None) -> tuple[int, dict[str, int]]:
    """How many reports were written, and by target how many different attacks were ever planned.

    Args:
        lines: of a run.
        output: on which attacks count; None: on any, each output by itself.
    """
    planned = {
        _text(attack): attack["target"]
        for line in lines
        if line["event"] == PLAN
        for attack in line.get("attacks", ())
        if output in (None, attack["output"])
    }
    return sum(line["event"] == LOOK for line in lines), dict(Counter(planned.values()))


def registration_as_json(lines: Sequence[Line]) -> dict[str, Any]:
    """The registration as a report tells it; empty where nothing was planned."""
    plan = next((line for line in lines if line["event"] == PLAN), None)
    if plan is None:
        return {}
    reports, attacks = attempts(lines)
    return {
        "nonce": plan["nonce"],
        "time": plan["time"],
        "sha256": lines[-1]["sha256"],
        "reports": reports,
        "attacks": sum(attacks.values()),
        "after_looking": is_after_looking(lines),
    }


def planned_nonce(lines: Sequence[Line]) -> Line:
    """The nonce of the first plan and who drew it; empty: there is no plan yet."""
    return next((line["nonce"] for line in lines if line["event"] == PLAN), {})


SYSTEM, GIVEN, SEED = "operating system", "given", "seed"
"""Where a nonce comes from."""


def new_nonce() -> str:
    """A nonce of 128 bits from the operating system, as 32 hex digits."""
    return secrets.token_hex(16)
