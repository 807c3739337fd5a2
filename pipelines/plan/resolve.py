"""Resolve a config and the roles that were drawn into the plan of one seed. Pure: no folder, no Ray, no image.

Every default and every rule of a threat model is decided here and in `rules`. The stages are handed items and decide
none of it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product

from mi_core.features import Measure
from mi_core.features.embedding import Embedding
from mi_core.objectives import OBJECTIVES
from mi_core.querying.precision import precision_on
from mi_core.validity.verdict import CHOICE, CLASSIFIED
from pipelines.config.roles import ANCHOR_ROLE, CALIBRATION_ROLE, COINS, POPULATION_ROLE, are_nonmembers
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AUDITED, AttackConfig
from pipelines.config.sections.encoders import DefendedConfig, TrainedConfig
from pipelines.files.digest import digest
from pipelines.plan import items
from pipelines.plan.rules import ThreatModel, population_roles

EMBEDDING = (Embedding(),)
_MEANING = {"captions", "label", "attributes", "group_by"}  # of data: what samples mean besides their pixels


def resolve(config: RunConfig, seed: int, roles: Mapping[str, items.Role]) -> items.Plan:
    """The plan of a run for one of its seeds; ``roles``: all of them by name, as they were drawn."""
    return _Resolver(ThreatModel(config), seed, roles).plan()


def queries_in(config: RunConfig) -> list[items.Query]:
    """All queries of a run for its first seed, before anything is drawn."""
    resolver = _Resolver(ThreatModel(config), config.seeds[0], roles_in_config(config))
    resolver.plan()
    return list(resolver.queries.values())


def roles_in_config(config: RunConfig) -> dict[str, items.Role]:
    """The roles of a config before anything is drawn: of what is known to have a size, and else of none."""
    data = config.data
    return {
        name: items.Role(name, role.count or 0, part_of=role.source_name if role.source_name in data.roles else "")
        for name, role in data.roles.items()
    }


class _Resolver:
    """Makes the items of one plan, each once."""

    def __init__(self, threat: ThreatModel, seed: int, roles: Mapping[str, items.Role]) -> None:
        self.threat, self.seed, self.roles = threat, seed, roles
        config = self.config = threat.config
        queries = config.queries
        self.protocol = items.Protocol(
            config.data.decoder().digest(),
            nonce=queries.nonce or "",
            precision=precision_on(config.resources.device, queries.precision),
            repeats=queries.repeats,
            stored=queries.feature_precision,
            batch_views=queries.batch_views,
        )
        self.meaning = digest(config.data.model_dump(mode="json", include=_MEANING), config.data.by_shard)
        self.audited = threat.audited_roles
        self.encoders: dict[str, items.Encoder] = {}
        self.attackers = {id(attack): _Attacker(threat, attack) for attack in config.attacks}
        self.queries: dict[tuple[object, ...], items.Query] = {}

    def plan(self) -> items.Plan:
        """The whole plan."""
        config = self.config
        inside, outside = self._roles(self.audited)
        whole = config.fold == "all"
        return items.Plan(
            self.seed,
            config.data,
            tuple(self.roles.values()),
            (inside, outside),
            tuple(self.encoder(name) for name in config.encoders),
            tuple(self._judges()),
            tuple(self._utilities()),
            tuple(self._inferences()),
            items.Blind((inside, outside), self.seed, self.protocol.decoder, self.meaning) if whole else None,
            self._semantic() if whole else None,
        )

    def _roles(self, names: Iterable[str]) -> tuple[items.Role, ...]:
        return tuple(self.roles[name] for name in names)

    def encoder(self, name: str) -> items.Encoder:
        """An encoder, with those that it starts from."""
        if name not in self.encoders:
            self.encoders[name] = self._new_encoder(name)
        return self.encoders[name]

    def _new_encoder(self, name: str) -> items.Encoder:
        settings, data = self.config.encoders[name], self.config.data
        if not isinstance(settings, TrainedConfig):
            return items.Encoder(name, self.seed, settings, images=self.protocol.decoder)
        defended = isinstance(settings, DefendedConfig)
        labelled = defended or OBJECTIVES[settings.objective].target in ("class", "caption")
        meaning = data.meaning_of(data.label if labelled else None, settings.attribute)
        nonce = self.config.queries.nonce
        drawn = [nonce] if nonce is not None and settings.half is not None else []
        return items.Encoder(
            name,
            self.seed,
            settings,
            self._roles(settings.train_on),
            self._roles(settings.outside) if isinstance(settings, DefendedConfig) else (),
            None if settings.start is None else self.encoder(settings.start),
            digest(self.protocol.decoder, data.model_dump(mode="json")["captions"], meaning, *drawn),
            nonce,
        )

    def _query(
        self, name: str, epoch: int, output: str, measure: Measure, samples: items.Samples, attack: AttackConfig | None
    ) -> items.Query:
        """A query, each once."""
        attacker = None if attack is None else self.attackers[id(attack)]
        views: items.Views | None = None
        if attacker is not None and measure.consumes == "views":
            views = attacker.views(self.config.queries.views if measure.shares_views else 0)
        elif attacker is not None and attacker.crafter is not None and measure.consumes == "adversarial":
            views = items.Views(crafter=self.encoder(attacker.crafter))
        (role,) = samples.roles
        known = (name, epoch, output, measure, role.name, samples.count, views)
        if known not in self.queries:
            bank = items.Samples(self._roles([ANCHOR_ROLE]), self.seed, measure.bank) if measure.bank else None
            self.queries[known] = items.Query(
                self.encoder(name),
                epoch,
                samples,
                views,
                output,
                measure,
                self.protocol,
                bank,
                self.meaning if measure.captions or measure.labels else "",
            )
        return self.queries[known]

    def _reading(
        self,
        name: str,
        epoch: int,
        output: str,
        measures: Sequence[Measure],
        samples: items.Samples,
        attack: AttackConfig | None = None,
        *,
        within: Sequence[str] = (),
    ) -> items.Reading:
        """The reading of one checkpoint; a role that is a part of one ``within`` is read of the whole."""
        asked = dict.fromkeys(self.roles[role.part_of] if role.part_of in within else role for role in samples.roles)
        queries = tuple(
            self._query(name, epoch, output, measure, items.Samples((role,), self.seed, samples.count), attack)
            for measure, role in product(measures, asked)
        )
        if attack is None:
            return items.Reading(queries, samples)
        drawn = self.config.queries.views
        return items.Reading(queries, samples, drawn, attack.views or drawn)

    def _of_attack(
        self,
        attack: AttackConfig,
        name: str,
        checkpoint: tuple[int, str],
        roles: Sequence[str],
        *,
        without: Sequence[str] = (),
        fold: str = "all",
    ) -> items.Reading:
        """An attack's reading of an encoder, with its needs beside: anchors, population, classes, earlier version.

        ``checkpoint``: epoch and output of the target; that of another encoder beside it.
        """
        epoch, output = checkpoint
        on = self.threat.epoch_beside(name, epoch)
        attacker = self.attackers[id(attack)]
        read = self.threat.outputs_on(name, (output,))[0] if name in attacker.references else output
        needs = attacker.needs
        samples = items.Samples(self._roles(roles), self.seed, attack.count, self._roles(without), fold)
        beside, population, anchors = population_roles(attack), None, tuple[items.Query, ...]()
        if beside:
            others = items.Samples(self._roles(beside), self.seed, attack.count)
            population = self._reading(name, on, read, needs, others, attack)
        if attack.method().anchored:
            anchors = self._reading(
                name, on, read, EMBEDDING, items.Samples(self._roles([ANCHOR_ROLE]), self.seed)
            ).queries
        plain = self._reading(name, on, read, needs, samples, attack, within=self.audited)
        earlier = None
        if attack.before is not None:
            on, (read, *_) = (
                self.threat.epoch_beside(attack.before, epoch),
                self.threat.outputs_on(attack.before, (output,)),
            )
            earlier = self._reading(attack.before, on, read, needs, samples, attack, within=self.audited)
        return replace(plain, anchors=anchors, population=population, labelled=attack.method().labelled, before=earlier)

    def _fit(self, attack: AttackConfig, checkpoint: tuple[int, str], name: str) -> items.Fit:
        """An attack fitted on its shadows or, without any, on known samples of an encoder."""
        config, models = self.config, self.threat.shadows_of(attack)
        if attack.reference not in config.encoders and models:
            readings = tuple(self._of_attack(attack, shadow, checkpoint, self.audited) for shadow in models)
            return items.Fit(attack, self.seed, readings, (), by_halves=True)
        if attack.reference == AUDITED:
            reading = self._of_attack(attack, name, checkpoint, self.audited, fold=config.fold)
            return items.Fit(attack, self.seed, (reading,), self._roles(self.audited[:1]), audited=True)
        roles = self.threat.reference_roles(attack)
        reading = self._of_attack(attack, models[0] if models else name, checkpoint, roles)
        return items.Fit(attack, self.seed, (reading,), self._roles(role for role in roles if not are_nonmembers(role)))

    def _judges(self) -> Iterator[items.Judge]:
        for position, attack in enumerate(self.config.attacks):
            epochs = self.threat.attacked_epochs(attack.target)
            for epoch, output in product(epochs, self.threat.outputs_of(attack)):
                yield self._judge(position, attack, (epoch, output), last=epoch == epochs[-1])

    def _judge(self, position: int, attack: AttackConfig, checkpoint: tuple[int, str], *, last: bool) -> items.Judge:
        config, (epoch, output) = self.config, checkpoint
        fit = self._fit(attack, checkpoint, attack.target)
        inside, outside = self._roles(self.audited)
        own_images = config.fold == "all" and not fit.audited
        known = None
        if last and own_images and not fit.by_halves and CALIBRATION_ROLE in config.data.roles:
            known = self._of_attack(attack, attack.target, checkpoint, [CALIBRATION_ROLE])
        return items.Judge(
            self._score(position, attack, checkpoint, fit, last=last),
            f"{attack.attack}-{position}-{output}-{epoch:04d}",
            position,
            output,
            epoch,
            (inside, outside),
            self.threat.groups_by,
            self.meaning,
            known,
            last,
            position == config.validity.attack and output == self.threat.primary_output,
            config.queries.repeats,
        )

    def _score(
        self, position: int, attack: AttackConfig, checkpoint: tuple[int, str], fit: items.Fit, *, last: bool
    ) -> items.Score:
        config, (_, output) = self.config, checkpoint
        known = self.threat.roles_fitted_on_target(attack)
        target = self._of_attack(attack, attack.target, checkpoint, self.audited, without=known, fold=config.fold)
        own = bool(self.threat.shadows_of(attack))
        beside = tuple(
            items.Beside(
                self._of_attack(attack, name, checkpoint, self.audited),
                None if own else self._fit(attack, checkpoint, name),
                self.threat.is_trained(name),
            )
            for name in self.attackers[id(attack)].references
        )
        calibration = canaries = None
        if self.threat.groups_by == CHOICE and beside and POPULATION_ROLE in known:
            calibration = self._of_attack(attack, attack.target, checkpoint, [POPULATION_ROLE])
        if last and position in self.threat.guessing_attacks and output == self.threat.guessing_output(position):
            canaries = self._of_attack(attack, attack.target, checkpoint, COINS)
        return items.Score(fit, target, beside, calibration, canaries)

    def _embeddings(
        self, name: str, epoch: int, output: str, roles: Sequence[str], count: int | None = None, fold: str = "all"
    ) -> items.Reading:
        return self._reading(
            name, epoch, output, EMBEDDING, items.Samples(self._roles(roles), self.seed, count, fold=fold)
        )

    def _utilities(self) -> Iterator[items.Utility]:
        """Of all encoders, and in a trial of those attacked."""
        config = self.config
        for name in dict.fromkeys(config.encoders if config.fold == "all" else (one.target for one in config.attacks)):
            bank, test = self.threat.utility_roles(name)
            classified = self.threat.classifier_roles(name)
            for epoch in self.threat.attacked_epochs(name):
                probed = bank and test
                trained = classified and all(classified)
                yield items.Utility(
                    self.encoder(name),
                    epoch,
                    self.meaning,
                    config.utility.k,
                    self._embeddings(name, epoch, "backbone", bank) if probed else None,
                    self._embeddings(name, epoch, "backbone", test, fold=config.fold) if probed else None,
                    self._embeddings(name, epoch, "logits", classified[0]) if trained else None,
                    self._embeddings(name, epoch, "logits", classified[1], fold=config.fold) if trained else None,
                )

    def _inferences(self) -> Iterator[items.Inference]:
        config = self.config
        for chosen in config.attribute_inference:
            epochs = self.threat.attacked_epochs(chosen.target)
            for epoch in epochs:
                yield items.Inference(
                    chosen,
                    epoch,
                    self._embeddings(chosen.target, epoch, chosen.output, self.threat.auxiliary_roles(chosen)),
                    self._embeddings(chosen.target, epoch, chosen.output, chosen.test, fold=config.fold),
                    len(config.data.attributes[chosen.attribute].names),
                    self.meaning,
                    epoch == epochs[-1],
                )

    def _semantic(self) -> items.Semantic | None:
        names = self.threat.classifying_references
        if not names:
            return None
        inside, outside = self._roles(self.audited)
        asked = (self.threat.primary_output,)
        last = ((name, self.threat.last_queried_epoch(name), self.threat.outputs_on(name, asked)[0]) for name in names)
        readings = tuple(self._embeddings(*one, self.audited, CLASSIFIED) for one in last)
        recipe = self.threat.recipe_of(self.threat.primary)
        return items.Semantic((inside, outside), self.seed, readings, recipe, self.meaning)


class _Attacker:
    """The consequences of an attack alone: measures, views, the encoder that she crafts images on, and the controls."""

    def __init__(self, threat: ThreatModel, attack: AttackConfig) -> None:
        self.needs = attack.needs
        self.views = cache(partial(items.Views, threat.recipe_of(attack)))
        self.crafter = threat.crafter_of(attack)
        self.references = threat.references_of(attack)
