"""The verdict of a run, what its scores prove where groups are exchangeable, and what attacks reach at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mi_core.images import thumbnail
from mi_core.metrics.delong import auc_difference, design_effect
from mi_core.metrics.membership import ClassResult, by_class
from mi_core.querying.sanity import fault_in_words
from mi_core.records import Estimate
from mi_core.registration import OF_BOUND, attempts, is_after_looking
from mi_core.report import build
from mi_core.report.build import SeedTest, SetTest, verdict_part
from mi_core.report.model.attacks import AttackResult, ClassRow
from mi_core.report.model.judgement import Bound, Evidence, SampleAnswers, VerdictPart
from mi_core.report.pooling import bound_parts, class_rows, grouped
from mi_core.validity.bound import auc_limits
from mi_core.validity.verdict import LOT, Validity, judge
from pipelines.attack.blind import blind_path, groups_of, semantic_auc, telling_path
from pipelines.attack.candidates import answer_candidates, forget_samples
from pipelines.attack.results import Task, result_of
from pipelines.attack.score import ONE_PART
from pipelines.attack.scores import MOST_JUDGED, groups_in, judged, rows_of, units_of
from pipelines.config.roles import CALIBRATION_ROLE
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.data.draw.images import read_samples
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe, tried_path
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.items import Beside
from pipelines.report.finished import FinishedRun
from pipelines.run.folder import SeedFolder
from pipelines.run.ray_session import mapped_or_here
from pipelines.run.registration import lines_of

_BY_CLASS = 1_000_000  # samples of which results by class are computed
_PAIRED = 1_000_000  # samples of which differences of attacks are computed


def verdict(run: FinishedRun) -> VerdictPart | None:
    """The verdict on the primary attack at the last checkpoint; None where the attack does not apply."""
    primaries = run.primaries()
    if any(result_of(task).not_applicable is not None for task in run.tasks() if task.judge.primary):
        return None
    per_seed = {task.judge.seed: _judge(run, task) for task in primaries}
    target = primaries[0].judge.attack.target
    fault = next(filter(None, (recognition_fault(task.folder, target) for task in primaries)), "")
    return verdict_part(
        per_seed,
        overlap=run.overlap,
        fault=f"The encoder {target}: {fault}" if fault else "",
        others=lambda: _others(run, target),
        planned=attempts(lines_of(run.folder))[1].get(target, 0),
    )


def _others(run: FinishedRun, target: str) -> dict[str, list[Validity]]:
    """The attacks on the target at the last checkpoint that the verdict does not rest on, by name, one entry a seed."""
    found: dict[str, list[Validity]] = {}
    for task, _ in run.applying():
        item, attack = task.judge, task.judge.attack
        if item.last and not item.primary and attack.target == target:
            own = counted_scores(task)
            validity = judge(own["score"], None, own.get("control"), own["member"], own.get("group"))
            words = ", ".join(filter(None, (attack.attack, run.settings(attack), f"fitted on {attack.reference}")))
            found.setdefault(f"{words}, on the {item.output} output", []).append(validity)
    return found


def recognition_fault(folder: SeedFolder, encoder: str) -> str:
    """The fault of an encoder from elsewhere that does not recognise images; empty where it does."""
    shown = describe(folder, encoder).record.consistency
    return fault_in_words(shown) if shown else ""


def _judge(run: FinishedRun, primary: Task) -> Validity:
    paired = paired_scores(primary)
    ids, by = paired["id"].tolist(), primary.judge.by
    return judge(
        paired["score"],
        paired["blind"],
        paired.get("control"),
        paired["member"],
        paired["group"] if "group" in paired else groups_of(primary.folder, ids),
        by=by,
        p_value=_lot_p_value(primary) if by == LOT else None,
        semantic_auc=semantic_auc(primary.folder, ids),
        trained=any(is_working(primary.folder, other) for other in primary.judge.score.beside),
        factor=run.config.validity.factor,
        works=not recognition_fault(primary.folder, primary.judge.attack.target),
        registered=not is_after_looking(lines_of(run.folder)),
    )


def is_working(folder: SeedFolder, reference: Beside) -> bool:
    """Tell whether a reference is a trained encoder and, where that was tried out, recognises images."""
    name = reference.reading.encoder.name
    tried = storage.read_json_or(tried_path(folder, name), describe(folder, name).record.consistency or {})
    return reference.trained and bool(tried.get("works", True))


def _lot_p_value(task: Task) -> float | None:
    """The p-value of the randomisation test, from the scores, or of very many its limit; None: all are equal."""
    own = counted_scores(task)
    test = SetTest.from_scores(own["score"], None, own["member"], seed=task.judge.seed, groups=own.get("group")).test
    if test is None:
        return None
    return test.welch_p if test.permutation_p is None else test.permutation_p


def paired_by_id(task: Task) -> dict[str, np.ndarray]:
    """`counted_scores` with their ids, of so many samples at most as differences are computed of."""
    return counted_scores(task, ("id",), _PAIRED)


def difference_from(first: Mapping[str, np.ndarray], task: Task) -> Estimate | None:
    """The AUC of an attack minus that of the primary one, whose scores are ``first``, over the images of both.

    None: of these only members or only others are left.
    """
    mine = paired_by_id(task)
    _, here, there = np.intersect1d(mine["id"], first["id"], assume_unique=True, return_indices=True)
    member, groups = mine["member"][here], mine.get("group")
    if member.all() or not member.any():
        return None
    return auc_difference(mine["score"][here], first["score"][there], member, None if groups is None else groups[here])


def counted_scores(task: Task, more: Sequence[str] = (), most: int = MOST_JUDGED) -> dict[str, np.ndarray]:
    """Scores of an attack on the images and groups that a verdict on it would rest on, by the columns' names.

    By lot all images count, or about ``most`` of them, with ``more`` columns. By choice those do that the classifiers
    saw, because bursts are known of these.
    """
    if task.judge.by != LOT:
        paired = paired_scores(task)
        if min(paired["member"].sum(), (~paired["member"]).sum()) > 1:  # of few images it may have judged others
            groups = groups_of(task.folder, paired["id"].tolist())
            return ({} if groups is None else {"group": groups}) | paired
    table = judged(task, ("score", "member", "group", "control", *more), most)
    return {name: np.asarray(table[name]) for name in table.column_names}


def paired_scores(task: Task) -> dict[str, np.ndarray]:
    """Scores of an attack and of its checks on the samples that the blind classifier saw, by the columns' names."""
    seen = storage.read_table(blind_path(task.folder))
    blind_of = dict(zip(seen["id"].to_pylist(), seen["score"].to_pylist(), strict=True))
    table = rows_of(task, blind_of)
    kept = ("id", "score", "member", "control", "group")
    found = {name: np.asarray(table[name]) for name in kept if name in table.column_names}
    return found | {"blind": np.array([blind_of[name] for name in table["id"].to_pylist()])}


