"""The nouns of a run. Whoever reads this file knows the program.

A plan is made of these items, and each item of others: a judge of a score, a score of a fit and of readings, a reading
of queries, a query of an encoder, images and views. An item is a pure function of its fields: its result lies under its
key, which is a digest of them, and is there or is made. N samples have a role; of several seeds each has a plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.features import Measure
from pipelines.config.sections.attacks import AttackConfig, AttributeInferenceConfig
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import EncoderConfig
from pipelines.config.sections.queries import Recipe
from pipelines.plan.keys import Item, unkeyed


@dataclass(frozen=True, eq=False)
class Role(Item):
    """The images of one role, as they were drawn for one seed: how many, and a digest of their ids and pixels."""

    name: str
    count: int = unkeyed()
    digest: str = ""
    part_of: str = unkeyed(default="")
    """The role that it is drawn from; empty: it is drawn from a source."""


@dataclass(frozen=True, eq=False)
class Samples(Item):
    """Which images: those of some roles, less those of others; of each role the first by a seeded hash."""

    roles: tuple[Role, ...]
    seed: int
    count: int | None = None
    without: tuple[Role, ...] = ()
    fold: str = "all"


@dataclass(frozen=True, eq=False)
class Encoder(Item):
    """Which network: trained here, adopted from elsewhere, behind an API, or behind a defense, as its settings say.

    Args:
        name: in the config, from which its random numbers follow.
        seed: of the plan.
        settings: of its section of the config.
        members: roles that it was trained on.
        outside: roles that its provider has besides.
        start: encoder that it starts from, or that is defended.
        images: digest of all that decides what is taught besides: decoder, captions, meaning of the classes.
        nonce: of the audit, where it is trained on a half of its roles, so that nobody can foresee the halves.
    """

    name: str
    seed: int
    settings: EncoderConfig
    members: tuple[Role, ...] = ()
    outside: tuple[Role, ...] = ()
    start: Encoder | None = None
    images: str = ""
    nonce: str | None = None


@dataclass(frozen=True, eq=False)
class Views(Item):
    """What is sent in place of an image: views of a recipe, or images that are crafted on another encoder."""

    recipe: Recipe | None = None
    number: int = 0
    crafter: Encoder | None = None


@dataclass(frozen=True, eq=False)
class Protocol(Item):
    """How answers are taken, the same for all queries of a plan.

    Args:
        decoder: digest of how files become pixels.
        nonce: what makes random views unforeseeable, beside the pixels.
        precision: of the encoder's forward pass.
        repeats: times that every query is asked.
        stored: precision of stored features.
        batch_views: queries in one call of the encoder, at most.
    """

    decoder: str
    nonce: str = ""
    precision: str = "float32"
    repeats: int = 1
    stored: str = "float32"
    batch_views: int = unkeyed(default=640)


@dataclass(frozen=True, eq=False)
class Query(Item):
    """One measure of some images, read off one output of one checkpoint: a column of numbers.

    Args:
        bank: images that every sample is compared with; None: none.
        stopping: fit whose rule says how many views of an image are asked for; None: all.
    """

    encoder: Encoder
    epoch: int
    samples: Samples
    views: Views | None
    output: str
    measure: Measure
    protocol: Protocol
    bank: Samples | None = None
    stopping: Fit | None = None


@dataclass(frozen=True, eq=False)
class Reading(Item):
    """What is read of one checkpoint of an encoder about some samples: the columns of some queries.

    Args:
        queries: one for each measure and each queried role.
        samples: those that are wanted: all of the queried ones, or a part.
        drawn, used: views that were drawn, and those of them that count, the first.
        anchors: embeddings of further images; empty: there are none.
        population: the same measures of images that no encoder saw; empty: none.
        labelled: whether the true classes are read too.
    """

    queries: tuple[Query, ...]
    samples: Samples
    drawn: int = 0
    used: int = 0
    anchors: tuple[Query, ...] = ()
    population: Reading | None = None
    labelled: bool = False

    @property
    def encoder(self) -> Encoder:
        """The encoder that is read."""
        return self.queries[0].encoder


@dataclass(frozen=True, eq=False)
class Fit(Item):
    """An attack fitted on images whose membership is known.

    Args:
        attack: method and parameters.
        seed: of its random numbers.
        readings: of the target, of a shadow, or of each shadow that is trained on a half.
        known_members: roles that count as members; of shadows that are trained on halves each has its own half.
        audited: whether it is fitted on the samples that it judges, of which the candidates count as members.
        by_halves: whether it is fitted on shadows that are trained on halves, perhaps on one alone.
    """

    attack: AttackConfig
    seed: int
    readings: tuple[Reading, ...]
    known_members: tuple[Role, ...]
    audited: bool = False
    by_halves: bool = False


@dataclass(frozen=True, eq=False)
class Beside(Item):
    """The same attack on a reference encoder, which saw none of the samples or only a half of them.

    Args:
        reading: of the audited samples.
        fit: on samples of this encoder; None: that of the target.
        trained: whether the encoder has learned anything.
    """

    reading: Reading
    fit: Fit | None
    trained: bool = True


@dataclass(frozen=True, eq=False)
class Score(Item):
    """A fitted attack on the audited samples: a column for the target, and one for the references.

    Args:
        fit: the attack.
        reading: of the target.
        beside: the reference encoders.
        calibration: reading of the target of known non-members, by which scores are compared with those of the
            references; None: by lot, or there are none.
        canaries: reading of the samples whose coins are guessed; None: these are not guessed.
    """

    fit: Fit
    reading: Reading
    beside: tuple[Beside, ...] = ()
    calibration: Reading | None = None
    canaries: Reading | None = None


@dataclass(frozen=True, eq=False)
class Judge(Item):
    """What the scores of an attack say: rates, the test of the candidates as a whole, the share that was used.

    Args:
        score: that is judged.
        name: of the result in the run folder.
        position: of the attack in the config.
        output, epoch: of the target.
        audited: the two roles that are told apart, possible members first.
        by: how they came about, by lot or by choice.
        known: reading of the target of members that no attack is fitted on; None: there are none.
        last: whether it is the last attacked checkpoint, which evidence is taken of.
        primary: whether the verdict rests on it, at the last checkpoint.
        repeats: times that every query was asked.
    """

    score: Score
    name: str
    position: int
    output: str
    epoch: int
    audited: tuple[Role, Role]
    by: str
    known: Reading | None = None
    last: bool = True
    primary: bool = unkeyed(default=False)
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
    def has_shadow(self) -> bool:
        """Whether it is fitted on other encoders than the target."""
        return self.score.fit.readings[0].encoder != self.target

    @property
    def fold(self) -> str:
        """The half of the samples that a search judges; all."""
        return self.score.reading.samples.fold


@dataclass(frozen=True, eq=False)
class Utility(Item):
    """How useful a checkpoint is: probes on labelled images, and what a classifier trained here gets right.

    Args:
        bank, test: readings of the backbone; None: there are no images for it.
        trained, unseen: readings of the logits; None: it is no classifier trained here.
        neighbours: numbers of neighbours that are tried.
    """

    encoder: Encoder
    epoch: int
    neighbours: tuple[int, ...]
    bank: Reading | None = None
    test: Reading | None = None
    trained: Reading | None = None
    unseen: Reading | None = None


@dataclass(frozen=True, eq=False)
class Inference(Item):
    """An attribute inferred from embeddings: fitted on samples whose attribute is known, judged on others."""

    settings: AttributeInferenceConfig
    epoch: int
    known: Reading
    tested: Reading
    values: int
    last: bool = True

    @property
    def seed(self) -> int:
        """Of its plan."""
        return self.known.encoder.seed


@dataclass(frozen=True, eq=False)
class Blind(Item):
    """The control without an encoder: a classifier that sees the files and pixels of the audited samples alone."""

    audited: tuple[Role, Role]
    seed: int
    images: str


@dataclass(frozen=True, eq=False)
class Semantic(Item):
    """The control by content: a classifier on what reference encoders see in the audited samples.

    Args:
        audited: the two roles, possible members first.
        seed: of the plan.
        readings: of the references.
        recipe: views in which those that are trained here have to recognise images.
    """

    audited: tuple[Role, Role]
    seed: int
    readings: tuple[Reading, ...]
    recipe: Recipe


@dataclass(frozen=True, eq=False)
class Plan(Item):
    """All that a run does for one seed.

    Args:
        seed: of the plan.
        data: how images are read; its roles are drawn.
        roles: by name, in the order of the config.
        audited: the two roles that are told apart, possible members first.
        encoders: to make, in the order of the config.
        judges, utilities, inferences, blind, semantic: to compute.
        budgeted: encoders whose queries a budget bounds.
    """

    seed: int
    data: DataConfig
    roles: tuple[Role, ...]
    audited: tuple[Role, Role]
    encoders: tuple[Encoder, ...]
    judges: tuple[Judge, ...]
    utilities: tuple[Utility, ...] = ()
    inferences: tuple[Inference, ...] = ()
    blind: Blind | None = None
    semantic: Semantic | None = None
