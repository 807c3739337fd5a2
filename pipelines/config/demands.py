"""The queries that a config needs of its encoders, each once, however many attacks and measurements read the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import product

from mi_core.encoders.checkpoint import OUTPUTS
from mi_core.features import Measure
from mi_core.features.embedding import Embedding
from mi_core.features.sequential import SequentialSimilarity
from pipelines.config.roles import ANCHOR_ROLE, CALIBRATION_ROLE, COINS
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AttackConfig
from pipelines.config.sections.queries import Recipe

CLASSIFIED = 10_000  # samples per role that classifiers see: enough for an interval of .01, and small for memory
SEQUENTIAL = SequentialSimilarity()  # the need of an attack whose fit decides which views are asked


@dataclass(frozen=True)
class Stopping:
    """The attack that decides how many views of an image are asked: its position, the output and the checkpoint."""

    position: int
    output: str
    epoch: int


@dataclass(frozen=True)
class Asking:
    """One way of querying an encoder.

    Args:
        encoder: that is queried.
        outputs: embeddings that are read.
        recipe: of the views; None: no views are needed.
        crafter: encoder that adversarial images are crafted on.
        count: samples of each role, by rank of a hash; None: all.
        stopping: the attack that decides when to stop asking for views, on one checkpoint.
        without: roles whose samples are left out.
        bank: role of the images that samples are compared with.
    """

    encoder: str
    outputs: tuple[str, ...] = ()
    recipe: Recipe | None = None
    crafter: str | None = None
    count: int | None = None
    stopping: Stopping | None = None
    without: tuple[str, ...] = ()
    bank: str | None = None

    def narrowed(self, need: Measure) -> Asking:
        """Without the settings that a membership feature does not depend on: views, other images, and outputs."""
        return Asking(
            self.encoder,
            recipe=self.recipe if need.consumes == "views" else None,
            crafter=self.crafter if need.consumes == "adversarial" else None,
            stopping=self.stopping,
            without=self.without,
            bank=self.bank if need.bank else None,
        )


@dataclass(frozen=True)
class Demand:
    """Membership features, by role, that later stages need from the kept checkpoints of one encoder."""

    asking: Asking
    needs: Mapping[str, AbstractSet[Measure]]


@dataclass
class _Asked:
    """One set of queries of one encoder for one role, with all features that are read off the answers."""

    outputs: set[str] = field(default_factory=set)
    needs: set[Measure] = field(default_factory=set)
    count: int | None = 0  # samples of the role; None: all

    def add(self, need: Measure, outputs: Iterable[str], count: int | None) -> None:
        self.needs.add(need)
        self.outputs |= set(outputs)
        self.count = None if count is None or self.count is None else max(count, self.count)


def demands_of(config: RunConfig, encoder: str | None = None) -> tuple[Demand, ...]:
    """All work of the extraction, one entry per encoder, set of outputs and way of asking; or that of one encoder.

    Features that read the same queries share an entry, also where attacks read different outputs. Features that consume
    no views go with the first recipe, so that one pass queries both.
    """
    wanted: dict[tuple[Asking, str, str], _Asked] = {}

    def want(asking: Asking, needs: Iterable[Measure], roles: Sequence[str]) -> None:
        for need in needs if encoder in (None, asking.encoder) else ():
            for role in roles:
                together = wanted.setdefault((asking.narrowed(need), need.query, role), _Asked())
                together.add(need, asking.outputs, asking.count)

    guessers = config.dp_audits
    for position, attack in enumerate(config.attacks):
        needs, outputs, shadows = attack.needs(), config.outputs_of(attack), config.shadows(attack)
        asking = asking_of(config, attack, attack.target)
        own = [] if shadows else config.whole_roles(config.reference_roles(attack))
        queried: dict[str, Sequence[str]] = {attack.target: [*config.audited, *own]}
        if attack.method().sequential:
            known = config.fitted_on_target(attack)
            queried = {attack.target: known}
            for epoch, output in product(config.attacked_epochs(attack.target), outputs):
                until = stopping_of(config, attack, output, epoch)
                stopped = replace(asking, outputs=(output,), stopping=until, without=known)
                want(stopped, (SEQUENTIAL,), config.audited)
        elif CALIBRATION_ROLE in config.data.roles:
            queried[attack.target] = [*queried[attack.target], CALIBRATION_ROLE]
        if position in guessers:
            queried[attack.target] = [*queried[attack.target], *COINS]
        queried |= {name: config.reference_roles(attack) for name in shadows if encoder in (None, name)}
        references = config.references_of(attack)
        for name in references:
            queried[name] = [*queried.get(name, []), *config.audited, *own]
        for name, roles in queried.items():
            read = config.outputs_on(name, outputs) if name in references else outputs
            want(replace(asking, encoder=name, outputs=read), needs, [*roles, *config.population_roles(attack)])
            if attack.method().anchored:
                want(Asking(name, read), (Embedding(),), config.whole_roles([ANCHOR_ROLE]))
    for name in config.classified_on:
        want(embedding_of(config, name), (Embedding(),), config.audited)
    for inference in config.attribute_inference:
        roles = [*config.auxiliary_roles(inference), *inference.test]
        want(Asking(inference.target, (inference.output,)), (Embedding(),), roles)
    for name in config.measured:
        for roles in config.utility_roles(name):
            want(Asking(name, ("backbone",)), (Embedding(),), roles)
        for roles in config.classifier_roles(name):
            want(Asking(name, ("logits",)), (Embedding(),), roles)
    return tuple(_joined(wanted))


def _joined(wanted: dict[tuple[Asking, str, str], _Asked]) -> Iterable[Demand]:
    """Join queries of one encoder with the same outputs and number of samples, one pass per way of asking."""
    passes: dict[tuple[str, tuple[str, ...], int | None], dict[Asking, dict[str, set[Measure]]]] = {}
    for (asking, _, role), queries in wanted.items():
        outputs = tuple(output for output in OUTPUTS if output in queries.outputs)
        by_role = passes.setdefault((asking.encoder, outputs, queries.count), {}).setdefault(asking, {})
        by_role.setdefault(role, set()).update(queries.needs)
    for (encoder, outputs, count), by_asking in passes.items():
        plain = by_asking.pop(Asking(encoder), {})
        first = next((asking for asking in by_asking if asking.stopping is None), Asking(encoder))
        of_first = by_asking.setdefault(first, {})
        for role, needs in plain.items():
            of_first.setdefault(role, set()).update(needs)
        for asking, by_role in by_asking.items():
            yield Demand(replace(asking, outputs=outputs, count=count), by_role)


def asking_of(config: RunConfig, attack: AttackConfig, encoder: str) -> Asking:
    """The way in which an attack queries an encoder: the attacked one, a shadow, or a control."""
    return Asking(
        encoder,
        config.outputs_of(attack),
        config.recipe(attack),
        config.crafter(attack),
        attack.count,
        bank=config.bank_role(attack),
    )


def embedding_of(config: RunConfig, reference: str) -> Asking:
    """The way in which a reference encoder is asked for what it sees in audited images, of which some are enough."""
    return Asking(reference, config.outputs_on(reference, (config.primary_output,)), count=CLASSIFIED)


def stopping_of(config: RunConfig, attack: AttackConfig, output: str, epoch: int) -> Stopping | None:
    """The rule for the number of views of an attack; None: all views. Equal attacks share the rule of the first."""
    return Stopping(config.attacks.index(attack), output, epoch) if attack.method().sequential else None
