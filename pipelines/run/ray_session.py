"""Starting or joining Ray, quietly, and leaving nothing behind.

A local Ray starts and stops with the command, listens on the loopback interface only and asks for a token; an existing
cluster is joined when an address is given or RAY_ADDRESS is set. The address is probed first, because a client of a
dead address hangs.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from pipelines.config.sections.limits import ResourcesConfig
from pipelines.console import Bars, bars, count_of, say
from pipelines.errors import Unavailable, UserError, fault_of_user
from pipelines.files import storage
from pipelines.files.stores import store_of
from pipelines.run.board import REFRESH_SECONDS, Board, Note, Reporter
from pipelines.run.machine import cpus, descendants, end_all, own_sigterm

PROBE_SECONDS = 5.0
TASK_MEMORY = 2**30  # bytes of a task that holds a shard, or an encoder, beside PyTorch
HELPER_MEMORY = 2**28  # bytes of a process that only counts or looks
QUIET = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DATA_LOG_LEVEL": "ERROR",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_TQDM": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # every task is waited for; the first error is raised
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how long a finished training run goes unnoticed; Ray's default is 2
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # Tune's older output can be silenced
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # lines of Ray's own about workers that died; a run tells what it makes of that
}
LOCAL = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # nobody takes this machine away: a process less per training
    "RAY_idle_worker_killing_time_threshold_ms": "60000",  # the next stage finds processes that have loaded PyTorch
}
LONGEST_FOLDER = 107 - len("/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_boards: dict[tuple[str, str], Any] = {}  # by connection; the last alone
STARTS = 2  # how often a local Ray is started before a run gives up


@contextmanager
def ray_cluster(address: str | None, *, object_store_mb: int, verbose: bool = False) -> Iterator[float]:
    """Connect for the duration of the block; yields the seconds that starting or joining took.

    Args:
        address: ``host:port`` of a cluster, or None: RAY_ADDRESS if set (and not ``local``), else a local Ray.
        object_store_mb: size of a local Ray's object store.
        verbose: show Ray's own logs.

    Raises:
        UserError: nothing answers at the address, or the path of the temporary folder is too long.
        Unavailable: a local Ray does not start.
    """
    started = time.perf_counter()
    if not verbose:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
    address = address or os.environ.get("RAY_ADDRESS")
    local = not address or address == "local"
    joined = "ray" in sys.modules and sys.modules["ray"].is_initialized()  # a caller's own (a test, a notebook) stays
    if not local:
        probe(str(address))
    elif not joined:
        check_temporary_folder()
        _guard()
    import ray

    if not joined:
        arguments: dict[str, Any] = {"address": address}
        if local:
            arguments = {"address": "local", "num_cpus": cpus(), "object_store_memory": object_store_mb * 2**20}
            arguments["include_dashboard"] = False
        here = f"starting Ray on {count_of(cpus(), 'CPU', 'CPUs')}"
        say("ray", here if local else f"joining the Ray cluster at {address}")

        def start() -> None:
            level = "INFO" if verbose else "ERROR"
            with own_sigterm(), nullcontext() if verbose else _without_native_stderr():
                ray.init(**arguments, log_to_driver=verbose, logging_level=level, configure_logging=True)

        start_or_give_up(start, ray.shutdown) if local else start()
    from ray.data import DataContext

    DataContext.get_current().enable_progress_bars = False
    try:
        yield time.perf_counter() - started
    finally:
        if not joined:
            ray.shutdown()


def check_temporary_folder() -> None:
    """Raise UserError if Ray's sockets would have longer paths than Unix allows, 107 bytes."""
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    name = next((name for name in ("RAY_TMPDIR", "TMPDIR", "TEMP", "TMP") if os.environ.get(name) == folder), "TMPDIR")
    length = len(os.fsencode(folder.rstrip("/")))
    if length > LONGEST_FOLDER:
        raise UserError(
            f"{name} has {length} bytes, and Ray's sockets stand below it, so that it may have {LONGEST_FOLDER} at "
            "most: set RAY_TMPDIR to a folder with a shorter path, such as /tmp"
        )


