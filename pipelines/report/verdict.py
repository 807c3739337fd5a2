"""The verdict of a run, and what its scores prove where candidates and controls are exchangeable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mi_core.images import thumbnail
from mi_core.metrics.by_class import ClassResult, by_class
from mi_core.metrics.delong import design_effect
from mi_core.metrics.pooled import pool, together
from mi_core.querying.sanity import fault_in_words
from mi_core.records import Estimate
from mi_core.report.words.evidence import combine_tests
from mi_core.validity.bursts import bursts_as_json
from mi_core.validity.power import fpr_floor, power_as_json
from mi_core.validity.verdict import CHECKS, GROUPS_DIFFER, LOT, Validity, judge, judge_pooled
from pipelines.attack.blind import blind_path, telling_path
from pipelines.attack.candidates import flagged_ids, forget_samples, of_samples
from pipelines.attack.evidence import one_sided, test_of
from pipelines.attack.references import groups_of, semantic_auc
from pipelines.attack.results import Task, result_of, settings_of, tasks
from pipelines.attack.score import ONE_PART
from pipelines.attack.scores import Units, groups_in, judged, rows_of, units_of
from pipelines.config.roles import CALIBRATION_ROLE
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.images import read_samples
from pipelines.data.draw.overlap import audited_overlap, overlap_of
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import plan_of
from pipelines.encoders.stored import describe, tried_path
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.controls import groups_by
from pipelines.plan.items import Beside
from pipelines.plan.roles import audited_roles, is_membership_unknown
from pipelines.plan.views import primary_output
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.ray_session import mapped_or_here
from pipelines.run.registration import attempts, is_after_looking, lines_of

_BY_CLASS = 1_000_000  # samples of which results by class are computed


def is_primary(config: RunConfig, task: Task) -> bool:
    """Whether the verdict rests on a task, at its last checkpoint."""
    return task.judge.position == config.validity.attack and task.judge.output == primary_output(config)


def _primary(config: RunConfig, folder: SeedFolder) -> Task:
    """The task at the last checkpoint that the verdict rests on."""
    return [task for task in tasks(plan_of(config, folder)) if is_primary(config, task)][-1]


def verdict(config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """The verdict on the primary attack at the last checkpoint; empty where the attack does not apply.

    Where the attacked encoder does not work, a ``warning`` says so.
    """
    decisive = [
        task for seed in config.seeds for task in tasks(plan_of(config, folder.seed(seed))) if is_primary(config, task)
    ]
    if any("not_applicable" in result_of(task) for task in decisive):
        return {}
    per_seed = [_judge(config, folder, seed) for seed in config.seeds]
    overlap = audited_overlap(config, folder.seed(config.seeds[0]))
    found = judge_pooled(per_seed, overlap=overlap).as_json()
    if len(per_seed) > 1:
        found["per_seed"] = [
            {"seed": seed, **of_seed.as_json()} for seed, of_seed in zip(config.seeds, per_seed, strict=True)
        ]
    target = config.attacks[config.validity.attack].target
    faults = [recognition_fault(folder.seed(seed), target) for seed in config.seeds]
    fault = next(filter(None, faults), "")
    return found | ({"warning": f"The encoder {target}: {fault}"} if fault else {})


def recognition_fault(folder: SeedFolder, encoder: str) -> str:
    """What is wrong with an encoder from elsewhere that does not recognise images; empty where it does."""
    shown = describe(folder, encoder).record.consistency
    return fault_in_words(shown) if shown else ""


def _judge(config: RunConfig, folder: RunFolder, seed: int) -> Validity:
    place = folder.seed(seed)
    primary = _primary(config, place)
    found = paired_scores(primary)
    ids = found["id"].tolist()
    groups = found["group"] if "group" in found else groups_of(place, ids)
    return judge(
        found["score"],
        found["blind"],
        found.get("control"),
        found["member"],
        groups,
        by=groups_by(config),
        p_value=_lot_p_value(primary) if groups_by(config) == LOT else None,
        semantic_auc=semantic_auc(place, ids),
        trained=any(is_working(place, other) for other in primary.judge.score.beside),
        factor=config.validity.factor,
        works=not recognition_fault(place, primary.judge.attack.target),
        registered=not is_after_looking(lines_of(folder)),
    )


def is_working(folder: SeedFolder, reference: Beside) -> bool:
    """Whether a reference is a trained encoder and, where that was tried out, recognises images."""
    name = reference.reading.encoder.name
    tried = storage.read_json_or(tried_path(folder, name), describe(folder, name).record.consistency or {})
    return reference.trained and bool(tried.get("works", True))


def _lot_p_value(task: Task) -> float | None:
    """The p-value of the randomisation test, from the scores, or of very many its limit; None: all are equal."""
    table = judged(task, ("score", "member", "group"))
    member = np.asarray(table["member"])
    test = test_of(task, np.asarray(table["score"]), member, one_sided(groups_in(table), member))
    found = {} if test is None else test.as_json()
    return None if test is None else float(found.get("permutation_p", found["welch_p"]))


def paired_scores(task: Task) -> dict[str, np.ndarray]:
    """Scores of an attack and of its checks on the samples that the blind classifier saw, by the columns' names."""
    seen = storage.read_table(blind_path(task.folder))
    blind_of = dict(zip(seen["id"].to_pylist(), seen["score"].to_pylist(), strict=True))
    table = rows_of(task, blind_of)
    kept = ("id", "score", "member", "control", "group")
    found = {name: np.asarray(table[name]) for name in kept if name in table.column_names}
    return found | {"blind": np.array([blind_of[name] for name in table["id"].to_pylist()])}


