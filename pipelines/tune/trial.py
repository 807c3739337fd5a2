"""One trial of a search: a defense with some parameters, attacked anew and measured, in a run folder of its own.

A trial is a run with some fields changed and the attacks on the defended encoder alone. It shares roles, encoders and
features with the run itself where the parameters do not change them. One process does it, seed after seed, and leaves
a record; an interrupted trial goes on from its folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from mi_core.checks import ConfigError, NumericError, ShapeError
from mi_core.encoders.remembering import Memory
from mi_core.metrics.pooled import pool
from mi_core.records import Estimate
from mi_core.report.contents import method_in_words
from pipelines.attack import run as attack
from pipelines.attack.inference import inferred
from pipelines.attack.results import result_of, tasks
from pipelines.attack.utility import utility_path
from pipelines.config.reading.fields import with_changes
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AttackConfig, AttributeInferenceConfig
from pipelines.config.sections.encoders import EncoderConfig, ForeignConfig, TrainedConfig
from pipelines.config.sections.tuning import TuneConfig
from pipelines.console import silence
from pipelines.data.draw.parts import audited_overlap, overlap_of
from pipelines.data.draw.splits import Splits, are_drawn
from pipelines.data.plans import plans_of
from pipelines.encoders.stored import share
from pipelines.errors import UserError
from pipelines.extract import run as extract
from pipelines.extract.actor.worker import EncodeChunks
from pipelines.extract.division.passes import remove_passes
from pipelines.extract.division.readers import Kept
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.plan.checks import build
from pipelines.plan.rules import ThreatModel
from pipelines.pretrain import run as pretrain
from pipelines.run.folder import TUNED, RunFolder
from pipelines.run.points import Run

Record = dict[str, Any]
"""The results of a trial: ``id``, ``parameters``, ``asked`` (see `Trial.question`), ``fold``, ``seeds`` (how many so
far), ``utility``, ``attacks`` and, where attributes are hidden, ``inferences`` (estimates, pooled), ``leak``,
``seconds``, ``cpu_seconds``; a failed one has a ``fault`` instead of estimates."""


def search_of(config: RunConfig) -> TuneConfig:
    """The search of a run that has one."""
    assert config.tune is not None
    return config.tune


@dataclass(frozen=True)
class Trial:
    """One point of the search, on one fold of the audited images.

    Args:
        run: the run whose parameters are searched, and its folder.
        target: encoder that is measured.
        parameters: by the name of the search.
        fold: ``search`` or ``final``.
    """

    run: Run
    target: str
    parameters: Mapping[str, Any]
    fold: str

    @property
    def id(self) -> str:
        """A name that depends on its parameters alone."""
        return digest(self.target, dict(self.parameters))[:12]

    @property
    def question(self) -> str:
        """A digest of the attacks that count, metric and measure, seeds, and what the folds keep together."""
        config, tune = self.run.config, self.tune
        counted = [one.model_dump(mode="json") for one in config.attacks if _counts(one, self.target, tune)]
        group = config.data.model_dump(mode="json")["group_by"]
        inferred = [one.model_dump(mode="json") for one in self._inferences(config.attribute_inference)]
        parts = [counted, tune.metric, tune.utility, config.seeds, group, *([inferred] if inferred else [])]
        return digest(*parts)[:12]

    @property
    def folder(self) -> RunFolder:
        """Its run folder."""
        return RunFolder(f"{self.run.folder.path}/{TUNED}/{self.fold}/{self.id}", self.run.folder.path)

    @property
    def path(self) -> str:
        """Its record."""
        return f"{self.folder.path}.json"

    def record(self) -> Record:
        """Its results so far, perhaps none."""
        return dict(storage.read_json_or(self.path, {}))

    @property
    def tune(self) -> TuneConfig:
        """The search."""
        return search_of(self.run.config)

    def _inferences(self, every: Sequence[AttributeInferenceConfig]) -> list[AttributeInferenceConfig]:
        """The inferences of attributes that count; none where membership is hidden."""
        counts = self.tune.hides == "attributes"
        return [one for one in every if counts and one.target == self.target]

    def config(self) -> RunConfig:
        """The config of the trial as a run of its own.

        Raises:
            ValueError: the parameters make no valid run.
        """
        config, tune = self.run.config, self.tune
        changes = {field: value for name, value in self.parameters.items() for field in tune.search[name].fields}
        whole = build(with_changes(config.plain(), changes | {"checkpoints": "last", "fold": self.fold}))
        counted = [one for one in whole.attacks if _counts(one, self.target, tune)]
        threat = ThreatModel(whole)
        named = {self.target, *(name for one in counted for name in (*threat.shadows_of(one), threat.crafter_of(one)))}
        kept = {name for encoder in named - {None} for name in threat.training_chain(str(encoder))}
        values = whole.model_dump(mode="json", by_alias=True)
        encoders = {name: values["encoders"][name] for name in whole.encoders if name in kept}
        attacks = [one.model_dump(mode="json") for one in counted]
        inferred = [one.model_dump(mode="json") for one in self._inferences(whole.attribute_inference)]
        values |= {"encoders": encoders, "attacks": attacks, "attribute_inference": inferred}
        values |= {"defenses": [], "validity": {}}
        values["resources"]["gpus_per_actor"] = tune.gpus  # a trial queries on the device that it holds itself
        return build(values)

    def over(self, config: RunConfig, seeds: tuple[int, ...]) -> Run:
        """The trial as a run over some seeds; ``config``: as `config` makes it."""
        return Run(config.model_copy(update={"seeds": seeds}), self.folder)


def _counts(attack: AttackConfig, target: str, tune: TuneConfig) -> bool:
    return attack.target == target and (not tune.attacks or attack.attack in tune.attacks)


def trains(own: Mapping[str, EncoderConfig], run: Mapping[str, EncoderConfig]) -> bool:
    """Tell whether a trial trains encoders that the run itself does not have; else it only defends those of the run."""
    return any(type(encoder) is TrainedConfig and encoder != run.get(name) for name, encoder in own.items())


def measure(trial: Trial) -> Iterator[Record]:
    """Do a trial, seed after seed; yields and keeps its record after each.

    A record of other attacks or seeds goes on: results that are there stay.
    A fault of the parameters ends it with a record of the fault.
    """
    before = trial.record()
    if before.get("whole") and before.get("asked") == trial.question:
        yield before
        return
    threads = max(1, int(trial.tune.cpus))
    torch.set_num_threads(threads)
    started, burnt = time.perf_counter(), time.process_time()

    def kept(results: Record) -> Record:
        spent = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - burnt}
        known = {"id": trial.id, "parameters": dict(trial.parameters), "asked": trial.question, "fold": trial.fold}
        record = known | results
        record |= {name: round(before.get(name, 0.0) + value, 3) for name, value in spent.items()}
        storage.write_json(trial.path, record)
        return record

    seeds = trial.run[0].seeds
    try:
        own = trial.config()
        for count in range(1, len(seeds) + 1):
            with silence():
                _do(trial, trial.over(own, seeds[count - 1 : count]), threads)
            results = results_of(trial, trial.over(own, seeds[:count]))
            yield kept({**results, "seeds": count, "whole": count == len(seeds)})
    except (ConfigError, NumericError, ShapeError, UserError, ValueError) as error:
        yield kept({"fault": str(error), "seeds": 0, "whole": True})
    first = trial.folder.seed(seeds[0])
    remove_passes(first.store, first.trial)


def _do(trial: Trial, own: Run, threads: int) -> None:
    """Make, query and attack the encoders of one seed of a trial."""
    config, folder = trial.run
    (seed,), encoders = own.config.seeds, own.config.encoders
    run = Run(config.model_copy(update={"seeds": (seed,)}), folder)  # on its own device, as its features are planned
    place, runs = own.folder.seed(seed), [run, own]
    if not are_drawn(place.path):
        Splits.load(folder.seed(seed).path).lend(place.path)
    for name, encoder in encoders.items():
        if isinstance(encoder, ForeignConfig) and not storage.exists(f"{place.encoder(name)}/encoder.json"):
            share(folder.seed(seed), place, name)
    planned = plans_of(runs)
    if trains(encoders, config.encoders):
        pretrain.run(runs, planned)
    else:
        pretrain.here(planned, threads)
    memory, kept = _memory()
    encode = EncodeChunks(gpus=own.config.resources.gpus_per_actor, memory=memory)
    extract.here(planned, encode, kept, own.config.queries.chunk)
    attack.here(planned[-1])


@cache
def _memory() -> tuple[Memory, Kept]:
    """Answers of backbones and samples that this process has read; it does one trial after another."""
    return Memory(), Kept()


def results_of(trial: Trial, own: Run) -> Record:
    """Utility and attacks, pooled over the seeds that a trial has done.

    Raises:
        UserError: no attack found anything to read, or this kind of utility is not measured.
    """
    tune, config = trial.tune, own.config
    by_attack: dict[tuple[str, int, str], list[Estimate]] = {}
    utilities, planned = [], plans_of([own])
    (plan, first), target = planned[0], trial.target
    (used,) = (one for one in plan.utilities if one.encoder.name == target)
    for one in planned:
        for task in tasks(one):
            metrics = result_of(task).metrics
            if metrics is not None:
                name = task.judge.attack.attack, task.judge.position, task.judge.output
                by_attack.setdefault(name, []).append(getattr(metrics, tune.metric))
        measured = storage.read_json(utility_path(one.folder, target, used.epoch))
        by_name = {**measured["probes"], "classifier": measured.get("classifier", {}).get("test_accuracy")}
        chosen = tune.utility or ("classifier" if by_name["classifier"] else "linear")
        if not by_name.get(chosen):
            raise UserError(f"tune.utility = {chosen} is not measured for {target}; give labelled test images")
        utilities.append(Estimate.from_json(by_name[chosen]))
    if not by_attack:
        raise UserError(f"no attack on {trial.target} found anything to read")
    overlap = audited_overlap(config.data, config.seeds, first, [role.name for role in plan.audited])
    tested = used.unseen if chosen == "classifier" else used.test
    assert tested is not None  # it is measured
    roles = [role.name for role in tested.samples.roles]
    pooled = {name: pool(estimates, overlap=overlap) for name, estimates in by_attack.items()}
    leaks = [(f"{attack}, {output}", estimate.high) for (attack, _, output), estimate in pooled.items()]
    found: Record = {}
    if tune.hides == "attributes":
        found["inferences"] = _inferred(own)
        leaks = [(_called(row), row["accuracy"]["ci95"][1]) for row in found["inferences"]]
    strongest, leak = max(leaks, key=lambda one: one[1])
    return {
        "utility": {
            "measure": chosen,
            **pool(utilities, overlap=overlap_of(config.data, config.seeds, first, roles)).as_json(),
        },
        "attacks": [
            {"attack": attack, "output": output, **estimate.as_json()}
            for (attack, _, output), estimate in pooled.items()
        ],
        "strongest": strongest,
        "leak": min(1.0, leak),
        **found,
    }


def _called(row: dict[str, Any]) -> str:
    return method_in_words(row["attribute"], row["output"], row.get("settings"))


def _inferred(own: Run) -> list[dict[str, Any]]:
    """Accuracies of inferring attributes, and of guessing them, pooled over the seeds that a trial has done."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for one in plans_of([own]):
        for row in inferred(one, own.config.attribute_inference, own.config.seeds):
            by_name.setdefault(_called(row), []).append(row)
    return [
        {name: rows[0][name] for name in ("attribute", "output", "settings") if name in rows[0]}
        | {
            part: pool([Estimate.from_json(row[part]) for row in rows], overlap=rows[0]["overlap"]).as_json()
            for part in ("accuracy", "majority")
        }
        for rows in by_name.values()
    ]
