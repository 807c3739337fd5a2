"""Which features stand in which files: demands, layers, one Parquet file per shard or chunk, and reading them back.

File names are a function of the work: encoder, checkpoint, source, shard, and a tag that hashes what was computed
for which samples. So what is there is done, what is missing is to do, and writing twice changes nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, field_validator

from mi_core.augmentations import AUGMENTATIONS
from mi_core.checks import check_choice
from mi_core.encoders.checkpoint import OUTPUTS
from mi_core.extraction import QueryPlan
from mi_core.features import consumes
from mi_core.images import Decoder
from mi_core.records import Features
from pipelines import storage
from pipelines.artifacts import SeedFolder, digest
from pipelines.captions import made_caption
from pipelines.encoders import describe
from pipelines.errors import UserError
from pipelines.methods import complete
from pipelines.readers import Compaction, Share
from pipelines.sources import Item, SourceConfig
from pipelines.splits import Splits

if TYPE_CHECKING:
    from pipelines.config import RunConfig

VERSION = 1  # of the features: a change of their meaning makes a new base
ATTEMPTS = 3  # a chunk that killed its worker this often is committed as crashed instead of tried again


class QueriesConfig(BaseModel):
    """How encoders are queried."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    views: int = Field(default=10, ge=1, description="augmented views per image")
    augmentation: Literal["as-trained"] | dict[str, Any] = Field(
        default="as-trained", description="as-trained, or settings of the recipe"
    )
    crop_only: tuple[float, float] = Field(
        default=(0.2, 1.0),
        description="share of the area of the crops that are the only views where an attack's shadow was trained by "
        "another algorithm than the target",
    )
    outputs: tuple[str, ...] = Field(default=("projection", "backbone"), description="embeddings audited")
    chunk: int = Field(default=256, ge=1, description="images per chunk: the unit of work, retry and resume")
    batch_views: int = Field(default=640, ge=1, description="queries per call of the encoder, at most")
    precision: Literal["float32", "bfloat16"] = Field(default="float32", description="of the encoder's forward")

    @field_validator("crop_only")
    @classmethod
    def _possible_crop(cls, value: tuple[float, float]) -> tuple[float, float]:
        crops_alone(value)
        return value

    @field_validator("outputs")
    @classmethod
    def _known_outputs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_choice("outputs", output, OUTPUTS) for output in value)


@dataclass(frozen=True)
class Recipe:
    """How query views are drawn: a recipe of `AUGMENTATIONS` and all its settings."""

    name: str
    settings: dict[str, Any]


def crops_alone(scale: tuple[float, float]) -> Recipe:
    """Random resized crops and nothing else: views for a target whose algorithm is unknown (EncoderMI, section 5.1)."""
    off = {"flip": 0.0, "jitter_probability": 0.0, "grayscale": 0.0}
    return Recipe("simclr", complete(AUGMENTATIONS["simclr"], {"crop_scale": scale, **off}))


@dataclass(frozen=True)
class Demand:
    """Features that later stages need from the kept checkpoints of one encoder: ``needs`` by role.

    ``recipe`` None: nothing that is needed consumes views.
    """

    encoder: str
    outputs: tuple[str, ...]
    needs: Mapping[str, AbstractSet[str]]
    recipe: Recipe | None = None


@dataclass(frozen=True)
class Layer:
    """One pass over the images of some roles with one encoder; its tag names the files it commits.

    ``base`` hashes everything but roles and needs: layers of one base complement each other.
    """

    encoder: str
    epochs: tuple[int, ...]
    roles: tuple[str, ...]
    needs: tuple[str, ...]
    outputs: tuple[str, ...]
    views: int
    recipe: Recipe
    batch_views: int
    precision: str
    base: str

    @property
    def tag(self) -> str:
        """Short name of this layer in file names."""
        return digest(self.base, sorted(self.needs))[:12]

    def plan(self) -> QueryPlan:
        """What is asked per image."""
        return QueryPlan(self.needs, self.outputs, self.views, self.batch_views, self.precision)


