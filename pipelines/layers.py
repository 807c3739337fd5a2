"""What is asked of which encoder for which roles: demands, and the layers of features that are planned for them.

Layers are recorded in the run folder and complement each other: a later demand asks only for what none covers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mi_core.augmentations import AUGMENTATIONS
from mi_core.checks import check_choice
from mi_core.encoders.checkpoint import OUTPUTS
from mi_core.extraction import QueryPlan
from pipelines import storage
from pipelines.artifacts import SeedFolder, digest
from pipelines.encoders import describe
from pipelines.methods import complete
from pipelines.splits import Splits

if TYPE_CHECKING:
    from pipelines.attack_config import AttackConfig
    from pipelines.config import RunConfig

_SHARED = ("base", "roles", "needs")  # of a recorded layer: what tells another run that it may be copied
SEQUENTIAL = "sequential"  # the need of an attack whose fit decides which views are asked
VERSION = 2  # of the features: a change of their meaning makes a new base


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
    repeats: int = Field(
        default=1, ge=1, description="times that every query is asked; the mean of the answers counts (against noise)"
    )

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

    def __hash__(self) -> int:
        return hash((self.name, json.dumps(self.settings, sort_keys=True)))


def crops_alone(scale: tuple[float, float]) -> Recipe:
    """Random resized crops and nothing else: views for a target whose algorithm is unknown (EncoderMI, section 5.1)."""
    off = {"flip": 0.0, "jitter_probability": 0.0, "grayscale": 0.0}
    return Recipe("simclr", complete(AUGMENTATIONS["simclr"], {"crop_scale": scale, **off}))


@dataclass(frozen=True)
class Stopping:
    """The attack that decides how many views of an image are asked: its position, the output and the checkpoint."""

    position: int
    output: str
    epoch: int


def stopping_of(config: RunConfig, attack: AttackConfig, output: str, epoch: int) -> Stopping | None:
    """What decides how many views an attack asks; None: it asks all. Equal attacks are the first of them."""
    return Stopping(config.attacks.index(attack), output, epoch) if attack.method().sequential else None


@dataclass(frozen=True)
class Demand:
    """Features that later stages need from the kept checkpoints of one encoder: ``needs`` by role.

    ``recipe`` None: nothing that is needed consumes views. ``crafter``: the encoder that adversarial images are crafted
    on. ``count``: only so many samples of each role, by rank of a hash. ``stopping``: what decides when to stop asking
    for views, of one checkpoint. ``without``: roles whose samples are left out.
    """

    encoder: str
    outputs: tuple[str, ...]
    needs: Mapping[str, AbstractSet[str]]
    recipe: Recipe | None = None
    crafter: str | None = None
    count: int | None = None
    stopping: Stopping | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layer:
    """One pass over the images of some roles with one encoder; its tag names the files it commits.

    ``base`` hashes everything but roles, needs and epochs: layers of one base complement each other.
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
    crafter: str | None = None
    count: int | None = None
    stopping: Stopping | None = None
    without: tuple[str, ...] = ()
    repeats: int = 1

    @property
    def tag(self) -> str:
        """Short name of this layer in file names."""
        return digest(self.base, sorted(self.needs))[:12]

    @property
    def queries_per_image(self) -> int:
        """Queries of the encoder per image, over all checkpoints; at most, where a rule decides."""
        return self.plan().queries_per_image * len(self.epochs) * self.repeats

    def plan(self) -> QueryPlan:
        """What is asked per image."""
        return QueryPlan(self.needs, self.outputs, self.views, self.batch_views, self.precision)


