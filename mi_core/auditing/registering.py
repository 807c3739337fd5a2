"""The registration of audits in Python: a file beside them, with the chain of `mi_core.registration`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mi_core.auditing.asking import Setup
from mi_core.auditing.config_text import reference_settings
from mi_core.auditing.models import Model
from mi_core.checks import ConfigError
from mi_core.registration import (
    GIVEN,
    SYSTEM,
    faults_of,
    file_of,
    lines_in,
    new_nonce,
    next_line,
    planned_nonce,
    registration_as_json,
)
from mi_core.report.model.as_json import part_from_json
from mi_core.report.model.report import NonceOrigin, Registration
from mi_core.validity.verdict import CHOICE

COMMAND = "mi_core.audit(...)"
UNRECORDED = "Nothing recorded how often these images were looked at."
_RECORDED = "The file {} records this; it shows no look that was made without it, and no change in code."


@dataclass(frozen=True)
class RegistrationFile:
    """The file of one question: the same images and encoder, asked in the same way, however often.

    Args:
        place: of the file, which need not be there yet; None: nothing is registered.

    Raises:
        ConfigError: the file cannot be read or written, or its chain is broken. So do the methods.
    """

    place: str | os.PathLike[str] | None

    def __post_init__(self) -> None:
        self.lines()

    def lines(self) -> list[dict[str, Any]]:
        """The lines so far."""
        if self.place is None or not Path(self.place).exists():
            return []
        try:
            lines = lines_in(Path(self.place).read_bytes())
        except (OSError, TypeError, ValueError) as error:
            raise self._fault(f"cannot be read: {error}") from error
        if faults := faults_of(lines):
            raise self._fault(f"is damaged: {faults[0]}")
        return lines

    def add(self, event: str, content: Mapping[str, Any]) -> None:
        """Append the line of an event."""
        if self.place is None or (line := next_line(self.lines(), event, content)) is None:
            return
        try:
            with Path(self.place).open("ab") as file:
                file.write(file_of([line]))
        except OSError as error:
            raise self._fault(f"cannot be written: {error}") from error

    def nonce(self, given: str | None) -> tuple[str, str]:
        """The nonce of an audit, the given one, else that of the first plan, else a new one; and who drew it."""
        planned = planned_nonce(self.lines())
        if "value" in planned and given in (None, planned["value"]):
            return planned["value"], planned["from"]
        return (new_nonce(), SYSTEM) if given is None else (given, GIVEN)

    def part(self, setup: Setup) -> Registration:
        """The part of a report on an audit with these settings."""
        if self.place is None:
            return Registration(nonce=NonceOrigin(origin=setup.origin, value=setup.nonce), note=UNRECORDED)
        note = _RECORDED.format(Path(self.place).name)
        return part_from_json(Registration, registration_as_json(self.lines()) | {"note": note})

    def _fault(self, reason: str) -> ConfigError:
        return ConfigError(f"registration = {str(self.place)!r} {reason}; name another file")


def plan_of(setup: Setup, target: Model, references: Sequence[Model] | None) -> dict[str, Any]:
    """The plan of an audit, with all that its scores hang on in every attack; without references some are trained."""
    question, nonce = setup.question, {"from": setup.origin, "value": setup.nonce}
    asked = {
        "output": question.output,
        "encoder": target.part.fingerprint,
        "normalisation": question.how.normalisation,
        "pixels": question.decoder.settings(),
        "views": setup.views,
        "objective": question.objective,
        "augmentation": asdict(question.recipe),
        "seed": setup.seed,
    }
    attacks = [one.settings() | asked for one in setup.attacks]
    beside = [reference_settings()] if references is None else [one.part.fingerprint for one in references]
    settled = {"output": question.output, "nonce": nonce, "by": CHOICE, "factor": setup.factor, "references": beside}
    return {"primary_attack": attacks[0], "attacks": attacks, **settled}
