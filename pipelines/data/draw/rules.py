"""The rules of a seed: they tell the role of every sample from its hash and class, where its shard is read.

A role with a fraction takes a range of the hash. A role with a count takes the hashes up to a threshold. Of the samples
at the threshold itself, which are one group, it takes the first in the order of the scan: a quota for each shard. The
samples of a role with a list of keys are written down by shard, beside those that are dropped. Canaries have hashes of
their own, from which their coins fall; mislabelled ones have a wrong class, and blended ones noise.

Thresholds and copies are found from the hashes of all samples, which `rank` writes, one file a shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, PlainSerializer, TypeAdapter

from mi_core.hashing import PART, digests64, digests128
from pipelines.config.roles import CANARY_ROLE
from pipelines.data.columns import ATTRIBUTE, GROUP, PHASH, Coded, pixel_ranks
from pipelines.data.read.key_lists import ListedKeys
from pipelines.data.scan.scan import ScannedShard
from pipelines.files import storage
from pipelines.files.digest import digest

HIGHEST = 2**64 - 1
NO_CLASS = np.iinfo(np.int64).min
Hashes = npt.NDArray[np.uint64]
Labels = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int16]
_Hash = Annotated[int, BeforeValidator(lambda text: int(text, 16)), PlainSerializer(lambda number: f"{number:016x}")]


@dataclass(frozen=True)
class Taker:
    """A drawn role, or a part of one.

    Args:
        role: its name.
        classes: of its samples; None: all.
        first, last: its range of hashes, both included.
        quota: by shard, how many of its samples at ``last`` are taken, none in other shards; None: all.
    """

    role: str
    classes: tuple[int, ...] | None
    first: _Hash
    last: _Hash
    quota: Mapping[str, int] | None = None

    @classmethod
    def between(cls, role: str, classes: tuple[int, ...] | None, low: float, high: float) -> Taker:
        """The role of hashes whose share of the range of 64 bits lies in [low, high)."""
        return cls(role, classes, _least(low), _least(high) - 1)

    def wants(self, hashes: Hashes, labels: Labels) -> npt.NDArray[np.bool_]:
        """Mark the samples that are in the range and of its classes: (N,)."""
        if self.last < self.first:
            return np.zeros(len(hashes), dtype=bool)
        inside = (hashes >= np.uint64(self.first)) & (hashes <= np.uint64(self.last))
        return np.asarray(inside if self.classes is None else inside & np.isin(labels, self.classes))


def taker_numbers(
    takers: Sequence[Taker], hashes: Hashes, labels: Labels, there: npt.NDArray[np.bool_], shard: str, grouped: bool
) -> Numbers:
    """The number of the taker of each sample of one shard, from 1; 0: none.

    Args:
        takers: in the order in which they draw.
        hashes, labels: of the samples, in the order of the scan: (N,).
        there: samples that may be drawn: (N,).
        shard: its name, for the quotas.
        grouped: the rest of a group that is taken in part stays free of roles.
    """
    numbers, free = np.zeros(len(hashes), dtype=np.int16), there.copy()
    for number, taker in enumerate(takers, start=1):
        mine = free & taker.wants(hashes, labels)
        if taker.quota is not None:
            edge = np.flatnonzero(mine & (hashes == np.uint64(taker.last)))
            beyond = edge[taker.quota.get(shard, 0) :]
            mine[beyond] = False
            if grouped:
                free[beyond] = False
        numbers[mine] = number
        free &= ~mine
    return numbers


@dataclass(frozen=True)
class Rules:
    """All that decides the roles of one seed, besides the samples that are dropped.

    Args:
        seed: of the hashes.
        grouped: whether groups are drawn in place of samples.
        attributes: names of all attributes, of whichever source.
        given: source to role, of roles that the user gives.
        takers: in the order in which they draw, by the source or the role that they draw from.
        shards: those that were read, and those that there are, of every source of which some were left out.
        by_shard: the samples of a shard count as one in intervals and tests.
        wrong: classes, ascending, from which a mislabelled canary gets another than its own; empty: none does.
        noise: share of noise that canaries are mixed with; None: they are not.
        lists: how the lists of keys fit, of roles that have one.
    """

    seed: int
    grouped: bool
    attributes: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    takers: Mapping[str, tuple[Taker, ...]] = field(default_factory=dict)
    shards: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    by_shard: bool = False
    wrong: tuple[int, ...] = ()
    noise: float | None = None
    lists: Mapping[str, ListedKeys] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values, hashes as hexadecimal text; lists, wrong classes and noise where there are some."""
        plain = TypeAdapter(Rules).dump_python(self, mode="json")
        return {name: value for name, value in plain.items() if value or name not in ("wrong", "noise", "lists")}

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Rules:
        """Read the result of `as_json`."""
        return TypeAdapter(cls).validate_python(entry)

    def hashes(self, samples: pa.Table, source: str, purpose: str) -> Hashes:
        """The hash of (seed, purpose, source, key) of every sample, or of (seed, purpose, group): (N,).

        Of parts it is that of (seed, purpose, pixels): in an audit a part is what an attack is fitted on and not judged
        by, and nobody chooses that by naming files.
        """
        if not self.grouped:
            if purpose == PART:
                return pixel_ranks(self.seed, PART, samples["sha256"])
            return digests64((self.seed, purpose, source), samples["key"].to_pylist())
        coded = samples[GROUP].combine_chunks().dictionary_encode()
        of_group = digests64((self.seed, purpose), coded.dictionary.to_pylist())
        return np.asarray(of_group[np.asarray(coded.indices)])

    def draw_shard(self, samples: pa.Table, source: str, item: str, dropped: pa.Table | None) -> pa.Table:
        """The samples of one shard that have a role.

        Args:
            samples: of the shard, as the scan wrote them.
            source, item: where the shard stands.
            dropped: numbers of the rows that have no role, or (``part``) no part, or (``role``) that of a list; None:
                there are none.

        Returns:
            source, item, key, label, sha256 (of the pixels; of a blended canary, of pixels and noise), attribute.* of
            all sources, group where there are groups, role and part (empty: none), sorted by key.
        """
        labels = labels_of(samples)
        there, parted = np.ones(len(samples), dtype=bool), np.ones(len(samples), dtype=bool)
        roles = _Named(len(samples))
        if dropped is not None:
            rows, part_only = np.asarray(dropped["row"]), np.asarray(dropped["part"])
            of_list = Coded.from_column(dropped["role"]) if "role" in dropped.column_names else Coded([""], 0 * rows)
            there[rows[~part_only]] = False
            parted[rows[~of_list.among(self.lists)[of_list.codes]]] = False
            for role in self.lists:
                roles.put(role, rows[of_list.among([role])[of_list.codes]])
        if source in self.given:
            roles.put(self.given[source], there)
        else:
            self._take(source, self.hashes(samples, source, "role"), labels, there, item, roles)
        parts = _Named(len(samples))
        purposes = {name: "canary" if name == CANARY_ROLE else PART for name in roles.names[1:] if name in self.takers}
        own = {purpose: self.hashes(samples, source, purpose) for purpose in dict.fromkeys(purposes.values())}
        for parent, purpose in purposes.items():
            self._take(parent, own[purpose], labels, parted & roles.rows_named(parent), item, parts)
        if self.wrong and CANARY_ROLE in roles.names:
            samples = self._mislabelled(samples, source, labels, roles.rows_named(CANARY_ROLE))
        if self.noise is not None and CANARY_ROLE in roles.names:
            samples = self._blended(samples, roles.rows_named(CANARY_ROLE))
        return self._table(samples, source, item, roles, parts)

    def _mislabelled(self, samples: pa.Table, source: str, labels: Labels, canary: npt.NDArray[np.bool_]) -> pa.Table:
        """The samples, with another class of the canaries, by a hash of the sample; none stays without one."""
        classes, hashes = np.array(self.wrong, dtype=np.int64), self.hashes(samples, source, "canary-class")
        known = np.isin(labels, classes)
        steps = hashes % np.where(known, len(classes) - 1, len(classes)).astype(np.uint64)
        place = np.where(known, np.searchsorted(classes, labels) + 1, 0) + steps.astype(np.int64)
        wrong = classes[place % len(classes)]
        column = pc.if_else(pa.array(canary), pa.array(wrong), samples["label"].cast(pa.int64()))
        return samples.set_column(samples.column_names.index("label"), "label", column)

    def _blended(self, samples: pa.Table, canary: npt.NDArray[np.bool_]) -> pa.Table:
        """The samples, with another hash of the canaries' pixels, so that no result is taken for that of plain ones."""
        pixels = samples["sha256"].to_pylist()
        for row in np.flatnonzero(canary).tolist():
            pixels[row] = bytes.fromhex(digest(pixels[row].hex(), self.seed, self.noise))
        column = pa.array(pixels, samples.schema.field("sha256").type)
        return samples.set_column(samples.column_names.index("sha256"), "sha256", column)

    def _take(
        self, origin: str, hashes: Hashes, labels: Labels, there: npt.NDArray[np.bool_], item: str, into: _Named
    ) -> None:
        takers = self.takers[origin]
        numbers = taker_numbers(takers, hashes, labels, there, item, self.grouped)
        for number, taker in enumerate(takers, start=1):
            into.put(taker.role, numbers == number)

    def _table(self, samples: pa.Table, source: str, item: str, roles: _Named, parts: _Named) -> pa.Table:
        rows = pa.array(np.flatnonzero(roles.numbers))
        here = samples.take(rows)
        columns: dict[str, Any] = {"source": [source] * len(rows), "item": [item] * len(rows)}
        columns |= {name: here[name] for name in ("key", "label", "sha256")}
        nothing = pa.nulls(len(rows), pa.int64())
        for name in (f"{ATTRIBUTE}{attribute}" for attribute in self.attributes):
            columns[name] = here[name] if name in here.column_names else nothing
        columns |= {GROUP: here[GROUP]} if self.grouped else {}
        columns |= {"role": roles.texts().take(rows), "part": parts.texts().take(rows)}
        columns |= {name: pa.array(columns[name], pa.string()) for name in ("source", "item")}
        return pa.table(columns).sort_by("key")


