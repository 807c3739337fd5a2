"""Find the thresholds of the roles of one seed, exactly, among all samples.

A role with a count takes the lowest hashes that are free for it. A histogram of 2 ** 16 bins finds the bin of the last
one; only this bin is sorted. A role with a fraction has its range already. Where samples are grouped, a group goes to
the first role that takes one of its samples; samples that a role would take from the group of another are barred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipelines.config.sections.data import DataConfig, RoleConfig
from pipelines.data.columns import GROUP
from pipelines.data.draw.rules import HIGHEST, Numbered, Taker
from pipelines.errors import UserError
from pipelines.files import storage

_BINS = 48  # bits that a bin leaves out


@dataclass(frozen=True)
class _Cut:
    """A taker in SQL: a condition for its samples, and the last (shard, row) at its last hash."""

    taker: Taker
    edge: tuple[int, int] | None = None

    def reach(self, column: str = "h") -> str:
        """Its classes and its range of hashes."""
        first, last = self.taker.first, self.taker.last
        inside = f"{column} BETWEEN {first} AND {last}" if first <= last else "false"
        classes = self.taker.classes
        return inside if classes is None else f"{inside} AND label IN ({', '.join(map(str, classes))})"

    def takes(self, column: str = "h") -> str:
        """As `reach`, less the samples beyond the edge."""
        if self.edge is None:
            return self.reach(column)
        shard, row = self.edge
        before = f"shard < {shard} OR (shard = {shard} AND row <= {row})"
        return f"{self.reach(column)} AND ({column} < {self.taker.last} OR {before})"


@dataclass
class Thresholds:
    """Finds the takers of a seed in a database of ``kept``: all samples left.

    Columns: shard, row, source, role and part (hashes), label, and listed (number of the role of a list, or null).

    Args:
        config: the roles.
        connection: to the database; has ``gone`` and ``barred``, of shard and row, which grow.
        shards: by number.
        numbers: of the sources.
    """

    config: DataConfig
    connection: Any
    shards: Mapping[int, Numbered]
    numbers: Mapping[str, int]
    takers: dict[str, tuple[Taker, ...]] = field(default_factory=dict)
    _places: dict[str, str] = field(default_factory=dict)  # of a role: its samples, as a selection

    @property
    def grouped(self) -> bool:
        """Tell whether groups are drawn in place of samples."""
        return self.config.group_by is not None

    def find(self) -> dict[str, tuple[Taker, ...]]:
        """The takers of all sources and roles, in the order in which they draw.

        Raises:
            UserError: a source is too small for its roles, or roles that the user gave share a group.
        """
        self._owners("role")
        for number, (name, role) in enumerate(self.config.roles.items()):
            if role.whole:
                self._give(name, f"source = {self.numbers[role.source_name]}")
            if role.is_listed:
                self._give(name, f"listed = {number}")
        whole = {role.source_name for role in self.config.roles.values() if role.whole}
        drawn = []
        for name in (name for name in self.config.sources if name in self.numbers and name not in whole):
            pool = f"SELECT shard, row, role AS h, label FROM kept WHERE {self._free(name)}"
            ((count,),) = self.connection.execute(f"SELECT count(*) FROM ({pool})").fetchall()
            check_size(self.config, name, int(count))
            drawn.append((pool, self._draw(pool, name, "role")))
        for pool, cuts in drawn:
            self._bar(pool, cuts, "role", "gone")
        self._owners("part")
        for parent in self.config.roles:
            if takers_of(self.config, parent):
                pool = f"SELECT shard, row, part AS h, label FROM kept WHERE {self._places[parent]}"
                self._bar(pool, self._draw(pool, parent, "part"), "part", "barred")
        if self.grouped:
            self._check_given()
        return self.takers

    def _owners(self, purpose: str) -> None:
        """A table of the groups that are taken: their hash, and the role."""
        if self.grouped:
            self.connection.execute(f"CREATE TABLE {purpose}_owner (h UBIGINT, name VARCHAR)")

    def _free(self, source: str) -> str:
        """A condition for the samples of a source that roles are drawn from."""
        return f"source = {self.numbers[source]} AND listed IS NULL"

    def _give(self, role: str, place: str) -> None:
        """Have a role hold the samples of a place, and their groups."""
        self._places[role] = place
        if self.grouped:
            self.connection.execute(f"INSERT INTO role_owner SELECT DISTINCT role, '{role}' FROM kept WHERE {place}")

    def _draw(self, pool: str, origin: str, purpose: str) -> list[_Cut]:
        """The takers of one source or role, in the order of their names."""
        cuts: list[_Cut] = []
        low = 0.0
        for name, role in takers_of(self.config, origin).items():
            free = self._samples_left(cuts)
            if self.grouped:
                free += f" AND h NOT IN (SELECT h FROM {purpose}_owner)"
            if role.fraction is None:
                cut = self._counted(f"SELECT * FROM ({pool}) WHERE {free}", name, role)
            else:
                high = low + role.fraction
                cut, low = _Cut(Taker.between(name, role.classes, low, high)), high
            if purpose == "role":
                here = f"{self._free(origin)} AND {self._samples_left(cuts, purpose)}"
                self._places[name] = f"{here} AND {cut.takes(purpose)}"
            if self.grouped:
                groups = f"SELECT DISTINCT h, '{name}' FROM ({pool}) WHERE {free} AND {cut.takes()}"
                self.connection.execute(f"INSERT INTO {purpose}_owner {groups}")
            cuts.append(cut)
        self.takers[origin] = tuple(cut.taker for cut in cuts)
        return cuts

    def _samples_left(self, cuts: Sequence[_Cut], column: str = "h") -> str:
        """A condition for samples that some takers leave; the rest of a group that is torn is left to none."""
        closed = [cut.reach(column) if self.grouped else cut.takes(column) for cut in cuts]
        return " AND ".join(["true", *(f"NOT ({one})" for one in closed)])

    def _counted(self, free: str, name: str, role: RoleConfig) -> _Cut:
        """The taker of the lowest hashes; of all, if there are too few."""
        assert role.count is not None
        whole = _Cut(Taker(name, role.classes, 0, HIGHEST))
        mine = f"SELECT * FROM ({free}) WHERE {whole.reach()}"
        bins = self.connection.execute(
            f"SELECT h >> {_BINS} AS bin, count(*) FROM ({mine}) GROUP BY bin ORDER BY bin"
        ).fetchall()
        ends = np.cumsum([count for _, count in bins])
        if not len(ends) or ends[-1] < role.count:
            return whole
        place = int(np.searchsorted(ends, role.count))
        (number, inside), end = bins[place], int(ends[place])
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE edge AS SELECT shard, row, h FROM ({mine}) "
            f"WHERE h >> {_BINS} = {number} ORDER BY h, shard, row LIMIT {role.count - end + inside}"
        )
        last = int(self.connection.execute("SELECT max(h) FROM edge").fetchall()[0][0])
        at_edge = self.connection.execute(
            f"SELECT shard, count(*), max(row) FROM edge WHERE h = {last} GROUP BY shard ORDER BY shard"
        ).fetchall()
        quota = {self.shards[shard].shard.item: count for shard, count, _ in at_edge}
        return _Cut(Taker(name, role.classes, 0, last, quota), (at_edge[-1][0], at_edge[-1][2]))

    def _bar(self, pool: str, cuts: Sequence[_Cut], purpose: str, into: str) -> None:
        """Bar samples whose group another role has than the one that would take them."""
        if not self.grouped or not cuts:
            return
        cases = " ".join(f"WHEN {cut.reach()} THEN '{cut.taker.role}'" for cut in cuts)
        self.connection.execute(
            f"INSERT INTO {into} SELECT shard, row FROM "
            f"(SELECT shard, row, h, CASE {cases} END AS mine FROM ({pool})) JOIN {purpose}_owner USING (h) "
            f"WHERE mine IS NOT NULL AND mine <> name"
        )

    def _check_given(self) -> None:
        """Raise UserError if two roles that the user gave share a group."""
        torn = self.connection.execute(
            "SELECT shard, row, role FROM kept WHERE role IN "
            "(SELECT h FROM role_owner GROUP BY h HAVING count(*) > 1) ORDER BY shard, row LIMIT 1"
        ).fetchall()
        if not torn:
            return
        ((shard, row, group),) = torn
        names = self.connection.execute(f"SELECT name FROM role_owner WHERE h = {group}").fetchall()
        origin = {name: self.numbers[role.source_name] for name, role in self.config.roles.items() if not role.is_drawn}
        one, two = sorted((name for (name,) in names), key=lambda name: (origin[name], name))[:2]
        text = storage.read_table(self.shards[shard].shard.path, [GROUP])[GROUP][row].as_py()
        raise UserError(
            f"roles {one} and {two} share the group {text!r} of data.group_by; remove the group from one of them"
        )


def check_size(config: DataConfig, source: str, available: int) -> None:
    """Raise UserError unless a source with ``available`` usable images can fill its roles' counts."""
    asked = {name: role.count for name, role in config.roles.items() if role.source_name == source and role.count}
    if sum(asked.values()) > available:
        sizes = " + ".join(f"{name} {count}" for name, count in asked.items())
        raise UserError(
            f"data.roles: {sizes} = {sum(asked.values())} images are wanted from {source}, which has {available} "
            "distinct usable images; lower the counts or give more data"
        )


def takers_of(config: DataConfig, origin: str) -> dict[str, RoleConfig]:
    """The roles drawn from a source or role, sorted by name: the order in a config file has no effect."""
    return {name: role for name, role in sorted(config.roles.items()) if role.source_name == origin and role.is_drawn}