def layers_of(demand: Demand, config: RunConfig, folder: SeedFolder, *, plan: bool) -> list[Layer]:
    """The layers of a demand: those recorded before and, when planning, new ones for what is left over."""
    queries = config.queries
    description = describe(folder, demand.encoder).description
    own = Recipe(description["config"]["objective"], description["config"]["augmentation"])
    template = Layer(
        encoder=demand.encoder,
        epochs=config.queried_epochs(demand.encoder) if demand.stopping is None else (demand.stopping.epoch,),
        roles=(),
        needs=(),
        outputs=demand.outputs,
        views=queries.views if demand.stopping is None else _views(config, demand.stopping),
        recipe=demand.recipe or own,
        batch_views=queries.batch_views,
        precision=queries.precision,
        base="",
        crafter=demand.crafter,
        count=demand.count,
        stopping=demand.stopping,
        without=demand.without,
        repeats=queries.repeats,
    )
    crafted = [] if demand.crafter is None else [describe(folder, demand.crafter).description["fingerprints"]]
    base = digest(
        VERSION,
        _identity(template),
        description["fingerprints"],
        config.data.decoder().digest(),
        folder.seed,
        *crafted,
        *([] if demand.stopping is None else _decided_by(config, folder, demand.stopping)),
    )
    recorded = recorded_layers(folder, demand.encoder)
    mine = [entry for entry in recorded if entry["base"] == base]
    if plan:
        new = []
        for needs, roles in _missing(demand, mine).items():
            asked = replace(template, needs=needs).queries_per_image
            new.append({"base": base, "roles": roles, "needs": needs, "per_image": asked, "count": demand.count})
        if new:
            storage.write_json(layers_path(folder, demand.encoder), recorded + new)
        mine += new
    return [replace(template, roles=tuple(entry["roles"]), needs=tuple(entry["needs"]), base=base) for entry in mine]


def _views(config: RunConfig, stopping: Stopping) -> int:
    return config.attacks[stopping.position].views or config.queries.views


def _identity(layer: Layer) -> dict[str, Any]:
    """What tells layers apart, but for what stops them; batches change no file, and each checkpoint has its own."""
    plain = asdict(replace(layer, batch_views=0, epochs=(), stopping=None))
    unset = [name for name in ("stopping", "without") if not plain[name]]
    unset += ["repeats"] if layer.repeats == 1 else []
    return {name: value for name, value in plain.items() if name not in unset}


def _decided_by(config: RunConfig, folder: SeedFolder, stopping: Stopping) -> list[Any]:
    """What a stopping rule is a function of: an attack, and what it is fitted on."""
    attack, splits = config.attacks[stopping.position], Splits.load(folder.path)
    fitted = {name: describe(folder, name).description["fingerprints"] for name in config.shadows(attack)}
    roles = {role: splits.role_digest(role) for role in config.reference_roles(attack)}
    return [attack.model_dump(mode="json"), stopping.output, stopping.epoch, fitted, roles]


def recorded_layers(folder: SeedFolder, encoder: str) -> list[dict[str, Any]]:
    """The layers planned for an encoder so far; one with ``per_image`` was asked by this run, others were copied."""
    path = layers_path(folder, encoder)
    found: list[dict[str, Any]] = storage.read_json(path) if storage.exists(path) else []
    return found


def inherit_layers(folder: SeedFolder, others: Sequence[SeedFolder], encoders: Sequence[str]) -> None:
    """Plan on from what other runs of the same seed have planned for the same samples, so that it can be shared."""
    splits = Splits.load(folder.path)
    for encoder in encoders:
        recorded = recorded_layers(folder, encoder)
        planned = [{name: entry[name] for name in _SHARED} for entry in recorded]
        new: list[dict[str, Any]] = []
        for other in others:
            theirs = [] if other == folder else recorded_layers(other, encoder)
            if not theirs:
                continue
            known = Splits.load(other.path)
            for entry in theirs:
                same = all(
                    role in splits.roles and splits.role_digest(role) == known.role_digest(role)
                    for role in entry["roles"]
                )
                bare = {name: entry[name] for name in _SHARED}
                if same and bare not in planned and bare not in new:
                    new.append(bare)
        if new:
            storage.write_json(layers_path(folder, encoder), recorded + new)


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
