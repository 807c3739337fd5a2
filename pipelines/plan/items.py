"""The nouns of a run. Whoever reads this file knows the program.

`resolve` makes a `Plan` of the config and the roles that were drawn, one for each seed. A plan is made of items, and
each item of others: a judge of a score, a score of a fit and of readings, a reading of queries, a query of an encoder,
samples and views. The result of an item depends on its fields alone, and its key is a digest of them: items of equal
keys are made once. Stages are handed items: `pretrain` makes encoders, `extract` answers queries, `attack` fits, scores
and judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, TypeVar

from pydantic import BaseModel

from mi_core.features.measure import Measure, as_json
from pipelines.config.sections.attacks import AttackConfig, AttributeInferenceConfig
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import EncoderConfig
from pipelines.config.sections.queries import Recipe
from pipelines.files.digest import digest

VERSION = 4
"""Of what items mean: raise it where the same fields give other results."""

Kind = TypeVar("Kind", bound="Item")


def unkeyed(**settings: Any) -> Any:
    """A field that changes no result, so that it is no part of the key."""
    return field(metadata={"keyed": False}, compare=False, **settings)


class Item:
    """A frozen dataclass whose result lies under its key."""

    @cached_property
    def key(self) -> str:
        """64 hex digits. Fields that have their default are left out, so that a new field moves no key."""
        return key_of(type(self).__name__, self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that the key is a digest of, as plain values; inputs by their keys."""
        return {
            part.name: keyed(value)
            for part in fields(self)  # type: ignore[arg-type]
            if part.metadata.get("keyed", True) and (value := getattr(self, part.name)) != part.default
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Item) and type(self) is type(other) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def key_of(kind: str, parts: Mapping[str, Any]) -> str:
    """The key of an item of some kind with some fields, as `Item.fields` gives them."""
    return digest(VERSION, kind, parts)


def items_in(whole: Item, kind: type[Kind]) -> list[Kind]:
    """The items of a kind that an item is made of, itself included, each once, inputs first."""
    found: dict[str, Kind] = {}
    seen: set[int] = set()

    def visit(value: Any) -> None:
        if isinstance(value, tuple):
            for part in value:
                visit(part)
        elif isinstance(value, Item) and id(value) not in seen:
            seen.add(id(value))
            for part in fields(value):  # type: ignore[arg-type]
                visit(getattr(value, part.name))
            if isinstance(value, kind):
                found.setdefault(value.key, value)

    visit(whole)
    return list(found.values())


def keyed(value: Any) -> Any:
    """A value as the plain values that its key is a digest of."""
    if isinstance(value, Item):
        return value.key
    if isinstance(value, Measure):
        return as_json(value)
    if hasattr(value, "identity"):  # an encoder from elsewhere, some of whose settings change no answer
        return value.identity()
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [keyed(one) for one in value] if isinstance(value, tuple | list) else value


@dataclass(frozen=True, eq=False)
class Role(Item):
    """The images of one role, as they were drawn for one seed; ``part_of``: the role that it is drawn from, if any."""

    name: str
    count: int = unkeyed()
    digest: str = ""  # of their ids and pixels
    part_of: str = unkeyed(default="")


@dataclass(frozen=True, eq=False)
class Samples(Item):
    """Images: those of some roles, less those of others.

    ``count``: images of each role, the first by a seeded hash; None: all. ``fold``: the half that a search judges, or
    ``all``.
    """

    roles: tuple[Role, ...]
    seed: int
    count: int | None = None
    without: tuple[Role, ...] = ()
    fold: str = "all"


@dataclass(frozen=True, eq=False)
class Encoder(Item):
    """A network. Its settings say whether it is trained here, adopted, behind an API, or behind a defense."""

    name: str  # in the config; its random numbers follow from name and seed
    seed: int
    settings: EncoderConfig
    members: tuple[Role, ...] = ()  # what it is trained on
    outside: tuple[Role, ...] = ()  # what its provider has besides, for a defense
    start: Encoder | None = None  # the one that it starts from, or that is defended
    images: str = ""  # digest of decoder, captions and classes; of a half also of the nonce that draws it
    nonce: str | None = unkeyed(default=None)  # of the audit: given, no name of an image has an effect


@dataclass(frozen=True, eq=False)
class Views(Item):
    """Images sent in place of an image: views of a recipe, or images that are crafted on another encoder."""

    recipe: Recipe | None = None
    number: int = 0
    crafter: Encoder | None = None


@dataclass(frozen=True, eq=False)
class Protocol(Item):
    """How answers are taken, the same for all queries of a plan."""

    decoder: str  # digest of how files become pixels
    nonce: str = ""  # makes random views unforeseeable, beside the pixels
    precision: str = "float32"  # of the encoder's forward pass
    repeats: int = 1  # times that every query is asked
    stored: str = "float32"  # precision of stored features
    batch_views: int = unkeyed(default=640)


@dataclass(frozen=True, eq=False)
class Query(Item):
    """One measure of some images, read off one output of one checkpoint: a column of numbers."""

    encoder: Encoder
    epoch: int
    samples: Samples
    views: Views | None  # None: the images themselves, or what the measure makes of them, such as patches
    output: str
    measure: Measure
    protocol: Protocol
    bank: Samples | None = None  # images that every sample is compared with
    meaning: str = ""  # digest of captions and classes, where the measure takes them