def _guard() -> None:
    """Let a local Ray listen on the loopback interface only, with a token that no file holds; before Ray is imported.

    Ray would write its own token below the home folder, which need not be there or writable.
    """
    for name, value in LOCAL.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on Linux: use 127.0.0.1 as Ray does on macOS
    if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token" and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def start_or_give_up(start: Callable[[], Any], tidy: Callable[[], Any]) -> None:
    """Start a local Ray; after a failure end all its processes and start once more.

    Raises:
        Unavailable: the last start failed too.
    """
    before = set(descendants(os.getpid()))

    def clear() -> None:
        tidy()
        end_all(set(descendants(os.getpid())) - before)

    for attempt in range(STARTS):
        try:
            start()
        except KeyboardInterrupt:
            clear()
            raise
        except Exception as error:
            clear()
            reason = " ".join(str(error).split()) or type(error).__name__
            if attempt == STARTS - 1:
                raise Unavailable(
                    f"Ray did not start in {STARTS} attempts ({reason[:200]}); the machine may be too busy or short of "
                    "memory: run the same command again"
                ) from error
            say("ray", f"Ray did not start ({reason[:100]}); trying once more")
        else:
            return


def check_connected(resources: ResourcesConfig) -> None:
    """Refuse the cluster that is connected, as `ResourcesConfig.check`; say how to use GPUs that a run leaves idle."""
    there = _supply()
    resources.check(there)
    gpus = int(there.get("GPU", 0))
    if gpus and not resources.train_gpus and not resources.gpus_per_actor:
        use = f"resources.gpus_per_actor=1 resources.encoder_actors={gpus} resources.train_gpus=1"
        say("ray", f"{count_of(gpus, 'GPU is', 'GPUs are')} not used; to use {'it' if gpus == 1 else 'them'}: {use}")


def encoder_actors(resources: ResourcesConfig) -> int:
    """Encoder actors on the connected cluster."""
    return resources.actors(_supply())


def decoding_threads(resources: ResourcesConfig) -> int:
    """Threads that decode in an encoder actor on the connected cluster; see `ResourcesConfig.decoding_threads`."""
    return resources.decoding_threads(_nodes())