@dataclass(frozen=True)
class ShardJob:
    """One shard for one layer: the unit that is planned and compacted. Plain data; a function of the config alone."""

    folder: SeedFolder
    layer: Layer
    source: str
    reader: SourceConfig
    item: Item
    wanted: tuple[str, ...]
    chunk: int
    decoder: Decoder
    skip: frozenset[int] = frozenset()
    captions: Mapping[str, str] | None = None
    attempts: int = ATTEMPTS

    @property
    def chunks(self) -> int:
        """Number of chunks of the shard."""
        return -(-len(self.wanted) // self.chunk)

    @property
    def identity(self) -> str:
        """What two jobs share that compute the same: encoders, images, views and needs, not the folder."""
        shard = [self.source, self.reader.model_dump(mode="json"), self.item.name]
        return digest(self.tag, shard, sorted((self.captions or {}).items()))

    def path(self, epoch: int, chunk: int | None = None) -> str:
        """File of one chunk, or of the compacted shard."""
        suffix = "" if chunk is None else f"-{chunk:05d}"
        folder = f"{self.folder.features(self.layer.encoder, epoch)}/{self.source}"
        return f"{folder}/{self.item.name}.{self.tag}{suffix}.parquet"

    @property
    def tag(self) -> str:
        """The layer and the selection of samples: another selection never meets these files."""
        return digest(self.layer.tag, list(self.wanted), self.chunk)[:12]

    def share(self) -> Share:
        """What the reader has to find and to skip."""
        bare = replace(self, captions=None)
        return Share(pickle.dumps(bare), frozenset(self.wanted), self.chunk, self.skip, self.captions)

    def compaction(self) -> Compaction:
        """The files of the shard, for `readers.compact`."""
        numbers = range(self.chunks)
        files = tuple(
            (self.path(epoch), tuple(self.path(epoch, chunk) for chunk in numbers)) for epoch in self.layer.epochs
        )
        markers = tuple(self.attempt(chunk, number) for chunk in numbers for number in range(1, ATTEMPTS + 1))
        return Compaction(self.source, self.item.name, files, self.rejected_path, self.wanted, markers)

    @property
    def rejected_path(self) -> str:
        """File that lists the rejected samples, if there are any."""
        return f"{self.path(self.layer.epochs[0]).removesuffix('.parquet')}.rejected.json"

    def attempt(self, chunk: int, number: int) -> str:
        """Marker of an attempt at a chunk."""
        folder = f"{self.folder.path}/features/{self.layer.encoder}/attempts"
        return f"{folder}/{self.source}-{self.item.name}.{self.tag}-{chunk:05d}.{number}"


def load_features(
    config: RunConfig,
    folder: SeedFolder,
    encoder: str,
    epoch: int,
    output: str,
    needs: Sequence[str],
    roles: Sequence[str],
    recipe: Recipe | None = None,
) -> Features:
    """Committed features of some roles, in the order of the splits; rejected samples are left out and counted.

    Args:
        recipe: of the views, for needs that consume views.

    Raises:
        UserError: features are missing (extraction has not finished).
    """
    splits = Splits.load(folder.path)
    wanted = splits.ids(roles)
    asked = set(wanted)
    columns: dict[str, dict[str, Any]] = {need: {} for need in needs}
    rejected: set[str] = set()
    demands = [demand for demand in config.demands() if demand.encoder == encoder and output in demand.outputs]
    for job in (job for demand in demands for job in shard_jobs(demand, config, folder, plan=False)):
        present = [
            need
            for need in needs
            if need in job.layer.needs and (consumes(need) != "views" or job.layer.recipe == recipe)
        ]
        if not present or asked.isdisjoint(f"{job.source}/{key}" for key in job.wanted):
            continue
        path = job.path(epoch)
        if not storage.exists(path):
            raise UserError(f"{path} is missing; run the extract stage first")
        table = storage.read_table(path)
        ids = [f"{job.source}/{key}" for key in table["key"].to_pylist()]
        good = [name for name, status in zip(ids, table["status"].to_pylist(), strict=True) if status == "ok"]
        rejected |= set(ids) - set(good)
        for need in present:
            columns[need].update(zip(good, _matrix(table[f"{output}.{need}"]), strict=True))
    kept = [name for name in wanted if name not in rejected]
    lost = [name for need in needs for name in kept if name not in columns[need]]
    if lost:
        raise UserError(f"features of {encoder} miss {len(lost)} samples, first {lost[0]}; run the extract stage")
    return Features(
        np.array(kept, dtype=np.str_),
        {need: np.stack([rows[name] for name in kept]) for need, rows in columns.items()},
    )


def shard_jobs(demand: Demand, config: RunConfig, folder: SeedFolder, *, plan: bool) -> Iterator[ShardJob]:
    """All (layer, shard) pairs of one demand, in a fixed order."""
    splits = Splits.load(folder.path)
    decoder = config.data.decoder()
    shards = [(source, model, item) for source, model in config.data.sources.items() for item in model.items()]
    for layer in _layers(demand, config, folder, plan=plan):
        for source, model, item in shards:
            wanted = sorted(splits.keys(source, item.name, layer.roles))
            if wanted:
                job = ShardJob(folder, layer, source, model, item, tuple(wanted), config.queries.chunk, decoder)
                made = _made_captions(config, splits, job) if layer.plan().captioned else None
                yield replace(job, captions=made)


def _made_captions(config: RunConfig, splits: Splits, job: ShardJob) -> dict[str, str]:
    """Captions from class names, for the samples of a shard that bring none."""
    labels = splits.labels()
    return {key: made_caption(config.data, job.source, key, labels[f"{job.source}/{key}"]) for key in job.wanted}


def rejected_samples(config: RunConfig, folder: SeedFolder) -> list[dict[str, str]]:
    """Samples of one seed that could not be queried: source, shard, key and reason, each once."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for demand in config.demands():
        for job in shard_jobs(demand, config, folder, plan=False):
            if storage.exists(job.rejected_path):
                found |= {tuple(entry.values()): entry for entry in storage.read_json(job.rejected_path)}
    return list(found.values())


def count_queries(config: RunConfig, folder: SeedFolder, *, plan: bool = False) -> Iterator[tuple[str, str, int, int]]:
    """(encoder, role, images, queries) of everything asked of the encoders of one seed, over all their checkpoints."""
    counts = Splits.load(folder.path).counts()
    for demand in config.demands():
        for layer in _layers(demand, config, folder, plan=False):
            per_image = layer.plan().queries_per_image * len(layer.epochs)
            for role in layer.roles:
                yield demand.encoder, role, counts[role], counts[role] * per_image


def _layers(demand: Demand, config: RunConfig, folder: SeedFolder, *, plan: bool) -> list[Layer]:
    """The layers of a demand: those recorded before and, when planning, new ones for what is left over."""
    queries = config.queries
    description = describe(folder, demand.encoder).description
    own = Recipe(description["config"]["objective"], description["config"]["augmentation"])
    template = Layer(
        encoder=demand.encoder,
        epochs=tuple(int(epoch) for epoch in description["fingerprints"]),
        roles=(),
        needs=(),
        outputs=demand.outputs,
        views=queries.views,
        recipe=demand.recipe or own,
        batch_views=queries.batch_views,
        precision=queries.precision,
        base="",
    )
    base = digest(
        VERSION,
        asdict(replace(template, batch_views=0)),  # the batch size does not change a result
        description["fingerprints"],
        config.data.decoder().digest(),
        folder.seed,
    )
    path = layers_path(folder, demand.encoder)
    recorded: list[dict[str, Any]] = storage.read_json(path) if storage.exists(path) else []
    mine = [entry for entry in recorded if entry["base"] == base]
    if plan:
        new = [{"base": base, "roles": roles, "needs": needs} for needs, roles in _missing(demand, mine).items()]
        if new:
            storage.write_json(path, recorded + new)
        mine += new
    return [replace(template, roles=tuple(entry["roles"]), needs=tuple(entry["needs"]), base=base) for entry in mine]


def inherit_layers(folder: SeedFolder, others: Sequence[SeedFolder], encoders: Sequence[str]) -> None:
    """Plan on from what other runs of the same seed have planned for the same samples, so that it can be shared."""
    splits = Splits.load(folder.path)
    for encoder in encoders:
        path = layers_path(folder, encoder)
        recorded: list[dict[str, Any]] = storage.read_json(path) if storage.exists(path) else []
        new: list[dict[str, Any]] = []
        for other in others:
            theirs = layers_path(other, encoder)
            if other == folder or not storage.exists(theirs):
                continue
            known = Splits.load(other.path)
            for entry in storage.read_json(theirs):
                same = all(
                    role in splits.roles and splits.role_digest(role) == known.role_digest(role)
                    for role in entry["roles"]
                )
                if same and entry not in recorded and entry not in new:
                    new.append(entry)
        if new:
            storage.write_json(path, recorded + new)


def layers_path(folder: SeedFolder, encoder: str) -> str:
    """Where the layers planned for an encoder are recorded."""
    return f"{folder.path}/features/{encoder}/layers.json"


def _missing(demand: Demand, layers: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], list[str]]:
    """Needs that no layer covers, each set with the roles it is missing for."""
    missing: dict[tuple[str, ...], list[str]] = {}
    for role, needs in demand.needs.items():
        covered = {need for layer in layers if role in layer["roles"] for need in layer["needs"]}
        left = tuple(sorted(needs - covered))
        if left:
            missing.setdefault(left, []).append(role)
    return missing


def remaining(job: ShardJob) -> ShardJob | None:
    """The job with the chunks to skip, or None when its shard is complete."""
    if all(storage.exists(job.path(epoch)) for epoch in job.layer.epochs):
        return None
    done = {
        chunk
        for chunk in range(job.chunks)
        if all(storage.exists(job.path(epoch, chunk)) for epoch in job.layer.epochs)
    }
    return replace(job, skip=frozenset(done))


def share_features(done: ShardJob, job: ShardJob) -> None:
    """Copy the features of a shard to another run that asks for the same ones."""
    pairs = [(done.path(epoch), job.path(epoch)) for epoch in job.layer.epochs]
    for source, target in [(done.rejected_path, job.rejected_path), *pairs]:
        if source != target and storage.exists(source) and not storage.exists(target):
            storage.copy(source, target)


def sample_table(keys: list[str], status: list[str], columns: dict[str, np.ndarray]) -> pa.Table:
    """One row per sample, in order; rejected samples have a status and null measurements."""
    rows = np.flatnonzero([state == "ok" for state in status])
    arrays: dict[str, pa.Array] = {
        "key": pa.array(keys, pa.string()),
        "status": pa.array(status, pa.string()),
    }
    take = np.full(len(keys), -1)
    take[rows] = np.arange(len(rows))
    indices = pa.array(take, mask=take < 0)
    for name, values in columns.items():
        flat = pa.array(np.ascontiguousarray(values, dtype=np.float32).reshape(-1), pa.float32())
        whole = flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        arrays[name] = whole.take(indices)
    return pa.table(arrays)


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Measurements of the samples that have them: (N,) or (N, width) float32."""
    present = column.drop_null().combine_chunks()
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(present.flatten()).reshape(len(present), column.type.list_size)
    return np.asarray(present)
