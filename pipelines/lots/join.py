"""A claim of many owners of small lots on one encoder, together, from their statements alone.

The owners commit their lots to one public number. Somebody lists the headers, and makes the list's digest known before
that number is. So nobody can join, or stay away, because of how the coins fell. Each owner then claims alone, about the
same encoder, and the exact p-values are joined by Lancaster's method. A lot of the list whose statement is not given
has the p-value 1, which no choice of statements can turn into a gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mi_core.checks import ConfigError
from mi_core.lots.commitment import ALL, GRADES, Header, entry_digest, grade_of, number_of
from mi_core.lots.designs import joined_p_value
from mi_core.lots.draw import spelled
from mi_core.lots.verdict import NOT_SHOWN, USED, level_of
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.statement import STATEMENT, Stated
from pipelines.lots.verify import verify_claim
from pipelines.report.statement import FAILS


@dataclass(frozen=True)
class Union:
    """Lots that claim together.

    Args:
        headers: of the lots, by commitment.
        beacon: which public number decides all of their draws, in words.
    """

    headers: dict[str, Header]
    beacon: str

    @classmethod
    def read(cls, folder: str) -> Union:
        """Read the headers in a folder.

        Raises:
            UserError: there are fewer than two, a file is none, or they do not wait for the same public number.
        """
        headers: dict[str, Header] = {}
        for path in storage.list_files(folder):
            try:
                header = Header.from_json(storage.read_json(path))
            except (ConfigError, ValueError) as error:
                raise UserError(f"{path}: {error}; the folder holds one header-NUMBER.json of each lot") from error
            if not header.beacon:
                raise UserError(f"{path}: its owner draws alone; commit with --decided-by, in the same words for all")
            if header.counted != ALL:
                raise UserError(f"{path}: it was committed with --until-decided, and all images have to be asked about")
            headers[header.commitment] = header
        beacons = sorted({header.beacon for header in headers.values()})
        if len(headers) < 2:
            raise UserError(f"{folder} holds {len(headers)} headers of lots; two or more claim together")
        if len(beacons) > 1:
            raise UserError(
                f"{folder}: one lot is decided by {beacons[0]!r}, another by {beacons[1]!r}; it is one for all"
            )
        return cls(headers, beacons[0])

    @property
    def digest(self) -> str:
        """The number to make known before the beacon: 64 hex digits, whatever the order of the lots."""
        return entry_digest(sorted(self.headers))


@dataclass(frozen=True)
class JointClaim:
    """What many owners claim together.

    Args:
        union: the lots.
        verdict: `USED` or `NOT_SHOWN`; level: at which it was judged, by the highest number of a question.
        p_value: of all statements together.
        grade: the worst of the statements; given: what any owner chose.
        encoder: its name or address; value: of the beacon.
        absent: commitments of the lots whose statements are not there.
    """

    union: Union
    verdict: str
    level: float
    p_value: float
    grade: str
    given: tuple[str, ...]
    encoder: str
    value: str
    absent: tuple[str, ...]


def join_claims(folder: str, statements: Sequence[str]) -> JointClaim:
    """Judge the statements of many owners as one claim.

    Args:
        folder: of the headers.
        statements: files, or the folders they are in.

    Raises:
        UserError: there is none, a check of one fails, or one is about a lot with later releases or not of the list; or
            two of them are about one lot, ask another encoder or in another way, or share a salt.
    """
    union = Union.read(folder)
    told: dict[str, tuple[str, Stated]] = {}
    for file in (path if path.endswith(".json") else f"{path}/{STATEMENT}" for path in statements):
        stated = _checked(file)
        lot, *later = (header.commitment for header in stated.headers)
        if later or lot not in union.headers:
            fault = "has later releases; what claims with others is in a lot of its own" if later else "is not listed"
            raise UserError(f"{file}: its lot {fault}")
        if lot in told:
            raise UserError(f"{file} and {told[lot][0]} are about one lot; give one of them")
        told[lot] = file, stated
    if not told:
        raise UserError("no statement is given")
    (first, one), *_ = told.values()
    for file, stated in told.values():
        for fact in ("encoder", "fingerprint", "plan"):
            if getattr(stated.question, fact) != getattr(one.question, fact):
                raise UserError(f"{file} has another {fact} than {first}; all have to ask one encoder in one way")
    opened = {lot: stated.entries["releases"][0] for lot, (_, stated) in told.items()}
    values = {spelled(entry["beacon"]): entry["beacon"] for entry in opened.values()}
    if len(values) > 1:
        raise UserError(f"the statements have {len(values)} values of {union.beacon}; look up which one is right")
    if len({entry["salt"] for entry in opened.values()}) < len(opened):
        raise UserError("two lots have one salt, so that their coins are not independent; they cannot claim together")
    p_values = {lot: stated.entries["result"]["p_value"] for lot, (_, stated) in told.items()}
    p_value = joined_p_value(
        [p_values.get(lot, 1.0) for lot in union.headers], [sum(one.design.sizes) for one in union.headers.values()]
    )
    level = level_of(max(number_of(stated.chain, stated.question) for _, stated in told.values()))
    return JointClaim(
        union,
        USED if p_value <= level else NOT_SHOWN,
        level,
        p_value,
        max((grade_of(stated.headers, stated.question) for _, stated in told.values()), key=GRADES.index),
        tuple(sorted({part for _, stated in told.values() for part in stated.question.given})),
        one.question.encoder,
        next(iter(values.values())),
        tuple(lot for lot in union.headers if lot not in told),
    )


def _checked(file: str) -> Stated:
    """A statement in which no check fails."""
    for check in verify_claim(file):
        if check.outcome == FAILS:
            raise UserError(f"{file}: {check.about} FAILS: {check.text}")
    return Stated.read(file)
