"""Search the parameters of a defense with Ray Tune and Optuna: utility loss against the leak that is left.

Every trial leaves a record in RUN/tune/search. An interrupted search hands these to Optuna and goes on, as does one
that asks for more trials than before. Where attacks or seeds were added, its trials are measured by these first. The
chosen trial is measured once more, on the half of the audited images that the search never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mi_core.defenses import DEFENSES
from mi_core.defenses.privacy import utility_loss
from mi_core.metrics.pareto import least_within, pareto_front, weighted
from mi_core.objectives import OBJECTIVES
from pipelines.config.sections.encoders import DefendedConfig, EncoderConfig, TrainedConfig
from pipelines.config.sections.tuning import SearchConfig, TuneConfig
from pipelines.console import meter, say
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.checks import defended_of
from pipelines.run.folder import TUNED, RunFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import TASK_MEMORY, borne, storage_of
from pipelines.tune.trial import Record, Trial, measure, search_of, trains

LOSS, LEAK, COST = "utility_loss", "leak", "cost"
WORST = 1.0  # of loss and leak: what a trial that fails counts as
STUDY = "optuna"
_TRAINING_CPUS = 0.1  # of a trial that waits for the workers that train


def run(runs: Sequence[Run]) -> None:
    """Do the search of the first of some runs, if it has one.

    Raises:
        UserError: the search cannot be done; finished trials are kept.
    """
    run = runs[0]
    config, folder = run
    if config.tune is None:
        return
    target, plain = defended_of(config)
    if config.tune.hides == "membership" and (kind := hides_attributes_by(config.encoders[target])):
        say("tune", f"WARNING: {kind} hides attributes, and membership is what is searched; set tune.hides=attributes")
    ground = _measured(Trial(run, plain, {}, "search"))
    if "fault" in ground:
        raise UserError(f"tune: without a search, {ground['fault']}")
    done = [record for record in tried(folder) if is_done(record, run, target)]
    if done:
        say("tune", f"{len(done)} trials already done")
    left = config.tune.trials_left(done)
    if left:
        _search(run, target, ground, done, left)
    _conclude(run, target, plain, ground)


def hides_attributes_by(encoder: EncoderConfig) -> str:
    """The defense, or the training, of an encoder that is meant to hide attributes; empty: there is none."""
    if isinstance(encoder, DefendedConfig):
        return encoder.defense if DEFENSES[encoder.defense].hides == "attributes" else ""
    trained = isinstance(encoder, TrainedConfig) and OBJECTIVES[encoder.objective].target == "attribute"
    return encoder.objective if trained else ""


def tried(folder: RunFolder) -> list[Record]:
    """The records of the trials of a search, sorted by identity; an interrupted trial has one too."""
    place = f"{folder.path}/{TUNED}/search"
    paths = [path for path in storage.list_files(place, recursive=False) if path.endswith(".json")]
    return [record for path in sorted(paths) if (record := storage.read_json(path))["parameters"]]


def is_done(record: Record, run: Run, target: str) -> bool:
    """Tell whether a trial has been measured by all attacks that count, on all seeds, or was given up on these."""
    return bool(record["whole"] and belongs_to(record, run, target))


def belongs_to(record: Record, run: Run, target: str) -> bool:
    """Tell whether a record tells of the attacks and seeds of a run as it is now."""
    return bool(record.get("asked") == Trial(run, target, record["parameters"], "search").question)


def _measured(trial: Trial) -> Record:
    """The last record of a trial that is done as a Ray task."""
    import ray

    remote = ray.remote(num_cpus=_cpus(trial), num_gpus=trial.tune.gpus, memory=borne(2 * TASK_MEMORY))(_last)
    return dict(ray.get(remote.remote(trial)))


def _cpus(trial: Trial) -> float:
    """CPUs that a trial holds: hardly any while it waits for the workers that train."""
    return _TRAINING_CPUS if trains(trial.config().encoders, trial.run.config.encoders) else trial.tune.cpus


def _last(trial: Trial) -> Record:
    *_, record = measure(trial)
    return record


def costs(record: Mapping[str, Any], ground: Mapping[str, Any]) -> tuple[float, float]:
    """Utility loss and leak of a trial; one that failed has the worst of both."""
    if "fault" in record:
        return WORST, WORST
    return utility_loss(record["utility"]["value"], ground["utility"]["value"]), record["leak"]


def _search(run: Run, target: str, ground: Record, done: Sequence[Record], left: int) -> None:
    from ray import tune as ray_tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    config, folder = run
    search = search_of(config)
    space = {name: _domain(one) for name, one in search.search.items()}
    sampler, stored = _study(search, OptunaSearch.convert_search_space(space), done, ground)
    single = search.weight is not None
    begun = [record["parameters"] for record in tried(folder) if not is_done(record, run, target)]
    searcher = OptunaSearch(
        space=space,
        metric=COST if single else [LOSS, LEAK],
        mode="min" if single else ["min", "min"],
        sampler=sampler,
        storage=stored,
        study_name=STUDY,
        points_to_evaluate=[*begun, *(point for point in search.grid(done) if point not in begun)],
    )
    first = Trial(run, target, {name: one.ends[0] for name, one in search.search.items()}, "search")
    with meter("trials", len(done) + left, "trials", len(done)) as progress:

        class Told(ray_tune.Callback):  # type: ignore[misc]
            """Counts the trials that are done."""

            finished = len(done)

            def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
                Told.finished += 1
                progress(Told.finished)

            def __reduce__(self) -> Any:
                return ray_tune.Callback, ()  # Tune stores its callbacks, and a bar cannot be stored

        results = ray_tune.Tuner(
            ray_tune.with_resources(
                ray_tune.with_parameters(_trial, run=run, target=target, ground=ground),
                {"CPU": _cpus(first), "GPU": search.gpus},
            ),
            tune_config=ray_tune.TuneConfig(
                num_samples=left,
                search_alg=searcher,
                scheduler=ASHAScheduler(metric=COST, mode="min", max_t=len(config.seeds), reduction_factor=2)
                if single and len(config.seeds) > 1
                else None,
                max_concurrent_trials=search.at_once,
                reuse_actors=True,
            ),
            run_config=ray_tune.RunConfig(
                name="ray", **storage_of(f"{folder.path}/{TUNED}"), verbose=0, callbacks=[Told()]
            ),
        ).fit()
    storage.remove(f"{folder.path}/{TUNED}/ray")  # the records alone count
    for error in results.errors:
        raise error
    for record in tried(folder):
        if belongs_to(record, run, target) and not record["whole"]:
            storage.write_json(Trial(run, target, record["parameters"], "search").path, record | {"whole": True})


def _trial(parameters: dict[str, Any], run: Run, target: str, ground: Record) -> None:
    """Do a trial and report it to Ray Tune: at its end, or with a weight after each seed."""
    from ray import tune as ray_tune

    trial = Trial(run, target, parameters, "search")
    for record in measure(trial):
        loss, leak = costs(record, ground)
        if trial.tune.weight is not None:
            ray_tune.report({COST: weighted(loss, leak, trial.tune.weight)})
        elif record["whole"]:
            ray_tune.report({LOSS: loss, LEAK: leak})


def _domain(one: SearchConfig) -> Any:
    """The values of a parameter as Ray Tune has them."""
    from ray import tune as ray_tune

    if one.choice:
        return ray_tune.choice(list(one.choice))
    low, high = one.ends
    if one.integer:
        return (ray_tune.lograndint if one.log else ray_tune.randint)(low, high + 1)
    return (ray_tune.loguniform if one.log else ray_tune.uniform)(low, high)


def _study(search: TuneConfig, distributions: Mapping[str, Any], done: Sequence[Record], ground: Record) -> Any:
    """Optuna's sampler, and its storage with the earlier trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    names = {"tpe": "TPESampler", "nsga2": "NSGAIISampler", "random": "RandomSampler"}
    seed = search.seed + len(done)  # a search that goes on proposes other trials than before
    sampler = getattr(optuna.samplers, names[search.sampler])(seed=seed)
    stored = optuna.storages.InMemoryStorage()
    down = optuna.study.StudyDirection.MINIMIZE
    directions = [down] if search.weight is not None else [down, down]
    study = optuna.create_study(storage=stored, study_name=STUDY, sampler=sampler, directions=directions)
    for record in done:
        loss, leak = costs(record, ground)
        values = [loss, leak] if search.weight is None else [weighted(loss, leak, search.weight)]
        study.add_trial(
            optuna.trial.create_trial(params=record["parameters"], distributions=dict(distributions), values=values)
        )
    return sampler, stored