@dataclass(frozen=True, eq=False)
class Reading(Item):
    """The columns that are read of one checkpoint about some samples: one per measure and queried role.

    ``samples`` may be a part of what was queried: a role that is drawn from a queried one is read there.
    """

    queries: tuple[Query, ...]
    samples: Samples
    drawn: int = 0  # views that the queries draw
    used: int = 0  # views that count, the first of these
    anchors: tuple[Query, ...] = ()  # embeddings of further images
    population: Reading | None = None  # the same of images that no encoder saw
    labelled: bool = False  # with the true classes
    before: Reading | None = None  # the same of an earlier version of the encoder

    @property
    def encoder(self) -> Encoder:
        """The encoder that is read."""
        return self.queries[0].encoder


@dataclass(frozen=True, eq=False)
class Fit(Item):
    """An attack fitted on images whose membership is known, of the target or of shadow encoders."""

    attack: AttackConfig  # method and parameters
    seed: int
    readings: tuple[Reading, ...]
    known_members: tuple[Role, ...]  # the roles that count as members; none where each shadow has its own half
    audited: bool = False  # fitted on the samples that it judges, of which the candidates count as members
    by_halves: bool = False  # fitted on shadows (or one), each trained on a half of the audited samples


@dataclass(frozen=True, eq=False)
class Beside(Item):
    """The same attack on a control: a reference encoder, which saw none of the samples or a half of them."""

    reading: Reading  # of the audited samples
    fit: Fit | None  # on samples of this encoder; None: that of the target
    trained: bool = True  # whether the encoder has learned anything


@dataclass(frozen=True, eq=False)
class Score(Item):
    """A fitted attack on the audited samples: a column for the target, and one for the reference encoders."""

    fit: Fit
    reading: Reading
    beside: tuple[Beside, ...] = ()
    calibration: Reading | None = None  # known non-members: they tell how scores follow those of the references
    canaries: Reading | None = None  # samples whose coins are guessed


@dataclass(frozen=True, eq=False)
class Judge(Item):
    """The findings of scores: rates, the test of the candidates as a whole, the share of them that was used."""

    score: Score
    name: str  # of the result in the run folder
    position: int  # of the attack in the config
    output: str
    epoch: int
    audited: tuple[Role, Role]  # the two roles that are told apart, possible members first
    by: str  # how these came about: by lot or by choice
    meaning: str  # digest of classes and groups, by which intervals and tables are made
    known: Reading | None = None  # members that no attack is fitted on: they tell the true-positive rate
    last: bool = True  # whether it is the last attacked checkpoint, of which evidence is taken
    primary: bool = unkeyed(default=False)  # the verdict rests on it
    repeats: int = 1

    @property
    def attack(self) -> AttackConfig:
        """Method and parameters."""
        return self.score.fit.attack

    @property
    def seed(self) -> int:
        """Of its plan."""
        return self.score.fit.seed

    @property
    def target(self) -> Encoder:
        """The attacked encoder."""
        return self.score.reading.encoder

    @property
    def references(self) -> tuple[str, ...]:
        """Names of the reference encoders."""
        return tuple(other.reading.encoder.name for other in self.score.beside)

    @property
    def fold(self) -> str:
        """The half of the samples that a search judges, or ``all``."""
        return self.score.reading.samples.fold


@dataclass(frozen=True, eq=False)
class Utility(Item):
    """How useful a checkpoint is: probes on labelled images, and what a classifier trained here gets right."""

    encoder: Encoder
    epoch: int
    meaning: str  # digest of the classes
    neighbours: tuple[int, ...]  # numbers of neighbours that are tried
    bank: Reading | None = None
    test: Reading | None = None
    trained: Reading | None = None  # logits of a classifier, on what it was trained on
    unseen: Reading | None = None  # and on other images


@dataclass(frozen=True, eq=False)
class Inference(Item):
    """An attribute inferred from embeddings: fitted on samples whose attribute is known, judged on others."""

    settings: AttributeInferenceConfig
    epoch: int
    known: Reading
    tested: Reading
    values: int  # that the attribute has
    meaning: str  # digest of the attribute
    last: bool = True

    @property
    def seed(self) -> int:
        """Of its plan."""
        return self.known.encoder.seed


@dataclass(frozen=True, eq=False)
class Blind(Item):
    """The check without an encoder: a classifier that sees the files and pixels of the audited samples alone."""

    audited: tuple[Role, Role]
    seed: int
    decoder: str
    meaning: str  # digest of the groups


@dataclass(frozen=True, eq=False)
class Semantic(Item):
    """The check by content: a classifier on what reference encoders see in the audited samples."""

    audited: tuple[Role, Role]
    seed: int
    readings: tuple[Reading, ...]
    recipe: Recipe  # of views in which references that are trained here have to recognise images
    meaning: str  # digest of the groups


@dataclass(frozen=True, eq=False)
class Plan(Item):
    """All that a run does for one seed."""

    seed: int
    data: DataConfig  # how images are read
    roles: tuple[Role, ...]
    audited: tuple[Role, Role]
    encoders: tuple[Encoder, ...]
    judges: tuple[Judge, ...]
    utilities: tuple[Utility, ...] = ()
    inferences: tuple[Inference, ...] = ()
    blind: Blind | None = None
    semantic: Semantic | None = None