def trainings_at_once(resources: ResourcesConfig) -> int:
    """Encoders that the connected cluster can train side by side; one at least."""
    per_worker = {"CPU": resources.train_cpus, "GPU": resources.train_gpus}
    held = {kind: resources.train_workers * amount for kind, amount in per_worker.items() if amount}
    there = _supply()
    return max(1, min(int(there.get(kind, 0.0) // amount) for kind, amount in held.items()))


def available_cpus() -> float:
    """CPUs of the cluster that is connected."""
    return _supply().get("CPU", 1.0)


def object_store_bytes() -> float:
    """Bytes of all object stores of the connected cluster."""
    return _supply().get("object_store_memory", 0.0)


def largest_node() -> tuple[float, float]:
    """(CPUs, GPUs) of the node of the connected cluster that has most of them."""
    return max((float(has.get("GPU", 0)), float(has.get("CPU", 0))) for has in _nodes())[::-1]


def _supply() -> dict[str, float]:
    """The resources of the connected cluster."""
    import ray

    return dict(ray.cluster_resources())


def _nodes() -> list[dict[str, float]]:
    """The resources of each of its nodes that is alive."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


@contextmanager
def _without_native_stderr() -> Iterator[None]:
    """Drop what Ray's C++ core writes to stderr while it starts (a line about its log level); exceptions still come."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def probe(address: str, named_by: str = "--address or RAY_ADDRESS") -> None:
    """Raise UserError where nothing listens at ``host:port``: a client of a dead address would hang.

    ``named_by``: the option or variable that the address comes from.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PROBE_SECONDS).close()
    except (OSError, ValueError) as error:
        raise UserError(f"no Ray cluster answers at {address} ({error}); check {named_by}, or leave it out") from error


def mapped(
    function: Callable[..., Any],
    arguments: Iterable[Sequence[Any]],
    unit: str,
    title: str,
    *,
    cpus: float = 1,
    gpus: float = 0,
    memory: int = 0,
    fits: Sequence[str] = (),
) -> list[Any]:
    """Call a function on many arguments as Ray tasks, a window of them at a time, with a bar.

    Args:
        function: of a task.
        arguments: of each task.
        unit: of the bar, such as encoders.
        title: of the bar.
        cpus, gpus: that a task holds.
        memory: bytes that a task takes, so that no more run side by side than a node bears; `TASK_MEMORY` at least.
        fits: names of the tasks, each with a bar of its own while it fits a network; none: no task has one.

    Returns:
        The results of the tasks, in order.

    Raises:
        UserError: the first fault of the user; the other tasks are not waited for.
    """
    import ray

    given, board = list(arguments), clean_board() if fits else None
    if board is not None:
        given = [(function, board, name, *some) for name, some in zip(fits, given, strict=True)]
    most = borne(max(memory, TASK_MEMORY))
    remote = ray.remote(num_cpus=cpus, num_gpus=gpus, memory=most)(function if board is None else _telling)
    results: list[Any] = [None] * len(given)
    waiting = iter(enumerate(given))
    running: dict[Any, int] = {}
    with bars(unit) as progress:
        bar = progress.add_task(title, total=len(given))
        progress.begin(bar)
        while True:
            for position, some in islice(waiting, max(0, _at_once(cpus, gpus) - len(running))):
                running[remote.remote(*some)] = position
            if not running:
                return results
            ready, _ = ray.wait(list(running), num_returns=1, timeout=None if board is None else REFRESH_SECONDS)
            if board is not None:
                _show(progress, {fits[position] for position in running.values()}, ray.get(board.read.remote()))
            if not ready:
                continue
            try:
                results[running.pop(ready[0])] = ray.get(ready[0])
            except ray.exceptions.RayTaskError as error:
                fault = fault_of_user(error)
                if fault is None:
                    raise
                raise UserError(fault) from error
            progress.advance(bar)


def _telling(function: Callable[..., Any], board: Any, name: str, *arguments: Any) -> Any:
    """Call a function; the board learns of the epochs of its fits."""
    from mi_core.mlp import epochs_told_to

    report = Reporter(board, name)
    with epochs_told_to(lambda done, epochs: report(done, total=epochs)):
        return function(*arguments)


def _show(progress: Bars, running: set[str], notes: Mapping[str, Note]) -> None:
    """Show the epochs of the fits under way, and no others."""
    shown = {task.description: task.id for task in progress.tasks if task.fields["unit"] == "epochs"}
    for name in running & notes.keys():
        note = notes[name]
        bar = shown[name] if name in shown else progress.add_task(name, unit="epochs")
        if name not in shown or note.done < progress.tasks[progress.task_ids.index(bar)].completed:
            progress.begin(bar, note.done)  # a task may fit several networks in turn
        progress.update(bar, completed=note.done, total=note.total)
    for name in shown.keys() - running:
        progress.remove_task(shown[name])


def clean_board() -> Any:
    """The board of this connection to Ray, with nothing on it: one actor for all stages, since each is a process."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    context = ray.get_runtime_context()
    connection = context.get_node_id(), context.get_job_id()
    if connection not in _boards:
        _boards.clear()
        beside = NodeAffinitySchedulingStrategy(context.get_node_id(), soft=True)  # no spot machine
        remote = ray.remote(num_cpus=0, memory=borne(HELPER_MEMORY), scheduling_strategy=beside)(Board)
        _boards[connection] = remote.remote()
    ray.get(_boards[connection].wipe.remote())
    return _boards[connection]


def storage_of(path: str) -> dict[str, Any]:
    """A folder as the ``RunConfig`` of Ray takes it: Ray itself knows fewer stores, and would decode a key."""
    if not storage.is_uri(path):
        return {"storage_path": storage.absolute(path)}
    filesystem, place = store_of(path)
    return {"storage_filesystem": filesystem, "storage_path": place}


def mapped_or_here(
    function: Callable[..., Any], arguments: Iterable[Sequence[Any]], unit: str, title: str
) -> list[Any]:
    """As `mapped` where Ray runs, otherwise in this process."""
    import ray

    if ray.is_initialized():
        return mapped(function, arguments, unit, title)
    return [function(*given) for given in arguments]


def borne(memory: int) -> int:
    """Bytes to ask Ray for: half of the largest node's at most, or a task would wait for a node that never comes."""
    return min(memory, int(max(node.get("memory", 0.0) for node in _nodes())) // 2)


def _at_once(cpus: float, gpus: float) -> int:
    """Tasks to submit ahead: twice as many as the connected cluster runs side by side, and 8 at least.

    Ray looks through all submitted tasks at every wait, so submitting 40,000 at once takes an hour of waiting.
    """
    there = _supply()
    side_by_side = [there.get(kind, 0.0) / held for kind, held in (("CPU", cpus), ("GPU", gpus)) if held]
    return max(8, int(2 * min(side_by_side, default=4.0)))