def evidence(run: FinishedRun, judged_part: VerdictPart) -> Evidence | None:
    """Evidence beyond the verdict: on the candidates as a whole, on single ones, and upper limits.

    None: the primary attack was not tested in every seed.
    """
    tests: list[tuple[Task, SeedTest]] = []  # of the candidates as a set, by each attack at its last checkpoint
    for task, result in run.applying():
        if task.judge.last and result.evidence is not None:
            told = run.tried(task) | {"reference": task.judge.attack.reference, "primary": task.judge.primary}
            tests.append((task, SeedTest(**told, result=result.evidence)))
    if sum(test.primary for _, test in tests) < len(run.planned):
        return None
    roles = [role for role in (CALIBRATION_ROLE,) if role in run.config.data.roles]
    primary, by_user, bursts = run.primaries()[0], run.config.data.grouped, None
    if not by_user and primary.judge.by != LOT:  # looked for among those that the config does not group
        bursts = groups_of(run.first, paired_scores(primary)["id"].tolist())
    units = units_of(primary)
    shown = build.evidence(
        judged_part,
        [test for _, test in tests],
        counts=units.counts,
        worths=units.worths,
        telling=storage.read_json(telling_path(run.first)),
        by_user=by_user,
        bursts=bursts,
        overlap=run.overlap,
        known_overlap=run.overlap_of(roles),
        planned=attempts(lines_of(run.folder))[1],
    )
    if shown.withheld_because is not None:
        for _, folder in run.planned:
            forget_samples(folder)
    single = build.single_tests(shown, [test for _, test in tests])
    fdr = run.config.validity.fdr
    return replace(shown, samples=tuple(answer_candidates(task, test, fdr) for task, test in tests if test in single))