class _Named:
    """A name for every row, kept as a number; 0: none."""

    def __init__(self, count: int) -> None:
        self.names = [""]
        self.numbers = np.zeros(count, dtype=np.int16)

    def put(self, name: str, rows: npt.NDArray[Any]) -> None:
        self.names.append(name)
        self.numbers[rows] = len(self.names) - 1

    def rows_named(self, name: str) -> npt.NDArray[np.bool_]:
        return np.asarray(self.numbers == self.names.index(name))

    def texts(self) -> pa.Array:
        return pa.array(self.names, pa.string()).take(pa.array(self.numbers))


def labels_of(samples: pa.Table) -> Labels:
    """The class of every sample, `NO_CLASS` where there is none: (N,)."""
    return np.asarray(pc.fill_null(samples["label"].cast(pa.int64()), NO_CLASS))


def _least(share: float) -> int:
    """The lowest 64-bit hash whose share of the range, in float64, is at least ``share``; 2 ** 64 if none is."""
    low, high = 0, HIGHEST + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if float(np.uint64(middle)) / 2.0**64 >= share else (middle + 1, high)
    return low


@dataclass(frozen=True)
class Numbered:
    """A shard, and its number in the order of the scan."""

    number: int
    shard: ScannedShard

    def ranks(self, folder: str) -> str:
        """Its file of hashes."""
        return f"{folder}/{self.number}.parquet"


