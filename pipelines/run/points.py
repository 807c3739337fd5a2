"""The points of a run's sweeps, each a run of its own in a folder below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pipelines.config.reading.fields import with_changes
from pipelines.config.run_config import RunConfig
from pipelines.plan.checks import build
from pipelines.plan.load import LABEL, slug
from pipelines.run.folder import RunFolder


class Run(NamedTuple):
    """A run and where it stands; sweeps make several at once."""

    config: RunConfig
    folder: RunFolder


@dataclass(frozen=True)
class Point:
    """One point of one sweep."""

    sweep: str
    label: str
    config: RunConfig
    folder: RunFolder

    @property
    def value(self) -> float | None:
        """The label as a number, where it is one."""
        try:
            return float(self.label)
        except ValueError:
            return None


def points(config: RunConfig, folder: RunFolder) -> list[Point]:
    """All points of all sweeps of a run; one without changes is the run itself."""
    every = []
    for name, entries in config.sweep.items():
        for entry in entries:
            changes = {field: value for field, value in entry.items() if field != LABEL}
            path = f"{folder.path}/sweep/{slug(name)}/{slug(entry[LABEL])}"
            place = RunFolder(path, folder.path) if changes else folder
            changed = with_changes(config.plain() | ({"checkpoints": "last"} if changes else {}), changes)
            every.append(Point(name, str(entry[LABEL]), build(changed), place))
    return every


def runs_of(config: RunConfig, folder: RunFolder) -> list[Run]:
    """The run and the points of its sweeps that are not the run itself."""
    return [
        Run(config, folder),
        *(Run(point.config, point.folder) for point in points(config, folder) if point.folder != folder),
    ]
