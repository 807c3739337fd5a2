"""Run attacks, utility measurements and controls as Ray tasks.

One task per (seed, attack, output, checkpoint); a task whose result is on disk is skipped. Labels meet the
features only here. The same fitted attack also scores the same samples on reference encoders. An attack on more
samples than a process should hold is divided into tasks on some shards each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipelines.attack.blind import TELLING, blind_path, run_blind, run_references, semantic_path
from pipelines.attack.canaries import CANARIES
from pipelines.attack.inference import inference_path, map_path, planes, run_inference, run_plane
from pipelines.attack.judge import MEMORISED
from pipelines.attack.results import tasks
from pipelines.attack.score import ONE_PART, is_divided, run_attack, run_divided
from pipelines.attack.scores import SCORES
from pipelines.attack.utility import measure, utility_path
from pipelines.console import count_of, say
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned
from pipelines.files import storage
from pipelines.plan.items import Item
from pipelines.run.parts import Once
from pipelines.run.ray_session import TASK_MEMORY, mapped

_EACH = 2000  # bytes of a sample in the process of an attack: its features, and what is made of them
_BY_SHADOW = 800  # bytes of a sample as one of several shadows sees it: its id, one number, and what is made of them


def run(planned: Sequence[Planned]) -> None:
    """Run every attack, utility measurement and control of some plans that is not on disk yet.

    A result that several plans share is computed once, for the first; the others get a copy.
    """
    once = Once(
        [piece for one in planned for piece in _work(one)],
        lambda piece: piece.identity,
        lambda piece: storage.exists(piece.path),
    )
    work, whole = once.todo(), len(once.first)
    if len(work) < whole:
        say("attack", f"{whole - len(work)} of {whole} results already done")
    if work:
        _compute(work, planned)
    once.share(_copy)


def here(planned: Planned) -> None:
    """Do the same for one plan in this process: a trial of a search is itself a Ray task.

    Raises:
        UserError, ConfigError, NumericError, ShapeError: an attack cannot run on this data.
    """
    for piece in _work(planned):
        if not storage.exists(piece.path):
            piece.function(*piece.arguments)


def _compute(work: Sequence[_Work], planned: Sequence[Planned]) -> None:
    """Compute results as Ray tasks.

    Raises:
        UserError: an attack cannot run on the data that the user gave.
    """
    started = time.perf_counter()
    divided = [piece for piece in work if piece.function is run_attack and is_divided(*piece.arguments)]
    whole = [piece for piece in work if piece not in divided]
    given = [(piece.function, *piece.arguments) for piece in whole]
    memory = TASK_MEMORY + max(map(_held, planned))
    root = planned[0].folder.run.partition("/sweep/")[0]
    names = [piece.place.removeprefix(f"{root}/") for piece in whole]
    mapped(_call, given, "results", "attacks and controls", memory=memory, fits=names)
    if divided:
        run_divided([task for piece in divided for task in piece.arguments])
    say("attack", f"{count_of(len(work), 'result', 'results')}, {time.perf_counter() - started:.0f} s")


def _held(planned: Planned) -> int:
    """The most bytes of samples that one attack holds."""
    plan, folder = planned
    audited = Splits.load(folder.path).count([role.name for role in plan.audited])
    fits = [judge.score.fit for judge in plan.judges]
    several = max((len(fit.readings) for fit in fits if fit.by_halves), default=0)
    whole = any(fit.audited for fit in fits)
    return max(_EACH * (audited if whole else min(ONE_PART, audited)), _BY_SHADOW * audited * several)


@dataclass(frozen=True)
class _Work:
    """A result file to make of an item, and the files written before it; equal identities mean equal contents."""

    path: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]
    item: Item
    beside: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The key of the item, and what is made of it."""
        return f"{self.item.key} {self.function.__name__}"

    @property
    def place(self) -> str:
        """The folder of the file."""
        return self.path.rpartition("/")[0]


def _copy(done: _Work, piece: _Work) -> None:
    """Copy a result file, after the files beside it."""
    names = [path.removeprefix(f"{done.place}/") for path in storage.list_files(f"{done.place}/{SCORES}")]
    beside = (*piece.beside, piece.path.removeprefix(f"{piece.place}/"))
    for name in [*names, *(name for name in beside if storage.exists(f"{done.place}/{name}"))]:
        storage.copy(f"{done.place}/{name}", f"{piece.place}/{name}")


def _work(planned: Planned) -> Iterator[_Work]:
    plan, folder = planned
    for task in tasks(planned):
        yield _Work(f"{task.path}/result.json", run_attack, (task,), task.judge, ("attack.npz", CANARIES, MEMORISED))
    for utility in plan.utilities:
        yield _Work(utility_path(folder, utility.encoder.name, utility.epoch), measure, (utility, folder), utility)
    for inference in plan.inferences:
        yield _Work(inference_path(inference, folder), run_inference, (inference, folder), inference)
    if plan.blind is None:
        return
    for mapped_one in planes(plan, folder):
        yield _Work(map_path(mapped_one, folder), run_plane, (mapped_one, folder), mapped_one)
    yield _Work(blind_path(folder), run_blind, (plan.blind, folder, plan.data), plan.blind, (TELLING,))
    if plan.semantic is not None:
        yield _Work(semantic_path(folder), run_references, (plan.semantic, folder), plan.semantic)


def _call(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function with one thread, which is what its Ray task holds."""
    torch.set_num_threads(1)
    function(*arguments)
