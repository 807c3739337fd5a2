"""What attacks found: their results, what is memorised, and promises of privacy held against guessed canaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add

import numpy as np

from mi_core.defenses.privacy import present_or_not
from mi_core.defenses.sensitivity import LEAVE
from mi_core.records import Estimate
from mi_core.report.build import attack_result
from mi_core.report.model.attacks import AttackResult, MethodPart, NotApplicable
from mi_core.report.model.report import DpAudit, Guessed, Memorisation, MemorisedSample, Promise
from mi_core.validity.conformal import flagged_at
from mi_core.validity.one_run import Guesses, any_time_p_value, best_bound, corrected_p_value, grid_of
from pipelines.attack.canaries import guessed, wealth_against
from pipelines.attack.judge import memorised_path
from pipelines.attack.results import Task, result_of
from pipelines.config.roles import CANARY_IN, CANARY_ROLE
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import APPROXIMATE, GAUSSIAN, SHADOW, SHADOWS, AttackConfig
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import DefendedConfig, TrainedConfig
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe
from pipelines.files import storage
from pipelines.plan.rules import epoch_beside, is_membership_unknown, member_roles, promising_encoders, shadows_of
from pipelines.report.finished import FinishedRun

TOP = 12  # samples named in the report


def attack_results(run: FinishedRun) -> Iterator[AttackResult]:
    """The results of the attacks that apply."""
    for task, result in run.applying():
        attack = task.judge.attack
        shadows, known, settings = shadows_of(run.config, attack), knowledge(run.config, attack), run.settings(attack)
        kind = SHADOW if attack.reference in run.config.encoders else SHADOWS
        entry = {
            **{name: result[name] for name in ("attack", "target", "output", "seed", "epoch", "queries", "seconds")},
            "reference": kind if shadows else attack.reference,
            **result["metrics"],
            **({"shadow": result["reference"]} if shadows else {}),
            **({"knowledge": known} if known else {}),
            **({"settings": settings} if settings else {}),
            "primary": task.judge.primary,
        }
        yield attack_result(entry, asked=is_membership_unknown(run.config))


def not_applicable(run: FinishedRun) -> Iterator[NotApplicable]:
    """Attacks that found nothing to read."""
    for task in run.tasks():
        result = result_of(task)
        if "not_applicable" in result:
            yield NotApplicable(
                **{name: result[name] for name in ("attack", "target", "output", "epoch", "seed")},
                settings=run.settings(task.judge.attack),
                reason=result["not_applicable"],
            )


def method_part(run: FinishedRun, name: str) -> MethodPart:
    """The threat model of an attack, and its queries where all of its entries spend as many."""
    attacks, queries = [attack for attack in run.config.attacks if attack.attack == name], run.config.queries
    method = attacks[0].method()
    spent = {
        method(attack.parameters()).queries_per_sample(attack.views or queries.views) * queries.repeats
        for attack in attacks
    }
    return MethodPart(
        threat_model=method.threat_model,
        source=method.source,
        queries_per_sample=spent.pop() if len(spent) == 1 else None,
    )


def knowledge(config: RunConfig, attack: AttackConfig) -> dict[str, bool] | None:
    """What the owner of a shadow knows of the target, by the two encoders of a config; None: there is no shadow."""
    shadows, target = shadows_of(config, attack), config.encoders[attack.target]
    shadow = config.encoders[shadows[0]] if shadows else None
    if not isinstance(target, TrainedConfig) or not isinstance(shadow, TrainedConfig):
        return None
    own, other = (_distribution(config.data, member_roles(config, name)) for name in (shadows[0], attack.target))
    return {
        "distribution": own == other,
        "architecture": shadow.backbone == target.backbone,
        "algorithm": shadow.objective == target.objective,
    }


def _distribution(data: DataConfig, roles: Sequence[str]) -> set[tuple[str, tuple[int, ...] | None]]:
    """Sources and classes that some roles are drawn from."""
    found = set()
    for name in roles:
        role = data.roles[name]
        parent = data.roles.get(role.source_name, role)
        found.add((parent.source_name, role.classes or parent.classes))
    return found


def memorised(run: FinishedRun) -> tuple[Memorisation, ...]:
    """The memorisation of the audited samples by the shadows of each attack that measures it, by output and seed.

    Shadows do not depend on the target: attacks that differ in it alone have one entry.
    """
    found: dict[str, Memorisation] = {}
    for task, result in run.applying():
        judge, attack = task.judge, task.judge.attack
        if not judge.last or "memorisation" not in result:
            continue
        shadows = shadows_of(run.config, attack)
        measured = str((attack.attack, shadows, judge.output, judge.seed, str(attack.parameters())))
        if measured in found:
            continue
        table, fdr = storage.read_table(memorised_path(task)), run.config.validity.fdr
        found[measured] = Memorisation(
            attack=attack.attack,
            shadow=attack.reference,
            settings=run.settings(attack),
            output=judge.output,
            epoch=epoch_beside(run.config, shadows[0], judge.epoch),
            seed=judge.seed,
            pairs=table["shadows_in"][0].as_py(),
            mean=Estimate.from_json(result["memorisation"]),
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
    by_target: dict[str, list[Task]] = {}
    for task, _ in run.applying():
        if task.judge.score.canaries is not None:
            by_target.setdefault(task.judge.attack.target, []).append(task)
    return tuple(_dp_audit(run, of_seeds) for of_seeds in by_target.values())


def _dp_audit(run: FinishedRun, of_seeds: Sequence[Task]) -> DpAudit:
    assert run.config.dp_audit is not None
    chosen, judge = run.config.dp_audit, of_seeds[0].judge
    role, target = run.config.data.roles[CANARY_ROLE], judge.attack.target
    counts = sorted(chosen.guesses) or grid_of(role.count or 0)
    tried = [reduce(add, several) for several in zip(*(guessed(task, counts) for task in of_seeds), strict=True)]
    promise = _promise(run, target)
    delta = (chosen.delta or 0.0) if promise is None else promise.delta
    gaussian = family_of(run.config, target) == GAUSSIAN and delta > 0
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


def family_of(config: RunConfig, target: str) -> str:
    """The kind of bound for an encoder: the Gaussian one where it is wanted and the encoder's noise is Gaussian.

    Of an encoder without a defense the config knows, if the promise is about it. Noise whose scale depends on the
    number of images is not Gaussian where an image is missing.
    """
    encoder = config.encoders[target]
    if isinstance(encoder, DefendedConfig):
        method = encoder.method(config.seeds[0])
        fits = method.mechanism == GAUSSIAN and LEAVE in method.adjacencies
    else:
        fits = target in promising_encoders(config)
    return GAUSSIAN if fits and config.dp_audit is not None and config.dp_audit.family == GAUSSIAN else APPROXIMATE


def _promise(run: FinishedRun, target: str) -> Promise | None:
    """The promise of an encoder, and who made it; the largest over the seeds; None: nothing is promised."""
    chosen, encoder = run.config.dp_audit, run.config.encoders[target]
    if chosen is not None and chosen.epsilon is not None:
        by_config = Promise(epsilon=chosen.epsilon, delta=chosen.delta or 0.0, by="config")
        return by_config if target in promising_encoders(run.config) else None
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