def _conclude(run: Run, target: str, plain: str, ground: Record) -> None:
    """Choose a trial, measure it and the plain encoder on the other fold, and write everything down."""
    config, folder = run
    search = search_of(config)
    every = [record for record in tried(folder) if belongs_to(record, run, target)]
    faults = [record["fault"] for record in every if "fault" in record]
    sound = [record for record in every if "fault" not in record and record["seeds"] == len(config.seeds)]
    if not sound:
        raise UserError(f"tune: all of {len(every)} trials failed; the first: {(faults or ['cut'])[0]}")
    measured = np.array([costs(record, ground) for record in sound])
    front = pareto_front(measured)
    chosen = sound[least_within(list(measured[:, 0]), list(measured[:, 1]), search.allowed)]
    final = _measured(Trial(run, target, chosen["parameters"], "final"))
    bare = _measured(Trial(run, plain, {}, "final"))
    for record in (final, bare):
        if "fault" in record:
            raise UserError(f"tune: on the images that were held back, {record['fault']}")
    on_front = {record["id"] for record, kept in zip(sound, front, strict=True) if kept}
    rows = [_row(record, ground, on_front, chosen["id"]) for record in every]
    result = {
        "target": target,
        "plain": plain,
        "measure": ground["utility"]["measure"],
        "metric": search.metric,
        **({"hides": search.hides} if search.hides == "attributes" else {}),
        "allowed": search.allowed,
        "trials": len(every),
        "failed": len(faults),
        "cut": len(every) - len(faults) - len(sound),
        "seeds": len(config.seeds),
        "rows": rows,
        "without": {"search": _shown(ground), "final": _shown(bare)},
        "winner": {
            "id": chosen["id"],
            "parameters": chosen["parameters"],
            "within": chosen["leak"] <= search.allowed,
            "search": _shown(chosen) | {LOSS: costs(chosen, ground)[0]},
            "final": _shown(final) | {LOSS: costs(final, bare)[0]},
        },
    }
    storage.write_json(f"{folder.path}/{TUNED}/pareto.json", result)
    flat = [row["parameters"] | {name: row[name] for name in row if name != "parameters"} for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    storage.write_table(
        f"{folder.path}/{TUNED}/trials.parquet", pa.table({name: [row.get(name) for row in flat] for name in names})
    )
    say("tune", f"{len(every)} trials; no other trial beats {len(on_front)} of them")


def outcome(folder: RunFolder) -> dict[str, Any]:
    """The result of a run's search; empty where there was none."""
    return dict(storage.read_json_or(f"{folder.path}/{TUNED}/pareto.json", {}))


def _shown(record: Record) -> dict[str, Any]:
    return {name: record[name] for name in ("utility", "attacks", "inferences", "strongest", LEAK) if name in record}


def _row(record: Record, ground: Record, front: set[str], chosen: str) -> dict[str, Any]:
    row = {name: record[name] for name in ("id", "parameters", "seeds", "seconds", "cpu_seconds")}
    if "fault" in record:
        return row | {"fault": record["fault"]}
    loss, leak = costs(record, ground)
    row |= {LOSS: loss, LEAK: leak, "utility": record["utility"]["value"], "strongest": record["strongest"]}
    return row | {"pareto": record["id"] in front, "winner": record["id"] == chosen}