def shard_effect(run: FinishedRun) -> float | None:
    """How many times as large the variance of the primary AUC is because images of a shard are alike.

    None: a shard does not count as one. See `mi_core.metrics.delong.design_effect`.
    """
    primary = run.primaries()[0]
    if not run.config.data.by_shard or result_of(primary).not_applicable is not None:
        return None
    table = judged(primary, ("score", "member", "group"))
    return design_effect(*(np.asarray(table[name]) for name in ("score", "member", "group")))


def classes(run: FinishedRun) -> tuple[ClassRow, ...]:
    """The primary attack at its last checkpoint by class, the class with the highest AUC first; means over seeds."""
    of_seeds: dict[int, list[ClassResult]] = {}
    for primary in run.primaries():
        metrics = result_of(primary).metrics
        if metrics is None:
            return ()
        table = judged(primary, ("class", "score", "member", "group"), _BY_CLASS)
        numbers = np.asarray(table["class"].fill_null(-1))
        score, member = np.asarray(table["score"], dtype=np.float64), np.asarray(table["member"])
        for number, result_of_class in by_class(score, member, numbers, metrics.threshold, groups_in(table)).items():
            of_seeds.setdefault(number, []).append(result_of_class)
    names = run.config.data.attributes[run.config.data.label].names if run.config.data.label else ()
    return class_rows(of_seeds, names, overlap=run.overlap, asked=run.threat.is_membership_unknown)


def thumbnails(run: FinishedRun, answers: Sequence[SampleAnswers]) -> dict[str, bytes]:
    """Small images of the candidates that a report shows, by id; none where the images are gone."""
    top = [row for of_seed in answers[:1] for row in {one.id: one for one in of_seed.top + of_seed.lowest}.values()]
    if not top:
        return {}
    splits = Splits.load(run.first.path)
    by_place = grouped(top, lambda row: (row.id.partition("/")[0], row.shard or ""))  # source and shard
    given = [
        (run.config.data, splits.at([place]), run.audited[:1], [row.id for row in rows])
        for place, rows in by_place.items()
    ]
    try:
        if splits.count(run.audited) > ONE_PART:  # in tasks, where shards are long to read
            read = mapped_or_here(_thumbnails, given, "shards", "images of the contact sheet")
        else:
            read = [_thumbnails(*some) for some in given]
    except UserError:
        return {}
    return {name: image for some in read for name, image in some.items()}


def _thumbnails(data: DataConfig, splits: Splits, roles: Sequence[str], ids: Sequence[str]) -> dict[str, bytes]:
    return {name: thumbnail(image) for name, _, image in read_samples(data, splits, roles, ids)}


def bounds(run: FinishedRun, results: Sequence[AttackResult]) -> tuple[Bound, ...]:
    """The limits of all attacks on the primary output at the last checkpoint, the audited target first.

    Args:
        run: with its scores.
        results: of the attacks that apply, in the order of the run's tasks.
    """
    lines, primary = lines_of(run.folder), run.primaries()[0].judge
    audited, encoders = primary.attack.target, run.config.encoders
    measured = [
        (result, limits_of(task))
        for (task, _), result in zip(run.applying(), results, strict=True)
        if task.judge.last
        and task.judge.output == primary.output
        and (result.target == audited or isinstance(encoders[result.target], DefendedConfig))
    ]
    return bound_parts(
        sorted(measured, key=lambda pair: pair[0].target != audited),
        overlap=run.overlap,
        planned=attempts(lines, primary.output)[1],
        bound=run.config.validity.bound,
        registered=not is_after_looking(lines, OF_BOUND),
    )


def limits_of(task: Task) -> Estimate:
    """The limits of one attack in one seed."""
    found = counted_scores(task)
    return auc_limits(found["score"], found["member"], found.get("group"))
