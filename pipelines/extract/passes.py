"""Plan the passes over images that meet the demands on an encoder.

Passes are recorded in the run folder and complement each other: a later demand adds only the features that none covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from mi_core.features import Measure, as_json, measure_of
from mi_core.querying.plan import QueryPlan
from mi_core.querying.precision import precision_on
from pipelines.config.demands import Asking, Demand, Stopping, demands_of
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import EndpointConfig
from pipelines.config.sections.queries import Recipe
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.folder import SeedFolder

CHUNK = 256  # images per chunk where nothing else is known
_SHARED = ("base", "roles", "needs", "chunk")  # of a recorded pass: what tells another run that it may be copied
_FIRST = ("encoder", "outputs", "recipe", "crafter", "count")  # a later field of `Asking` counts only where it is set
_LATER = {"repeats": 1, "feature_precision": "float32", "nonce": ""}  # fields that count where they are not so
VERSION = 3  # of the features: a change of their meaning makes a new base


class FeatureFile(NamedTuple):
    """The features of one shard from one pass: one Parquet file per checkpoint and chunk."""

    source: str
    shard: str
    tag: str
    chunks: int

    def path(self, folder: SeedFolder, encoder: str, epoch: int, chunk: int) -> str:
        """The file of a chunk."""
        return f"{folder.features(encoder, epoch)}/{self.source}/{self.shard}.{self.tag}-{chunk:05d}.parquet"

    def paths(self, folder: SeedFolder, encoder: str, epoch: int) -> list[str]:
        """The files of the shard, in the order of the chunks."""
        return [self.path(folder, encoder, epoch, chunk) for chunk in range(self.chunks)]

    def rejected_path(self, folder: SeedFolder, encoder: str, epoch: int, chunk: int) -> str:
        """The file that lists the rejected samples of a chunk, if there are any."""
        return f"{self.path(folder, encoder, epoch, chunk).removesuffix('.parquet')}.rejected.json"


@dataclass(frozen=True)
class QueryPass:
    """One pass over the images of some roles with one encoder; its tag names the files it commits.

    ``base`` hashes everything but roles, needs and epochs: passes of one base complement each other.
    """

    asking: Asking
    recipe: Recipe
    epochs: tuple[int, ...]
    roles: tuple[str, ...]
    needs: tuple[Measure, ...]
    views: int
    batch_views: int
    precision: str
    base: str
    repeats: int = 1
    chunk: int = CHUNK
    feature_precision: str = "float32"
    nonce: str = ""

    @property
    def tag(self) -> str:
        """Short name of this pass in file names."""
        return digest(self.base, sorted(map(str, self.needs)))[:12]

    def files_path(self, folder: SeedFolder) -> str:
        """The file in which a finished pass records its feature files."""
        name = digest(self.base, sorted(map(str, self.needs)), sorted(self.roles))[:12]
        return f"{folder.path}/features/{self.asking.encoder}/{name}.files.json"

    def files(self, folder: SeedFolder) -> list[FeatureFile]:
        """The files of a finished pass.

        Raises:
            UserError: the pass has not finished.
        """
        path = self.files_path(folder)
        if not storage.exists(path):
            raise UserError(f"{path} is missing; run the extract stage first")
        return [FeatureFile(*entry) for entry in storage.read_json(path)]

    def finish(self, folder: SeedFolder, files: Sequence[FeatureFile]) -> None:
        """Record the files of a finished pass: features are read back from these."""
        path = self.files_path(folder)
        if not storage.exists(path) or self.files(folder) != list(files):
            storage.write_json(path, files)

    @property
    def queries_per_image(self) -> int:
        """Queries per image, over all checkpoints; an upper bound if a rule stops early."""
        return self.plan().queries_per_image * len(self.epochs) * self.repeats

    @property
    def bank(self) -> int:
        """Images of the bank that samples are compared with, 0 for none."""
        return max((need.bank for need in self.needs), default=0)

    @property
    def bank_queries(self) -> int:
        """Queries for the bank, over all checkpoints."""
        return self.bank * len(self.epochs) * self.repeats

    def plan(self) -> QueryPlan:
        """The queries per image."""
        return QueryPlan(self.needs, self.asking.outputs, self.views, self.batch_views, self.precision)


def passes_of(demand: Demand, config: RunConfig, folder: SeedFolder) -> list[QueryPass]:
    """The recorded passes of a demand."""
    template = _template(demand, config, folder)
    return [
        replace(
            template,
            roles=tuple(entry["roles"]),
            needs=tuple(map(measure_of, entry["needs"])),
            chunk=_chunk(entry, config),
        )
        for entry in recorded_passes(folder, demand.asking.encoder)
        if entry["base"] == template.base
    ]


def _chunk(entry: Mapping[str, Any], config: RunConfig) -> int:
    """Images per chunk of a recorded pass: as the config says, or as was decided when the pass was planned."""
    asked = config.queries.chunk
    return int(entry.get("chunk", CHUNK)) if asked == "auto" else asked


def missing_passes(config: RunConfig, folder: SeedFolder) -> list[QueryPass]:
    """New passes for the features that no recorded pass covers; see `split` for their roles."""
    new: list[QueryPass] = []
    for demand in demands_of(config):
        template = _template(demand, config, folder)
        planned: list[Mapping[str, Any]] = [*recorded_passes(folder, demand.asking.encoder)]
        planned += [
            {"base": query.base, "roles": query.roles, "needs": list(map(as_json, query.needs))} for query in new
        ]
        mine = [entry for entry in planned if entry["base"] == template.base]
        for needs, roles in _missing(demand, mine).items():
            new.append(replace(template, needs=needs, roles=tuple(roles)))
    return split(new, config)


def split(passes: Sequence[QueryPass], config: RunConfig) -> list[QueryPass]:
    """Split passes by role where others cover some of their roles alone, so that equal sets of samples result.

    Encoders that are asked for the same samples can share decoded images and views. A part stays with its role where
    a pass covers both. Passes that share nothing stay whole.
    """

    def whole(role: str, query: QueryPass) -> str:
        parent = config.data.roles[role].source_name
        return parent if parent in query.roles else role

    sharing = [query for query in passes if shares(query, config)]
    takers: dict[str, set[int]] = {}
    for number, query in enumerate(sharing):
        for role in query.roles:
            takers.setdefault(whole(role, query), set()).add(number)
    pieces: list[QueryPass] = []
    for query in passes:
        if not shares(query, config):
            pieces.append(query)
            continue
        blocks: dict[frozenset[int], list[str]] = {}
        for role in query.roles:
            blocks.setdefault(frozenset(takers[whole(role, query)]), []).append(role)
        pieces += [replace(query, roles=tuple(roles)) for roles in blocks.values()]
    return pieces


def shares(query: QueryPass, config: RunConfig) -> bool:
    """Whether a pass can share decoded images with others: none of its queries depends on answers."""
    asking = query.asking
    if isinstance(config.encoders[asking.encoder], EndpointConfig) or asking.crafter is not None:
        return False
    return asking.count is None and not query.plan().searches


def record(folder: SeedFolder, passes: Sequence[QueryPass]) -> None:
    """Record planned passes in the run folder."""
    for encoder in dict.fromkeys(query.asking.encoder for query in passes):
        entries = [
            {
                "base": query.base,
                "roles": query.roles,
                "needs": list(map(as_json, query.needs)),
                "per_image": query.queries_per_image,
                "bank": query.bank_queries,
                "count": query.asking.count,
                "chunk": query.chunk,
            }
            for query in passes
            if query.asking.encoder == encoder
        ]
        storage.write_json(passes_path(folder, encoder), recorded_passes(folder, encoder) + entries)


def _template(demand: Demand, config: RunConfig, folder: SeedFolder) -> QueryPass:
    """A pass of a demand without roles and needs."""
    queries, asking = config.queries, demand.asking
    stored = describe(folder, asking.encoder).record
    stopping = asking.stopping
    template = QueryPass(
        asking=asking,
        recipe=asking.recipe or Recipe(stored.config["objective"], stored.config["augmentation"]),
        epochs=config.queried_epochs(asking.encoder) if stopping is None else (stopping.epoch,),
        roles=(),
        needs=(),
        views=queries.views if stopping is None else config.attacks[stopping.position].views or queries.views,
        batch_views=queries.batch_views,
        precision=precision_on(config.resources.device, queries.precision),
        base="",
        repeats=queries.repeats,
        chunk=_chunk({}, config),
        feature_precision=queries.feature_precision,
        nonce=queries.nonce or "",
    )
    against = [] if asking.bank is None else [{"bank": Splits.load(folder.path).role_digest(asking.bank)}]
    crafted = [] if asking.crafter is None else [describe(folder, asking.crafter).record.fingerprints]
    base = digest(
        VERSION,
        _identity(template),
        stored.fingerprints,
        config.data.decoder().digest(),
        folder.seed,
        *([stored.momentum_fingerprint] if stored.momentum_fingerprint else []),
        *crafted,
        *against,
        *([] if stopping is None else _decided_by(config, folder, stopping)),
    )
    return replace(template, base=base)


def _identity(asked: QueryPass) -> dict[str, Any]:
    """The settings that distinguish passes, without the stopping rule, checkpoints, and sizes of batches and chunks."""
    plain = asdict(replace(asked, batch_views=0, epochs=(), asking=replace(asked.asking, stopping=None)))
    del plain["chunk"]
    asking = {name: value for name, value in plain.pop("asking").items() if value or name in _FIRST}
    return asking | {name: value for name, value in plain.items() if _LATER.get(name) != value}


def _decided_by(config: RunConfig, folder: SeedFolder, stopping: Stopping) -> list[Any]:
    """The inputs of a stopping rule: an attack and its reference."""
    attack, splits = config.attacks[stopping.position], Splits.load(folder.path)
    fitted = {name: describe(folder, name).record.fingerprints for name in config.shadows(attack)}
    roles = {role: splits.role_digest(role) for role in config.reference_roles(attack)}
    return [attack.model_dump(mode="json"), stopping.output, stopping.epoch, fitted, roles]


def recorded_passes(folder: SeedFolder, encoder: str) -> list[dict[str, Any]]:
    """The passes planned for an encoder so far; entries with ``per_image`` were queried by this run, not copied."""
    path = passes_path(folder, encoder)
    entries: list[dict[str, Any]] = storage.read_json(path) if storage.exists(path) else []
    return entries


def inherit_passes(folder: SeedFolder, others: Sequence[SeedFolder], encoders: Sequence[str]) -> None:
    """Take over the passes that other runs planned for the same samples, so that their features can be shared."""
    splits = Splits.load(folder.path)
    for encoder in encoders:
        recorded = recorded_passes(folder, encoder)
        planned = [_shared(entry) for entry in recorded]
        new: list[dict[str, Any]] = []
        for other in others:
            theirs = [] if other == folder else recorded_passes(other, encoder)
            if not theirs:
                continue
            known = Splits.load(other.path)
            for entry in theirs:
                same = all(
                    role in splits.roles and splits.role_digest(role) == known.role_digest(role)
                    for role in entry["roles"]
                )
                bare = _shared(entry)
                if same and bare not in planned and bare not in new:
                    new.append(bare)
        if new:
            storage.write_json(passes_path(folder, encoder), recorded + new)


def _shared(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in _SHARED if name in entry}


def passes_path(folder: SeedFolder, encoder: str) -> str:
    """The file that records the passes of an encoder."""
    return f"{folder.path}/features/{encoder}/layers.json"


def _missing(demand: Demand, planned: Sequence[Mapping[str, Any]]) -> dict[tuple[Measure, ...], list[str]]:
    """Needs that no pass covers, each set with the roles that lack it."""
    missing: dict[tuple[Measure, ...], list[str]] = {}
    for role, needs in demand.needs.items():
        covered = {measure_of(need) for one in planned if role in one["roles"] for need in one["needs"]}
        left = tuple(sorted(needs - covered, key=str))
        if left:
            missing.setdefault(left, []).append(role)
    return missing