def evidence(config: RunConfig, folder: RunFolder, found: dict[str, Any]) -> dict[str, Any]:
    """What the scores say beyond the verdict ``found``: of the candidates as a whole, of single ones, and at most.

    p-values and flags ask for candidates and controls that are exchangeable. By lot they are; by choice, where a check
    tells them apart, or the verdict is no leak, there are none: they would be read as one.
    """
    last = [task for seed in config.seeds for task in tasks(plan_of(config, folder.seed(seed))) if task.judge.last]
    results = [(task, result) for task in last if "evidence" in (result := result_of(task))]
    decisive = [(task, result) for task, result in results if is_primary(config, task)]
    if len(decisive) < len(config.seeds):
        return {}
    checks = {name: found[name] for name in CHECKS if name in found}
    by_lot = groups_by(config) == LOT
    withheld_because = Validity.from_json(found).withheld_because
    told = storage.read_json(telling_path(folder.seed(config.seeds[0])))
    gathered: dict[str, Any] = {
        "exchangeable": withheld_because != GROUPS_DIFFER,
        **checks,
        "telling": [{"feature": name, "auc": value} for name, value in told.items()],
        "grouped": config.data.grouped,
        **_bursts(config, folder.seed(config.seeds[0])),
        **size_of(config, units_of(_primary(config, folder.seed(config.seeds[0])))),
    }
    if withheld_because is not None:
        for seed in config.seeds:
            forget_samples(folder.seed(seed))
        return gathered | {"withheld_because": withheld_because}
    overlap = audited_overlap(config, folder.seed(config.seeds[0]))
    roles = [role for role in (CALIBRATION_ROLE,) if role in config.data.roles]
    known = overlap_of(config, folder.seed(config.seeds[0]), roles)
    by_attack: dict[str, list[tuple[Task, dict[str, Any]]]] = {}
    for task, result in results:
        by_attack.setdefault(f"{task.judge.position} {task.judge.output}", []).append((task, result))
    withheld, entries = [], []
    for mine in by_attack.values():
        controls = [result["evidence"]["control_auc"] for _, result in mine if "control_auc" in result["evidence"]]
        pooled = [Estimate.from_json(entry) for entry in controls]
        if not by_lot and pooled and pool(pooled, overlap=overlap).low > 0.5:
            withheld.append(_name(config, mine[0][0]))
        elif all("test" in result["evidence"] for _, result in mine):
            entries += [_entry(config, task, result) for task, result in mine]
    if entries:
        planned = attempts(lines_of(folder))[1]
        gathered["tests"] = combine_tests(entries, overlap=overlap, known_overlap=known, planned=planned)
    if withheld:
        gathered["withheld"] = withheld
    of_seed: list[dict[str, Any]] = []
    for task, result in decisive:
        if "test" in result["evidence"] and _name(config, task) not in withheld:
            share, bound = _share(result)
            of_seed.append({"seed": task.folder.seed, **of_samples(task, share, config.validity.fdr, bound=bound)})
    if of_seed:
        gathered["samples"] = of_seed
    return gathered


def _bursts(config: RunConfig, folder: SeedFolder) -> dict[str, Any]:
    """Bursts among the judged images of a seed that the config does not group; empty where there are none."""
    if config.data.grouped or groups_by(config) == LOT:
        return {}
    return bursts_as_json(groups_of(folder, paired_scores(_primary(config, folder))["id"].tolist()))


def size_of(config: RunConfig, units: Units) -> dict[str, Any]:
    """How many candidates and controls there are, and what an audit of as many as they are worth can find."""
    candidates, controls = (int(worth) for worth in units.worths)
    return {
        "n_candidate": units.counts[0],
        "n_control": units.counts[1],
        "fpr_floor": fpr_floor(controls),
        "power": power_as_json(candidates, controls, by=groups_by(config), factor=config.validity.factor),
    }


