"""What encoders are, and what attacks found: results, memorisation, promises of privacy held against canaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, reduce
from operator import add, attrgetter
from typing import Any

import numpy as np

from mi_core.defenses.privacy import present_or_not
from mi_core.defenses.sensitivity import LEAVE
from mi_core.metrics.pooled import pool
from mi_core.records import Estimate
from mi_core.report.build import attack_result
from mi_core.report.model import attacks as model
from mi_core.report.model.defenses import DefendedEncoder
from mi_core.report.model.report import DpAudit, Guessed, Memorisation, MemorisedSample, Promise
from mi_core.report.pooling import grouped
from mi_core.validity.conformal import flagged_at
from mi_core.validity.one_run import Guesses, any_time_p_value, best_bound, corrected_p_value, grid_of
from pipelines.attack.canaries import guessed, wealth_against
from pipelines.attack.judge import memorised_path
from pipelines.attack.results import Task, result_of
from pipelines.attack.utility import utility_path
from pipelines.config.roles import CANARY_IN, CANARY_ROLE
from pipelines.config.sections.attacks import APPROXIMATE, GAUSSIAN, SHADOW, SHADOWS, AttackConfig
from pipelines.config.sections.encoders import DefendedConfig, EndpointConfig, LoadedConfig, TrainedConfig
from pipelines.data.draw.splits import Splits
from pipelines.encoders import adopt
from pipelines.encoders.access import spent
from pipelines.encoders.stored import describe
from pipelines.files import storage
from pipelines.plan.rules import ThreatModel
from pipelines.report.finished import FinishedRun
from pipelines.report.verdict import difference_from, paired_by_id
from pipelines.run.folder import SeedFolder

TOP = 12  # samples named in the report
PROMISED = frozenset({"epsilon", "epsilon_rdp", "delta", "gamma"})


def attack_results(run: FinishedRun) -> Iterator[model.AttackResult]:
    """The results of the attacks that apply."""
    primaries = {task.judge.seed: task for task in run.primaries() if result_of(task).not_applicable is None}
    first = cache(lambda seed: paired_by_id(primaries[seed]))  # read once for all others
    for task, result in run.applying():
        judge, attack = task.judge, task.judge.attack
        assert result.metrics is not None
        shadow = attack.reference if run.threat.shadows_of(attack) else None
        compared = judge.last and judge.seed in primaries and task != primaries[judge.seed]
        kind = SHADOW if shadow in run.config.encoders else SHADOWS
        yield attack_result(
            result.metrics,
            asked=run.threat.is_membership_unknown,
            **run.tried(task),
            epoch=judge.epoch,
            reference=attack.reference if shadow is None else kind,
            shadow=shadow,
            knowledge=knowledge(run.threat, attack),
            queries=result.queries,
            seconds=result.seconds,
            primary=judge.primary,
            difference=difference_from(first(judge.seed), task) if compared else None,
        )


def not_applicable(run: FinishedRun) -> Iterator[model.NotApplicable]:
    """Attacks that found nothing to read."""
    for task in run.tasks():
        if (reason := result_of(task).not_applicable) is not None:
            yield model.NotApplicable(**run.tried(task), epoch=task.judge.epoch, reason=reason)


def method_part(run: FinishedRun, name: str) -> model.MethodPart:
    """The threat model of an attack, and its queries where all of its entries spend as many."""
    attacks, queries = [attack for attack in run.config.attacks if attack.attack == name], run.config.queries
    method = attacks[0].method()
    sent = {
        method(attack.parameters()).queries_per_sample(attack.views or queries.views) * queries.repeats
        for attack in attacks
    }
    per_sample = sent.pop() if len(sent) == 1 else None
    return model.MethodPart(threat_model=method.threat_model, source=method.source, queries_per_sample=per_sample)


def knowledge(threat: ThreatModel, attack: AttackConfig) -> model.Knowledge | None:
    """What the owner of a shadow knows of the target, by the two encoders of a config; None: there is no shadow."""
    shadows, target = threat.shadows_of(attack), threat.encoders[attack.target]
    shadow = threat.encoders[shadows[0]] if shadows else None
    if not isinstance(target, TrainedConfig) or not isinstance(shadow, TrainedConfig):
        return None
    roles = threat.roles
    own, other = (
        {  # sources and classes that its images are drawn from
            (parent.source_name, role.classes or parent.classes)
            for role in map(roles.__getitem__, threat.member_roles(name))
            for parent in (roles.get(role.source_name, role),)
        }
        for name in (shadows[0], attack.target)
    )
    return model.Knowledge(
        distribution=own == other,
        architecture=shadow.backbone == target.backbone,
        algorithm=shadow.objective == target.objective,
    )


def memorised(run: FinishedRun) -> tuple[Memorisation, ...]:
    """The memorisation of the audited samples by the shadows of each attack that measures it, by output and seed.

    Shadows do not depend on the target: attacks that differ in it alone have one entry.
    """
    found: dict[str, Memorisation] = {}
    for task, result in run.applying():
        judge, attack = task.judge, task.judge.attack
        if not judge.last or result.memorisation is None:
            continue
        shadows = run.threat.shadows_of(attack)
        measured = str((attack.attack, shadows, judge.output, judge.seed, str(attack.parameters())))
        if measured in found:
            continue
        table, fdr = storage.read_table(memorised_path(task)), run.config.validity.fdr
        found[measured] = Memorisation(
            attack=attack.attack,
            shadow=attack.reference,
            settings=run.settings(attack),
            output=judge.output,
            epoch=run.threat.epoch_beside(shadows[0], judge.epoch),
            seed=judge.seed,
            pairs=table["shadows_in"][0].as_py(),
            mean=result.memorisation,
            memorised=int(flagged_at(np.asarray(table["q_value"]), fdr).sum()),
            fdr=fdr,
            top=tuple(
                MemorisedSample(
                    id=row["id"], value=row["memorisation"], ci95=(row["low"], row["high"]), q_value=row["q_value"]
                )
                for row in table.slice(0, TOP).to_pylist()
            ),
            file=memorised_path(task).removeprefix(f"{run.folder.path}/"),
        )
    return tuple(found.values())


def dp_audit(run: FinishedRun) -> tuple[DpAudit, ...]:
    """One part of the report for each encoder whose canaries were guessed.

    Runs of several seeds have coins of their own, so they are one mechanism with all their canaries.
    """
    if run.config.dp_audit is None:
        return ()
    guessing = [task for task, _ in run.applying() if task.judge.score.canaries is not None]
    return tuple(_dp_audit(run, of_seeds) for of_seeds in grouped(guessing, attrgetter("judge.attack.target")).values())


def _dp_audit(run: FinishedRun, of_seeds: Sequence[Task]) -> DpAudit:
    assert run.config.dp_audit is not None
    chosen, judge = run.config.dp_audit, of_seeds[0].judge
    role, target = run.config.data.roles[CANARY_ROLE], judge.attack.target
    counts = sorted(chosen.guesses) or grid_of(role.count or 0)
    tried = [reduce(add, several) for several in zip(*(guessed(task, counts) for task in of_seeds), strict=True)]
    promise = _promise(run, target)
    delta = (chosen.delta or 0.0) if promise is None else promise.delta
    gaussian = family_of(run.threat, target) == GAUSSIAN and delta > 0
    bound = best_bound(tried, delta=delta, confidence=chosen.confidence, gaussian=gaussian)
    perfect = [Guesses(every.canaries, every.guesses, every.guesses) for every in tried]
    verdict, p_value, any_time = "no-promise", None, None
    if promise is not None:
        verdict = "refuted" if bound.epsilon > promise.epsilon else "not-refuted"
        p_value = corrected_p_value(tried, promise.epsilon, delta, gaussian=gaussian)
        gains = [np.diff(wealth_against(task, promise.epsilon), prepend=0.0) for task in of_seeds]
        any_time = any_time_p_value(np.cumsum(np.concatenate(gains)), tried[0].canaries, promise.epsilon, delta)
    return DpAudit(
        target=target,
        attack=judge.attack.attack,
        output=judge.output,
        epoch=judge.epoch,
        seeds=tuple(task.folder.seed for task in of_seeds),
        kind=role.kind or "plain",
        canaries=tried[0].canaries,
        inside=sum(Splits.load(task.folder.path).count([CANARY_IN]) for task in of_seeds),
        tried=tuple(Guessed(guesses=every.guesses, correct=every.correct) for every in tried),
        guesses=bound.guesses.guesses,
        correct=bound.guesses.correct,
        confidence=chosen.confidence,
        family=GAUSSIAN if gaussian else APPROXIMATE,
        delta=delta,
        epsilon=bound.epsilon,
        most=best_bound(perfect, delta=delta, confidence=chosen.confidence, gaussian=gaussian).epsilon,
        mu=bound.mu,
        promised=promise,
        p_value=p_value,
        any_time_p_value=any_time,
        verdict=verdict,
    )


def family_of(threat: ThreatModel, target: str) -> str:
    """The kind of bound for an encoder: the Gaussian one where it is wanted and the encoder's noise is Gaussian.

    Of an encoder without a defense the config knows, if the promise is about it. Noise whose scale depends on the
    number of images is not Gaussian where an image is missing.
    """
    config, encoder = threat.config, threat.encoders[target]
    if isinstance(encoder, DefendedConfig):
        method = encoder.method(config.seeds[0])
        fits = method.mechanism == GAUSSIAN and LEAVE in method.adjacencies
    else:
        fits = target in threat.promising_encoders
    return GAUSSIAN if fits and config.dp_audit is not None and config.dp_audit.family == GAUSSIAN else APPROXIMATE


def _promise(run: FinishedRun, target: str) -> Promise | None:
    """The promise of an encoder, and who made it; the largest over the seeds; None: nothing is promised."""
    chosen, encoder = run.config.dp_audit, run.config.encoders[target]
    if chosen is not None and chosen.epsilon is not None:
        by_config = Promise(epsilon=chosen.epsilon, delta=chosen.delta or 0.0, by="config")
        return by_config if target in run.threat.promising_encoders else None
    if not isinstance(encoder, DefendedConfig):
        return None
    numbers = [describe(run.folder.seed(seed), target).record.defense for seed in run.config.seeds]
    adjacencies = encoder.method(run.config.seeds[0]).adjacencies
    found = [promise for of_seed in numbers if (promise := present_or_not(adjacencies, of_seed)) is not None]
    if len(found) < len(numbers):
        return None
    gamma = max(of_seed["gamma"] for of_seed in numbers) if all("gamma" in of_seed for of_seed in numbers) else None
    replaced = None if LEAVE in adjacencies else max(of_seed["epsilon"] for of_seed in numbers)
    epsilon, delta = (max(promise[part] for promise in found) for part in (0, 1))
    return Promise(epsilon=epsilon, delta=delta, by="defense", replaced=replaced, gamma=gamma)


def encoder_part(run: FinishedRun, name: str) -> model.EncoderPart:
    """An encoder over seeds; its fingerprint is that of the last epoch that is attacked."""
    encoder, epochs = run.config.encoders[name], run.threat.attacked_epochs(name)
    places = [place for _, place in run.planned]
    records = [describe(place, name).record for place in places]
    per_seed = tuple(
        model.SeedEncoder(
            seed=place.seed,
            fingerprint=record.fingerprints[str(epochs[-1])],
            **_utility(utility_curve([place], name, epochs, 0.0)),
        )
        for place, record in zip(places, records, strict=True)
    )
    if isinstance(encoder, LoadedConfig | EndpointConfig):
        origin: dict[str, Any] = adopt.origin(encoder, records[0])
        if isinstance(encoder, EndpointConfig):
            charged = spent(run.folder.path, encoder.parameters().url)
            origin["spend"] = model.Spend(**asdict(charged)) if charged.requests else None
    else:
        origin = {
            "objective": encoder.objective,
            "backbone": encoder.backbone,
            "epochs": encoder.epochs,
            "train_on": ", ".join(encoder.train_on) + (f", after {encoder.start}" if encoder.start else ""),
        }
    return model.EncoderPart(
        **origin,
        fingerprint=per_seed[0].fingerprint,
        **_utility(utility_curve(places, name, epochs, run.overlap_of(run.threat.utility_roles(name)[1]))),
        classifier=classifier_part(run, name, epochs[-1]),
        per_seed=per_seed if len(per_seed) > 1 else (),
    )


def _utility(curve: Sequence[model.CurvePoint]) -> dict[str, Any]:
    """Utility at the last checkpoint and, from two checkpoints on, the curve."""
    return {"utility": curve[-1].utility, "curve": tuple(curve) if len(curve) > 1 else ()} if curve else {}


def utility_curve(
    places: Sequence[SeedFolder], name: str, epochs: Sequence[int], overlap: float
) -> list[model.CurvePoint]:
    """Utility by checkpoint, where it is measured; pooled over seeds.

    ``overlap`` is that of the tested samples, as `mi_core.metrics.pooled.pool`.
    """
    curve = []
    for epoch in epochs:
        found = [storage.read_json(utility_path(place, name, epoch))["probes"] for place in places]
        probes = {
            probe: pool([Estimate.from_json(of_seed[probe]) for of_seed in found], overlap=overlap)
            for probe in found[0]
            if all(probe in of_seed for of_seed in found)
        }
        if probes:
            n = min(estimate.n for estimate in probes.values())
            utility = model.UtilityPart({probe: replace(estimate, n=n) for probe, estimate in probes.items()}, n)
            curve.append(model.CurvePoint(epoch=epoch, utility=utility))
    return curve


def classifier_part(run: FinishedRun, name: str, epoch: int) -> model.Classifier | None:
    """Accuracies of a classifier trained here, and how much it overfits; pooled over seeds."""
    found = [storage.read_json(utility_path(place, name, epoch)).get("classifier") for _, place in run.planned]
    if None in found:
        return None
    train, test = map(run.overlap_of, run.threat.classifier_roles(name))
    pooled = {
        part: pool([Estimate.from_json(of_seed[part]) for of_seed in found], overlap=overlap)
        for part, overlap in {"train_accuracy": train, "test_accuracy": test, "overfitting": max(train, test)}.items()
    }
    return model.Classifier(**pooled)


def defended(run: FinishedRun) -> Iterator[DefendedEncoder]:
    """The attacked encoders with a defense, and what that tells of itself: the mean over seeds, of a promise the worst.

    No release has the mean of several promises.
    """
    entries = {entry.on(name): entry for entry in run.config.defenses for name in run.config.encoders}
    attacked = {attack.target for attack in run.config.attacks}
    for name, encoder in run.config.encoders.items():
        if isinstance(encoder, DefendedConfig) and name in attacked:
            told = [describe(run.folder.seed(seed), name).record.defense for seed in run.config.seeds]
            entry = entries.get(name)
            yield DefendedEncoder(
                defense=encoder.defense,
                label=entry.name if entry else name,
                target=f"{encoder.defends}+{entry.beside}" if entry and entry.beside else encoder.defends,
                served=name,
                parameters={**encoder.settings, **({"epoch": encoder.epoch} if encoder.epoch else {})},
                adaptive=entry is None or entry.adaptive,
                numbers={
                    key: float((max if key in PROMISED else np.mean)([of_seed[key] for of_seed in told]))
                    for key in told[0]
                },
            )
