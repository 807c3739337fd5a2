"""Hold the promises of differential privacy against the guessed canaries, over all seeds together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np

from mi_core.defenses.privacy import present_or_not
from mi_core.defenses.sensitivity import LEAVE
from mi_core.report.model.promises import DpAudit, Guessed, Promise
from mi_core.validity.one_run import Guesses, any_time_p_value, best_bound, corrected_p_value, grid_of
from pipelines.attack.canaries import guessed, wealth_against
from pipelines.attack.results import Task, result_of
from pipelines.config.roles import CANARY_IN, CANARY_ROLE
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import APPROXIMATE, GAUSSIAN
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe
from pipelines.plan.rules import promising_encoders
from pipelines.report.parts.finished import FinishedRun


def dp_audit(run: FinishedRun) -> tuple[DpAudit, ...]:
    """One part of the report for each encoder whose canaries were guessed.

    Runs of several seeds have coins of their own, so they are one mechanism with all their canaries.
    """
    chosen = run.config.dp_audit
    if chosen is None:
        return ()
    by_target: dict[str, list[Task]] = {}
    for task in run.tasks():
        if task.judge.score.canaries is not None and "not_applicable" not in result_of(task):
            by_target.setdefault(task.judge.attack.target, []).append(task)
    return tuple(_entry(run, mine) for mine in by_target.values())


def _entry(run: FinishedRun, mine: Sequence[Task]) -> DpAudit:
    assert run.config.dp_audit is not None
    chosen, task = run.config.dp_audit, mine[0]
    role = run.config.data.roles[CANARY_ROLE]
    counts = sorted(chosen.guesses) or grid_of(role.count or 0)
    of_seed = [guessed(one, counts) for one in mine]
    tried = [reduce(add, several) for several in zip(*of_seed, strict=True)]
    promise = _promise(run, task.judge.attack.target)
    delta = (chosen.delta or 0.0) if promise is None else promise.delta
    gaussian = family_of(run.config, task.judge.attack.target) == GAUSSIAN and delta > 0
    bound = best_bound(tried, delta=delta, confidence=chosen.confidence, gaussian=gaussian)
    perfect = [Guesses(one.canaries, one.guesses, one.guesses) for one in tried]
    verdict, value, any_time = "no-promise", None, None
    if promise is not None:
        verdict = "refuted" if bound.epsilon > promise.epsilon else "not-refuted"
        value = corrected_p_value(tried, promise.epsilon, delta, gaussian=gaussian)
        gains = [np.diff(wealth_against(one, promise.epsilon), prepend=0.0) for one in mine]
        any_time = any_time_p_value(np.cumsum(np.concatenate(gains)), tried[0].canaries, promise.epsilon, delta)
    return DpAudit(
        target=task.judge.attack.target,
        attack=task.judge.attack.attack,
        output=task.judge.output,
        epoch=task.judge.epoch,
        seeds=tuple(one.folder.seed for one in mine),
        kind=role.kind or "plain",
        canaries=tried[0].canaries,
        inside=sum(Splits.load(one.folder.path).count([CANARY_IN]) for one in mine),
        tried=tuple(Guessed(guesses=one.guesses, correct=one.correct) for one in tried),
        guesses=bound.guesses.guesses,
        correct=bound.guesses.correct,
        confidence=chosen.confidence,
        family=GAUSSIAN if gaussian else APPROXIMATE,
        delta=delta,
        epsilon=bound.epsilon,
        most=best_bound(perfect, delta=delta, confidence=chosen.confidence, gaussian=gaussian).epsilon,
        mu=bound.mu,
        promised=promise,
        p_value=value,
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
        told = Promise(epsilon=chosen.epsilon, delta=chosen.delta or 0.0, by="config")
        return told if target in promising_encoders(run.config) else None
    if not isinstance(encoder, DefendedConfig):
        return None
    numbers = [describe(run.folder.seed(seed), target).record.defense for seed in run.config.seeds]
    method = encoder.method(run.config.seeds[0])
    found = [promise for of_seed in numbers if (promise := present_or_not(method.adjacencies, of_seed)) is not None]
    if len(found) < len(numbers):
        return None
    gamma = max(one["gamma"] for one in numbers) if all("gamma" in one for one in numbers) else None
    replaced = None if LEAVE in method.adjacencies else max(one["epsilon"] for one in numbers)
    epsilon, delta = (max(one[part] for one in found) for part in (0, 1))
    return Promise(epsilon=epsilon, delta=delta, by="defense", replaced=replaced, gamma=gamma)
