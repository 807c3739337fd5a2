"""Group queries into passes over images: one decoding and one set of views serve all queries of the same images.

A pass is written down before its first query, as RUN/features/TAG.json with the keys of its queries, and has a receipt
once all its files are there. So a query is found by its key: in the files of the pass that has it. What is asked later
adds passes with what no earlier one has. All points of a sweep and all trials of a search have one store; what a trial
adds is its own, since it goes when the trial ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from mi_core.encoders.checkpoint import OUTPUTS
from mi_core.features import Measure
from mi_core.querying.plan import QueryPlan
from pipelines.config.sections.encoders import EndpointConfig
from pipelines.config.sections.queries import Recipe
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.plan.items import Protocol, Query

CHUNK = 256  # images per chunk where nothing else is known
_RECEIPT = ".files.json"


class FeatureFile(NamedTuple):
    """The features of one shard from one pass: one Parquet file per checkpoint and chunk."""

    source: str
    shard: str
    chunks: int

    def path(self, folder: str, epoch: int, chunk: int) -> str:
        """The file of a chunk; ``folder``: of the pass."""
        return f"{folder}/epoch-{epoch:04d}/{self.source}/{self.shard}-{chunk:05d}.parquet"

    def paths(self, folder: str, epoch: int) -> list[str]:
        """The files of the shard, in the order of the chunks."""
        return [self.path(folder, epoch, chunk) for chunk in range(self.chunks)]

    def rejected_path(self, folder: str, epoch: int, chunk: int) -> str:
        """The file that lists the rejected samples of a chunk, if there are any."""
        return f"{self.path(folder, epoch, chunk).removesuffix('.parquet')}.rejected.json"


@dataclass(frozen=True)
class Pass:
    """One pass over the images of some roles with one encoder; its tag names its files.

    Args:
        store: folder of all passes.
        encoder: its name; of several seeds each has its own pass.
        encoder_key: of the item.
        keys: of its queries.
        roles: whose images are shown, by name; of each the first ``count``.
        outputs, measures: that are computed.
        columns: that are kept.
        recipe, views: of the views of an image.
        crafter, crafter_epoch: encoder that adversarial images are crafted on, and its checkpoint.
        bank_role: of the images that samples are compared with.
        protocol: how answers are taken.
        images: by role, each image once; for the count of queries.
        remote: whether the encoder is behind an API.
        trial: of a search, that alone reads it; empty: whoever has its queries does.
    """

    store: str
    encoder: str
    encoder_key: str
    keys: tuple[str, ...]
    epochs: tuple[int, ...]
    roles: tuple[str, ...]
    count: int | None
    outputs: tuple[str, ...]
    measures: tuple[Measure, ...]
    columns: frozenset[str]
    recipe: Recipe
    views: int
    crafter: str | None
    crafter_epoch: int
    bank_role: str | None
    protocol: Protocol
    images: Mapping[str, int] = field(compare=False)
    remote: bool = False
    chunk: int = CHUNK
    trial: str = ""

    @cached_property
    def tag(self) -> str:
        """Short name of this pass in file names."""
        return digest(sorted(self.keys), self.chunk, *([self.trial] if self.trial else []))[:12]

    @property
    def folder(self) -> str:
        """The folder of its files."""
        return f"{self.store}/{self.tag}"

    @property
    def queries_per_image(self) -> int:
        """Queries per image, over all checkpoints; of a search the most that it may spend."""
        return self.plan().queries_per_image * len(self.epochs) * self.protocol.repeats

    @property
    def bank(self) -> int:
        """Images of the bank that samples are compared with, 0 for none."""
        return max(measure.bank for measure in self.measures)

    @property
    def bank_queries(self) -> int:
        """Queries for the bank, over all checkpoints."""
        return self.bank * len(self.epochs) * self.protocol.repeats

    def plan(self) -> QueryPlan:
        """The queries per image."""
        how = self.protocol
        return QueryPlan(self.measures, self.outputs, max(1, self.views), how.batch_views, how.precision)

    @property
    def is_alone(self) -> bool:
        """Tell whether no other pass may share its chunks: its queries are paid for, or depend on answers."""
        return self.remote or self.crafter is not None or self.plan().searches

    @property
    def shares_images(self) -> bool:
        """Tell whether it can share decoded images with other passes over the same roles."""
        return not self.is_alone and self.count is None

    def record(self, run: str) -> None:
        """Write the pass down. ``run``: the folder of the run that pays for it."""
        content = {
            "run": run,
            "trial": self.trial,
            "encoder": self.encoder,
            "encoder_key": self.encoder_key,
            "queries": self.keys,
            "epochs": self.epochs,
            "chunk": self.chunk,
            "per_image": self.queries_per_image,
            "images": {role: self.images[role] for role in self.roles},
            "count": self.count,
            "bank": self.bank_queries,
        }
        storage.write_json(f"{self.folder}.json", content)

    def finish(self, files: Sequence[FeatureFile]) -> None:
        """Write the receipt of a complete pass: features are read back from its files."""
        path = f"{self.folder}{_RECEIPT}"
        if not storage.exists(path):
            storage.write_json(path, files)


@dataclass(frozen=True)
class Recorded:
    """A pass as it was written down, by any start of any run of the store.

    Args:
        folder: of its files.
        finished: whether it has a receipt.
        content: as `Pass.record` writes it.
    """

    folder: str
    finished: bool
    content: Mapping[str, Any]

    @property
    def keys(self) -> list[str]:
        """Of its queries."""
        return list(self.content["queries"])

    @property
    def files(self) -> list[FeatureFile]:
        """Its files.

        Raises:
            UserError: it has not finished.
        """
        if not self.finished:
            raise UserError(f"{self.folder}{_RECEIPT} is missing; run the extract stage first")
        return _files(f"{self.folder}{_RECEIPT}")


def recorded_passes(store: str, trials: Collection[str] = ()) -> list[Recorded]:
    """All passes of a store, in the order of their names; one request lists them, and none is read twice.

    ``trials``: of a search, whose own passes are wanted too.
    """
    paths = set(storage.list_files(store, recursive=False))
    every = [
        Recorded(bare, f"{bare}{_RECEIPT}" in paths, _content(path))
        for path in sorted(path for path in paths if path.endswith(".json") and not path.endswith(_RECEIPT))
        for bare in (path.removesuffix(".json"),)
    ]
    return [record for record in every if record.content["trial"] in ("", *trials)]


def remove_passes(store: str, trial: str) -> None:
    """Remove the passes of a trial: their features are of use to no other."""
    for record in recorded_passes(store, [trial]):
        if record.content["trial"]:
            for path in (f"{record.folder}.json", f"{record.folder}{_RECEIPT}", record.folder):
                storage.remove(path)


@lru_cache(maxsize=4096)
def _content(path: str) -> dict[str, Any]:
    """A record: it never changes."""
    return dict(storage.read_json(path))


@lru_cache(maxsize=4096)
def _files(path: str) -> list[FeatureFile]:
    """A receipt: it never changes."""
    return [FeatureFile(*entry) for entry in storage.read_json(path)]


def resumed(queries: Mapping[str, Query], store: str, known: Sequence[Recorded]) -> list[Pass]:
    """The passes that were written down before and are wanted as a whole; one that was interrupted goes on.

    Args:
        queries: that are wanted, by key.
        store: folder of all passes.
        known: passes that were written down.
    """
    wanted = [(record, [queries[key] for key in record.keys if key in queries]) for record in known]
    return [
        replace(pass_of(mine, store), chunk=record.content["chunk"], trial=record.content["trial"])
        for record, mine in wanted
        if len(mine) == len(record.keys)
    ]


def with_banks(passes: Iterable[Pass]) -> list[Pass]:
    """Passes that compare samples with a bank; of those that read the same answers for it the first alone."""
    first: dict[object, Pass] = {}
    for one in passes:
        if one.bank:
            answers = (one.encoder_key, one.epochs, one.outputs, one.recipe, one.bank_role, one.bank)
            first.setdefault((*answers, one.protocol.repeats), one)
    return list(first.values())


def grouped(queries: Sequence[Query], store: str) -> list[Pass]:
    """New passes that compute some queries; each set of queries of an image is asked once.

    Measures of one set of queries are read off one answer, at all outputs that any of them reads. Queries of the images
    themselves go with the first way of asking, so that one pass asks for both.
    """
    outputs: dict[object, set[str]] = {}
    epochs: dict[object, set[int]] = {}
    first: dict[object, object] = {}
    for query in queries:
        outputs.setdefault(_together(query), set()).add(query.output)
        epochs.setdefault(_together(query), set()).add(query.epoch)

    def family(query: Query) -> tuple[object, ...]:
        same = _together(query)
        return (query.encoder.key, query.samples.count, tuple(sorted(outputs[same])), tuple(sorted(epochs[same])))

    def joined(query: Query) -> tuple[object, ...]:
        return (*family(query), _way(query) or first.get(family(query), ()))

    for query in queries:
        if _way(query):
            first.setdefault(family(query), _way(query))
    by_role: dict[object, dict[str, set[str]]] = {}
    for query in queries:
        (role,) = query.samples.roles
        by_role.setdefault(joined(query), {}).setdefault(role.key, set()).add(query.measure.name)
    blocks: dict[object, list[Query]] = {}
    for query in queries:
        (role,) = query.samples.roles
        blocks.setdefault((joined(query), frozenset(by_role[joined(query)][role.key])), []).append(query)
    return _by_shared_roles([pass_of(block, store) for block in blocks.values()], queries, store)


def _together(query: Query) -> tuple[object, ...]:
    """Equal for queries that are read off the same answers."""
    return query.encoder.key, query.samples.key, _way(query), query.measure.query


def _way(query: Query) -> tuple[object, ...]:
    """How a query asks, beyond the image itself; empty: it asks for the image alone."""
    parts = (query.views, query.bank)
    return tuple(None if part is None else part.key for part in parts) if any(parts) else ()


def _by_shared_roles(passes: Sequence[Pass], queries: Sequence[Query], store: str) -> list[Pass]:
    """Split passes by role where others cover some of their roles alone, so that equal sets of samples result.

    Encoders that are asked for the same samples can share decoded images and views. A part stays with its role where
    a pass covers both. Passes that share nothing stay whole.
    """
    by_key = {query.key: query for query in queries}
    part_of = {role.name: role.part_of for query in queries for role in query.samples.roles}

    def whole(name: str, one: Pass) -> str:
        return part_of[name] if part_of[name] in one.roles else name

    takers: dict[str, set[int]] = {}
    for number, one in enumerate(passes):
        for name in one.roles if one.shares_images else ():
            takers.setdefault(whole(name, one), set()).add(number)
    pieces: list[Pass] = []
    for one in passes:
        if not one.shares_images:
            pieces.append(one)
            continue
        blocks: dict[frozenset[int], list[Query]] = {}
        for query in (by_key[key] for key in one.keys):
            (role,) = query.samples.roles
            blocks.setdefault(frozenset(takers[whole(role.name, one)]), []).append(query)
        pieces += [pass_of(block, store) for block in blocks.values()]
    return pieces


def pass_of(queries: Sequence[Query], store: str) -> Pass:
    """The pass that computes some queries, which differ in role, checkpoint, output and measure alone."""
    first = queries[0]
    encoder = first.encoder
    views = next((query.views for query in queries if query.views is not None), None)
    bank = next((query.bank for query in queries if query.bank is not None), None)
    roles = list(dict.fromkeys(role for query in queries for role in query.samples.roles))
    outputs, shown = {query.output for query in queries}, [role.name for role in roles]
    recipe, crafter = (None, None) if views is None else (views.recipe, views.crafter)
    return Pass(
        store,
        encoder.name,
        encoder.key,
        tuple(query.key for query in queries),
        tuple(sorted({query.epoch for query in queries})),
        tuple(shown),
        first.samples.count,
        tuple(output for output in OUTPUTS if output in outputs),
        tuple(sorted({query.measure for query in queries}, key=str)),
        frozenset(column_of(query) for query in queries),
        recipe or Recipe(encoder.settings.objective, encoder.settings.augmentation),
        0 if views is None else views.number,
        None if crafter is None else crafter.name,
        0 if crafter is None else crafter.settings.kept_epochs[-1],
        None if bank is None else bank.roles[0].name,
        first.protocol,
        {role.name: 0 if role.part_of in shown else role.count for role in roles},
        isinstance(encoder.settings, EndpointConfig),
    )


def column_of(query: Query) -> str:
    """The column of a query in the files of its pass."""
    return f"{query.output}.{query.measure.name}"