def hashes_of_keys(keys: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Hashes of N keys, of 128 bits, which chance makes equal once in 1e21 for two lists of 4e8 keys: (N, 2)."""
    return digests128(("key",), keys)


def rank(shards: Sequence[Numbered], rules: Rules, folder: str, parts: bool, near: bool, listed: bool) -> None:
    """Write the hashes of some shards.

    Columns: shard, row; role, a hash, and part, another, if ``parts``; label; high and low,
    the first 128 bits of the hash of the pixels; key_high and key_low, a hash of the key, if ``listed``;
    phash if ``near``.

    Args:
        shards: to read.
        rules: hold the seed.
        folder: of the files.
        parts: whether roles have parts.
        near: whether near-copies are looked for.
        listed: whether lists of keys give roles.
    """
    columns = ["label", "sha256", *([GROUP] if rules.grouped else []), *([PHASH] if near else [])]
    columns += ["key"] if listed or not rules.grouped else []
    for one in shards:
        samples = storage.read_table(one.shard.path, columns)
        # A hash of 32 bytes is four numbers; two of them tell images apart: 1e-22 for a chance pair among 4e8.
        pixels = samples["sha256"].combine_chunks().cast(pa.binary())
        words = np.frombuffer(b"".join(pixels.to_pylist()), dtype="<u8").reshape(-1, 4)
        hashes = {
            "shard": np.full(len(samples), one.number, np.uint32),
            "row": np.arange(len(samples), dtype=np.uint32),
            "role": rules.hashes(samples, one.shard.source, "role"),
            "label": labels_of(samples),
            "high": words[:, 0],
            "low": words[:, 1],
        }
        if parts:
            hashes[PART] = rules.hashes(samples, one.shard.source, PART)
        if listed:
            hashes["key_high"], hashes["key_low"] = hashes_of_keys(samples["key"].to_pylist()).T
        if near:
            hashes[PHASH] = np.asarray(samples[PHASH].combine_chunks())
        storage.write_table(one.ranks(folder), pa.table(hashes))
