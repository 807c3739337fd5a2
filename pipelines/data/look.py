"""A look at a few shards of every source, where reading all would take hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pipelines.config.sections.data import DataConfig, RoleConfig
from pipelines.console import count_of
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import Splits
from pipelines.data.read.key_lists import size_of
from pipelines.data.read.samples import Portion
from pipelines.data.read.shard_paths import sampled
from pipelines.data.read.sources import Source
from pipelines.data.scan.scan import Scan, scan
from pipelines.errors import UserError

SHARDS = 4  # of a source, at most
SPARE = 0.9  # share of the samples read that roles may take, since shards differ in size


def evenly(every: Sequence[Portion]) -> Sequence[Portion]:
    """`SHARDS` evenly spaced items, or all if there are fewer."""
    return every[:: -(-len(every) // SHARDS)]


@dataclass(frozen=True)
class Look:
    """The samples of some shards.

    Args:
        data: of the run.
        scanned: the samples.
        shards: (number read, number in all) by source.
    """

    data: DataConfig
    scanned: Scan
    shards: Mapping[str, tuple[int, int]]

    @classmethod
    def at(cls, data: DataConfig) -> Look:
        """Read `SHARDS` shards of every source. Raises UserError as `scan`."""
        every = {name: sampled(Source(source).items(), name, data.shards) for name, source in data.sources.items()}
        return cls(
            data, scan(data, look=evenly), {name: (len(evenly(items)), len(items)) for name, items in every.items()}
        )

    @property
    def whole(self) -> bool:
        """Tell whether every shard was read."""
        return all(read == there for read, there in self.shards.values())

    def draw_roles(self, seed: int) -> Splits:
        """The roles of one seed, drawn among the samples read, with counts lowered to their share.

        Raises:
            UserError: the roles cannot be drawn, or a source is too small for them.
        """
        self._check_sizes()
        roles = {name: self._lowered(role) for name, role in self.data.roles.items()}
        return draw(self.data.model_copy(update={"roles": roles}), self.scanned, seed)

    def counts(self, drawn: Splits) -> dict[str, int]:
        """Number of samples that every role and part will have; estimated unless every shard was read."""
        few = drawn.counts()
        return {
            name: asked
            if (asked := self._wanted_images(role)) and self._share(role) < 1
            else round(few[name] / self._taken(role))
            for name, role in self.data.roles.items()
        }

    def __str__(self) -> str:
        """For example ``looked at 4 of 40 shards of pool``; empty if every shard was read."""
        partly = [f"{read} of {there} shards of {name}" for name, (read, there) in self.shards.items() if read < there]
        return f"looked at {' and '.join(partly)}; a run reads all" if partly else ""

    def _share(self, role: RoleConfig) -> float:
        read, there = self.shards[self.data.roles.get(role.source_name, role).source_name]
        return read / there

    def _taken(self, role: RoleConfig) -> float:
        """Share of a role that is drawn among the samples read."""
        share = self._share(role)
        return share * SPARE if share < 1 and self._wanted_images(role) else share

    def _wanted_images(self, role: RoleConfig) -> int | None:
        """The number of samples that a count or a list of keys asks for; None for other roles."""
        return role.count if role.keys is None else self._listed[role.keys, role.key_column]

    @cached_property
    def _listed(self) -> dict[tuple[str, str | None], int]:
        """Number of keys of every list; each is read once."""
        lists = {(role.keys, role.key_column) for role in self.data.roles.values() if role.keys is not None}
        return {(str(path), column): size_of(str(path), column) for path, column in lists}

    def _lowered(self, role: RoleConfig) -> RoleConfig:
        """The role among the samples read; few keys of a list stand there, so as many samples are drawn instead."""
        asked = self._wanted_images(role)
        if asked is None or (role.is_listed and self._share(role) == 1):
            return role
        count = max(1, int(asked * self._taken(role)))
        return role.model_copy(update={"count": count, "keys": None, "key_column": None})

    def _check_sizes(self) -> None:
        found = self.scanned.usable
        for name, (read, there) in self.shards.items():
            likely = round(found.get(name, 0) * there / read)
            asked = sum(role.count or 0 for role in self.data.roles.values() if role.source_name == name)
            if read < there and asked > likely * (2 - SPARE):
                raise UserError(
                    f"data.roles: {count_of(asked, 'image', 'images')} are wanted from {name}, which has about "
                    f"{likely:,} ({read} of {there} shards were read); lower the counts or give more data"
                )