def _entry(config: RunConfig, task: Task, result: dict[str, Any]) -> dict[str, Any]:
    settings = settings_of(task.judge.attack, config.attacks)
    return {
        **{name: result[name] for name in ("attack", "target", "output", "reference", "seed")},
        **({"settings": settings} if settings else {}),
        **({"primary": True} if is_primary(config, task) else {}),
        **{name: part for name, part in result["evidence"].items() if name != "control_auc"},
    }


def _name(config: RunConfig, task: Task) -> str:
    return " ".join(
        filter(
            None, (task.judge.attack.attack, settings_of(task.judge.attack, config.attacks), "on", task.target_output)
        )
    )


def _share(result: dict[str, Any]) -> tuple[float, bool]:
    """The share of the candidates that was used, and whether it is only a lower bound: so without known members."""
    share = result["evidence"].get("share")
    if share is not None and share.get("supported", True):
        return float(share["value"]), False
    return float(result["evidence"]["least_share"]["low"]), True


def shard_effect(config: RunConfig, folder: SeedFolder) -> float | None:
    """How many times as large the variance of the primary AUC is because images of a shard are alike.

    None: a shard does not count as one. See `mi_core.metrics.delong.design_effect`.
    """
    primary = _primary(config, folder)
    if not config.data.by_shard or "not_applicable" in result_of(primary):
        return None
    table = judged(primary, ("score", "member", "group"))
    return design_effect(*(np.asarray(table[name]) for name in ("score", "member", "group")))


def classes(config: RunConfig, folder: RunFolder) -> list[dict[str, Any]]:
    """The primary attack at its last checkpoint by class, the class with the highest AUC first; means over seeds."""
    found: dict[int, list[ClassResult]] = {}
    for seed in config.seeds:
        place = folder.seed(seed)
        primary = _primary(config, place)
        result = result_of(primary)
        if "not_applicable" in result:
            return []
        table = judged(primary, ("class", "score", "member", "group"), _BY_CLASS)
        numbers = np.asarray(table["class"].fill_null(-1))
        score, member = np.asarray(table["score"], dtype=np.float64), np.asarray(table["member"])
        groups = groups_in(table)
        of_class = by_class(score, member, numbers, result["metrics"]["threshold"], groups)
        for number, one in of_class.items():
            found.setdefault(number, []).append(one)
    if len(found) < 2:
        return []
    names = config.data.attributes[config.data.label].names if config.data.label else ()
    overlap = audited_overlap(config, folder.seed(config.seeds[0]))
    rows = [
        {
            "class": names[number] if number < len(names) else str(number),
            "n_member": together([result.n_member for result in results], overlap),
            "n_nonmember": together([result.n_nonmember for result in results], overlap),
            **{
                part: pool([getattr(result, part) for result in results], overlap=overlap).as_json()
                for part in ("auc", *(() if is_membership_unknown(config) else ("recall",)), "false_positive_rate")
            },
        }
        for number, results in found.items()
    ]
    return sorted(rows, key=lambda row: -row["auc"]["value"])


def flagged(config: RunConfig, folder: RunFolder, found: dict[str, Any]) -> list[str]:
    """Ids of the flagged candidates of the first seed, as `flagged_ids`."""
    if not found.get("samples"):
        return []
    return flagged_ids(folder.seed(config.seeds[0]))


def thumbnails(config: RunConfig, folder: RunFolder, found: dict[str, Any]) -> dict[str, bytes]:
    """PNG files of the candidates that a report shows, by id; none where the images are gone."""
    samples = found.get("samples", [])[:1]
    top = [row for of_seed in samples for row in of_seed["top"]]
    ids = {row["id"] for row in top}
    if not ids:
        return {}
    splits = Splits.load(folder.seed(config.seeds[0]).path)
    places = dict.fromkeys(map(_place_of, top))
    given = [
        (
            config.data,
            splits.at([place]),
            audited_roles(config)[:1],
            [row["id"] for row in top if _place_of(row) == place],
        )
        for place in places
    ]
    try:
        if splits.count(audited_roles(config)) > ONE_PART:  # in tasks, where shards are long to read
            read = mapped_or_here(_thumbnails, given, "shards", "images of the highest scores")
        else:
            read = [_thumbnails(*some) for some in given]
    except UserError:
        return {}
    return {name: image for some in read for name, image in some.items()}


def _place_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Source and shard of a candidate."""
    return row["id"].partition("/")[0], row["shard"]


def _thumbnails(data: DataConfig, splits: Splits, roles: Sequence[str], ids: Sequence[str]) -> dict[str, bytes]:
    return {name: thumbnail(image) for name, _, image in read_samples(data, splits, roles, ids)}
