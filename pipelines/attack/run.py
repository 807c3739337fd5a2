"""Run attacks, utility measurements and controls as Ray tasks.

One task per (seed, attack, output, checkpoint); a task whose result is on disk is skipped. Labels meet the
features only here. The same fitted attack also scores the same samples on reference encoders. An attack on more
samples than a process should hold is divided into tasks on some shards each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pipelines.attack.blind import blind_path, run_blind, telling_path
from pipelines.attack.canaries import CANARIES, guesses_canaries
from pipelines.attack.inference import inferences, planes, run_inference, run_plane
from pipelines.attack.memorised import MEMORISED
from pipelines.attack.references import run_references, semantic_path
from pipelines.attack.score import ONE_PART, is_divided, run_attack, run_divided
from pipelines.attack.scores import SCORES
from pipelines.attack.tasks import tasks
from pipelines.attack.utility import measure, utility_path
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AUDITED
from pipelines.console import count_of, say
from pipelines.data.draw.splits import Splits
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.folder import SeedFolder
from pipelines.run.once import Once
from pipelines.run.points import Run
from pipelines.run.ray_session import TASK_MEMORY, mapped

_EACH = 2000  # bytes of a sample in the process of an attack: its features, and what is made of them
_BY_SHADOW = 800  # bytes of a sample as one of several shadows sees it: its id, one number, and what is made of them


def run(runs: Sequence[Run]) -> None:
    """Run every attack, utility measurement and control of some runs that is not on disk yet.

    A result that several runs share is computed once, for the first; the others get a copy.
    """
    every = [
        replace(piece, run=number)
        for number, (config, folder) in enumerate(runs)
        for seed in config.seeds
        for piece in _work(config, folder.seed(seed))
    ]
    once = Once(every, lambda piece: piece.identity, lambda piece: storage.exists(piece.path))
    work, whole = once.todo(), len(once.first)
    if len(work) < whole:
        say("attack", f"{whole - len(work)} of {whole} results already done")
    if work:
        _compute(work, runs)
    once.share(_copy)


def here(config: RunConfig, folder: SeedFolder) -> None:
    """Do the same for one seed in this process: a trial of a search is itself a Ray task.

    Raises:
        UserError, ConfigError, NumericError, ShapeError: an attack cannot run on this data.
    """
    for piece in _work(config, folder):
        if not storage.exists(piece.path):
            piece.function(config, *piece.arguments)


def _compute(work: Sequence[_Work], runs: Sequence[Run]) -> None:
    """Compute results as Ray tasks.

    Raises:
        UserError: an attack cannot run on the data that the user gave.
    """
    import ray

    started = time.perf_counter()
    divided = [piece for piece in work if piece.is_divided(runs)]
    configs = [ray.put(config) for config, _ in runs]
    given = [(piece.function, configs[piece.run], *piece.arguments) for piece in work if piece not in divided]
    held = (_held(config, folder.seed(seed)) for config, folder in runs for seed in config.seeds)
    memory = TASK_MEMORY + max(held)
    mapped(_call, given, "results", "attacks and controls", memory=memory)
    for number, (config, _) in enumerate(runs):
        mine = [piece.arguments[0] for piece in divided if piece.run == number]
        if mine:
            run_divided(config, mine)
    say("attack", f"{count_of(len(work), 'result', 'results')}, {time.perf_counter() - started:.0f} s")


def _held(config: RunConfig, folder: SeedFolder) -> int:
    """The most bytes of samples that one attack holds."""
    audited = Splits.load(folder.path).count(config.audited)
    several = [len(config.shadows(attack)) for attack in config.attacks if attack.reference in config.families]
    fitted = any(attack.reference == AUDITED for attack in config.attacks)
    return max(_EACH * (audited if fitted else min(ONE_PART, audited)), _BY_SHADOW * audited * max(several, default=0))


@dataclass(frozen=True)
class _Work:
    """A result file to make, and the files written before it; equal identities mean equal contents."""

    path: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]
    identity: str
    beside: tuple[str, ...] = ()
    run: int = 0  # the position of the run that asks for it

    @property
    def place(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def is_divided(self, runs: Sequence[Run]) -> bool:
        """Whether it is an attack that is scored in parts."""
        config, _ = runs[self.run]
        return self.function is run_attack and is_divided(config, self.arguments[0])


def _copy(done: _Work, piece: _Work) -> None:
    """Copy a result file, after the files beside it."""
    parts = [path.removeprefix(f"{done.place}/") for path in storage.list_files(f"{done.place}/{SCORES}")]
    for name in [*parts, *(name for name in (*piece.beside, piece.name) if storage.exists(f"{done.place}/{name}"))]:
        storage.copy(f"{done.place}/{name}", f"{piece.place}/{name}")


def _work(config: RunConfig, folder: SeedFolder) -> Iterator[_Work]:
    common = config.model_dump(mode="json", include={"data", "encoders", "queries", "fold"}), folder.seed
    for task in tasks(config, folder):
        same = digest(
            common, task.name, task.attack.model_dump(mode="json"), task.references, guesses_canaries(config, task)
        )
        files = ("attack.npz", CANARIES, MEMORISED)
        yield _Work(f"{folder.attack(task.name)}/result.json", run_attack, (task,), same, files)
    for name in config.measured:
        for epoch in config.attacked_epochs(name):
            same = digest(common, name, epoch, config.utility.model_dump(mode="json"))
            yield _Work(utility_path(folder, name, epoch), measure, (folder, name, epoch), same)
    for inference in inferences(config, folder):
        same = digest(common, inference.epoch, inference.config.model_dump(mode="json"))
        yield _Work(inference.path, run_inference, (inference,), same)
    for plane in planes(config, folder) if config.fold == "all" else ():
        chosen = plane.config
        same = digest(common, "plane", plane.epoch, chosen.attribute, chosen.target, chosen.output, chosen.test)
        yield _Work(plane.map_path, run_plane, (plane,), same)
    if config.fold == "all":
        beside = (telling_path(folder).rpartition("/")[2],)
        yield _Work(blind_path(folder), run_blind, (folder,), digest(common, config.audited), beside)
        if config.classified_on:
            same = digest(common, config.audited, config.classified_on, config.primary_output)
            yield _Work(semantic_path(folder), run_references, (folder,), same)


def _call(function: Callable[..., None], config: RunConfig, *arguments: Any) -> None:
    """Call a function with one thread, which is what its Ray task holds."""
    torch.set_num_threads(1)
    function(config, *arguments)
