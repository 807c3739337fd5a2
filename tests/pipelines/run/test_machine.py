"""What a machine gives a process, and which processes of a dead run are ended: those on record, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.config.sections.limits import ResourcesConfig
from pipelines.plan.load import load
from pipelines.run.machine import (
    RECORD,
    Process,
    cpus,
    descendants,
    end_all,
    end_leftovers,
    identity,
    note,
    quotas,
    this_process,
)
from pipelines.run.ray_session import check_connected

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[3]
linux = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")


def limits(folder: Path, files: dict[str, str], groups: str) -> list[float]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return list(quotas(groups, folder))


def test_quotas_of_control_groups_of_both_versions(tmp_path: Path) -> None:
    second = {"cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n", "a/b/cpu.max": "400000 100000\n"}
    assert sorted(limits(tmp_path / "v2", second, "0::/a/b\n")) == [1.5, 4.0]
    assert limits(tmp_path / "v2", {}, "0::/\n") == []
    assert limits(tmp_path / "inside", {"cpu.max": "200000 100000\n"}, "0::/\n") == [2.0]  # a container's own view
    first = {"cpu,cpuacct/c/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/c/cpu.cfs_period_us": "100000\n"}
    first |= {"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}
    assert limits(tmp_path / "v1", first, "4:memory:/c\n3:cpu,cpuacct:/c\n0::/\n") == [0.5]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinities")
def test_cpus_are_those_of_the_affinity() -> None:
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{one}}}); from pipelines.run.machine import cpus; print(cpus())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
    assert 1 <= cpus() <= len(os.sched_getaffinity(0))


def test_the_quickstart_fits_one_cpu_and_more_are_used() -> None:
    resources = load(str(ROOT / "configs" / "quickstart.yaml")).resources
    resources.check({"CPU": 1.0})
    assert [resources.actors({"CPU": count}) for count in (1.0, 1.75, 64.0)] == [1, 2, 2]
    assert ResourcesConfig(encoder_actors=3).actors({"CPU": 1.0}) == 3  # what a config says is kept, and refused
    assert ResourcesConfig(gpus_per_actor=1).actors({"CPU": 8.0, "GPU": 1.0}) == 1


@pytest.mark.parametrize(
    ("gpus", "resources", "told"),
    [
        (0, {}, ""),
        (1, {}, "1 GPU is not used; to use it: resources.gpus_per_actor=1 resources.encoder_actors=1 "),
        (4, {}, "4 GPUs are not used; to use them: resources.gpus_per_actor=1 resources.encoder_actors=4 "),
        (1, {"train_gpus": 1}, ""),
        (1, {"gpus_per_actor": 0.5}, ""),
    ],
)
def test_a_gpu_that_nobody_uses_is_told_of_with_settings_that_fit(
    gpus: int,
    resources: dict[str, float],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there = {"CPU": 16.0} | ({"GPU": float(gpus)} if gpus else {})
    monkeypatch.setattr("ray.cluster_resources", lambda: there)
    check_connected(ResourcesConfig(**resources))
    line = capsys.readouterr().err
    assert told in line and bool(told) == bool(line)
    for words in line.split(": ", 1)[1:]:
        given = {word.partition("=")[0]: float(word.partition("=")[2]) for word in words.split()}
        ResourcesConfig(**{name.removeprefix("resources."): value for name, value in given.items()}).check(there)


def test_threads_that_decode_share_the_cpus_of_a_node_with_gpus() -> None:
    gpu, small, plain = {"CPU": 16.0, "GPU": 1.0}, {"CPU": 6.0, "GPU": 1.0}, {"CPU": 64.0}
    assert ResourcesConfig().decoding_threads([gpu]) == 0  # on a CPU decoding has no encoder to hide behind
    one = ResourcesConfig(gpus_per_actor=1)
    assert one.decoding_threads([gpu, plain]) == 16  # the default actor_cpus of .75 gave one
    assert one.decoding_threads([gpu, small, plain]) == 6
    assert ResourcesConfig(gpus_per_actor=1, encoder_actors=8).decoding_threads([{"CPU": 96.0, "GPU": 8.0}]) == 12
    assert ResourcesConfig(gpus_per_actor=0.25, encoder_actors=4).decoding_threads([gpu]) == 4
    assert ResourcesConfig(gpus_per_actor=0.25, encoder_actors=2).decoding_threads([gpu]) == 8
    assert ResourcesConfig(gpus_per_actor=1, actor_cpus=3).decoding_threads([]) == 3  # nodes that are to come
    assert ResourcesConfig(gpus_per_actor=1, actor_cpus=0.5).decoding_threads([{"CPU": 1.0, "GPU": 2.0}]) == 1


@contextmanager
def sleeping(title: str) -> Iterator[Process]:
    """A process whose command line begins with a title."""
    started = subprocess.Popen(["bash", "-c", f"exec -a '{title}' sleep 600"])
    try:
        mine = next(one for one in descendants(os.getpid()) if one.pid == started.pid)
        end = time.monotonic() + 20
        while not mine.command().startswith(title):
            assert time.monotonic() < end
            time.sleep(0.01)
        yield mine
    finally:
        started.kill()
        started.wait()


def dead() -> Process:
    """A process that has ended."""
    with sleeping("x") as process:
        pass
    assert not process.alive()
    return process


@linux
def test_a_process_is_known_by_pid_and_start(tmp_path: Path) -> None:
    assert this_process().alive()
    with sleeping("ray::IDLE") as process:
        assert end_all([Process(process.pid, process.started + 1)]) == 0
        assert process.alive()
        assert end_all([process]) == 1
        assert not process.alive()
    assert end_all([process]) == 0


@linux
def test_what_a_killed_run_left_is_ended_and_nothing_else(tmp_path: Path) -> None:
    session = f"{tmp_path}/session_1"
    with (
        sleeping("ray::DashboardAgent") as agent,
        sleeping(f"raylet --session={session}") as raylet,
        sleeping("ray::IDLE") as of_another_run,
        sleeping("editor") as number_used_again,
    ):
        on_record = [agent, raylet, Process(of_another_run.pid, of_another_run.started - 1), number_used_again]
        record = {"machine": identity(), "session": session, "driver": [0, 0]}
        record["processes"] = [[one.pid, one.started] for one in on_record]

        def left_by(driver: Process, machine: str) -> int:
            content = record | {"driver": [driver.pid, driver.started], "machine": machine}
            (tmp_path / RECORD).write_text(json.dumps(content))
            return end_leftovers(str(tmp_path))

        assert left_by(this_process(), identity()) == 0  # that run lives
        assert left_by(dead(), "another boot") == 0
        assert all(one.alive() for one in (agent, raylet, of_another_run, number_used_again))
        assert left_by(dead(), identity()) == 2
        assert not agent.alive()
        assert not raylet.alive()
        assert of_another_run.alive()
        assert number_used_again.alive()


@linux
def test_the_processes_of_a_local_ray_are_written_down(local_ray: None, tmp_path: Path) -> None:
    note(str(tmp_path))
    record = json.loads((tmp_path / RECORD).read_text())
    commands = [Process(*pair).command() for pair in record["processes"]]
    assert any("/raylet " in command for command in commands)
    assert any(command.startswith("ray::DashboardAgent") for command in commands)
    assert record["driver"][0] == os.getpid()
    assert end_leftovers(str(tmp_path)) == 0
