"""Where somebody else's scheduler gives the nodes: Slurm's script runs with stand-ins, SkyPilot's file is checked."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.cluster.reading import CLUSTER, TEXTS, ray_commands

SLURM = TEXTS["slurm.sh"]
SKYPILOT = yaml.safe_load(TEXTS["skypilot.yaml"])
SCHEMA = json.loads((Path(__file__).parent / "skypilot_schema.json").read_text())
SBATCH = {
    *("job-name", "nodes", "ntasks-per-node", "cpus-per-task", "mem", "gpus-per-node", "time", "signal", "requeue"),
    *("output", "partition", "account"),
}
SRUN = {
    *("--nodes", "--ntasks", "--ntasks-per-node", "--relative", "--kill-on-bad-exit", "--export", "--cpus-per-task")
}


def checked(script: str, tmp_path: Path) -> list[str]:
    """What bash and shellcheck say of a script."""
    path = tmp_path / "script.sh"
    path.write_text(script)
    parsed = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    shellcheck = [str(Path(sys.executable).with_name("shellcheck")), "--shell=bash", "--format=gcc", str(path)]
    found = subprocess.run(shellcheck, capture_output=True, text=True, check=False)
    return [*parsed.stderr.splitlines(), *found.stdout.splitlines()]


@pytest.mark.parametrize("script", [SLURM, SKYPILOT["run"]], ids=["slurm", "skypilot"])
def test_shellcheck_has_nothing_to_say(script: str, tmp_path: Path) -> None:
    assert checked(script, tmp_path) == []
    assert any(
        "SC2086" in line for line in checked(script.replace('"$head:6379"', "$head").replace('"$@"', "$@ $1"), tmp_path)
    )
    assert checked(script + "\nif true; then\n", tmp_path)


# -------------------------------------------------------------------------------------------------------------- Slurm


def slurm_faults(script: str) -> set[str]:
    """Options that sbatch, srun or ray start would refuse, and what two jobs on a node would share."""
    asked = {re.split("[= ]", line)[1].removeprefix("--") for line in re.findall("^#SBATCH .*$", script, re.M)}
    code = re.sub(r"^ *#.*$", "", script.replace("\\\n", " "), flags=re.M)
    (step,) = re.findall(r"^ *srun (.*)$", code, re.M)
    of_srun, of_node = (
        {word.partition("=")[0] for word in re.findall(r"--[a-z-]+", part)} for part in step.split("bash", 1)
    )
    (of_head,) = (set(re.findall(r"--[a-z-]+", line)) for line in re.findall(r"^start 1 0 (.*)$", code, re.M))
    (of_others,) = (set(re.findall(r"--[a-z-]+", line)) for line in re.findall(r"^ *start .* 1 (--.*)$", code, re.M))
    given = of_node | {"--temp-dir"} | ({"--block"} if "--block" in code else set())
    checks = {
        "an option that sbatch has not": asked <= SBATCH,
        "a node that nobody else may use": "exclusive" not in asked,
        "memory without a bound": "mem" in asked and {"--memory", "--object-store-memory"} <= given,
        "several Rays on a node": "--ntasks-per-node=1" in step and "#SBATCH --ntasks-per-node=1" in script,
        "an option that srun has not": of_srun <= SRUN,
        "an option that ray start has not": given | of_head | of_others <= ray_commands()["start"],
        "a port that every Ray takes": fixed_ports() <= given | of_head and fixed_ports(False) <= given | of_others,
        "a step that ends at once": "--block" in given,
        "a folder of every Ray": 'ray start --temp-dir "$@"' in code,
        "Rays of others stopped": "ray stop" not in code and "symmetric-run" not in code,
        "one CPU for a task": "--cpus-per-task" in of_srun,
        "no token authentication": "export RAY_AUTH_MODE=token" in script,
    }
    return {fault for fault, fine in checks.items() if not fine}


def fixed_ports(head: bool = True) -> set[str]:
    """Options of ``ray start`` for ports that are the same for all Rays unless they are given."""
    from ray.scripts.scripts import cli

    ports = [one for one in cli.commands["start"].params if str(one.name).endswith("_port")]
    own = {one.opts[0] for one in ports if isinstance(one.default, int) and one.default}
    assert "--max-worker-port" in own
    return own | {"--port", "--ray-client-server-port"} if head else own - {"--dashboard-port"}


def test_slurm_and_ray_know_every_option() -> None:
    assert slurm_faults(SLURM) == set()


SRUN_STAND_IN = """\
place=0
while [[ "$1" == --* ]]; do [[ "$1" == --relative=* ]] && place="${1#*=}"; shift; done
if [[ "$place" == 1 ]]; then
    join='mount --bind "$HOME/tmp" /tmp; until ip link set n1 up 2> /dev/null; do sleep 0.1; done'
    join+='; ip link set lo up; ip address add 10.77.0.2/24 dev n1'
    set -- unshare --mount --net --pid --fork --mount-proc bash -c "$join"'; exec "$@"' bash "$@"
fi
trap 'kill -TERM -- "-$task"' TERM
setsid "$@" &
task=$!
if [[ "$place" == 1 ]]; then
    until other="$(pgrep -P "$task")" && [[ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]]
    do sleep 0.1; done
    ip link set n1 netns "$other"
fi
code=0
wait "$task" || code=$?
while kill -0 "$task" 2> /dev/null; do code=0; wait "$task" || code=$?; done
exit "$code"
"""
"""Starts the task of a step here, and passes SIGTERM on to it. The second node of a job has a network, processes and a
/tmp of its own, and a cable. Unlike Slurm, it ends nothing that a task leaves behind."""

STAND_INS = {"srun": SRUN_STAND_IN, "encoder-audit": 'exec "$PYTHON" "$(dirname "$0")/run.py" "$@"\n'}
RUN = """\
import json, os, signal, sys, time
from pathlib import Path
import ray

words = sys.argv[1:]
ray.init(address=words[words.index("--address") + 1], logging_level="ERROR")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
answer = ray.get(ray.remote(lambda: 42).remote())
nodes = [node["NodeID"] for node in ray.nodes()]
told = {"arguments": words, "nodes": nodes, "answer": answer, "all": ray.cluster_resources()}
place = Path.home() / os.environ["SLURM_JOB_ID"]
place.with_suffix(".part").write_text(json.dumps(told))
place.with_suffix(".part").rename(place)
while "wait" in words and not (Path.home() / "go").exists():
    time.sleep(0.1)
assert ray.get(ray.remote(lambda: 43).remote()) == 43
sys.exit(3 if "fail" in words else 0)
"""
MEGABYTES = 1000


class Job:
    """A job of Slurm that runs here: the script is real, and Ray; `srun` and `encoder-audit` are stand-ins."""

    def __init__(self, home: Path, number: int, last: str, *before: str, nodes: int = 1, ip: str = "127.0.0.1") -> None:
        """``last``: words for the driver; ``before``: a command that starts the script."""
        self.number, self.told = str(number), home / str(number)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))},
            "PATH": f"{home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "HOME": str(home),
            "SLURM_JOB_ID": self.number,
            "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_CPUS_PER_TASK": "2",
            "SLURM_MEM_PER_CPU": str(MEGABYTES // 2),
            "ENCODER_AUDIT_IP": ip,
        }
        self.log = home / f"{number}.log"
        with self.log.open("wb") as log:
            command = [*before, "bash", str(CLUSTER / "slurm.sh"), "quickstart", "--out", "x", *last.split()]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def report(self) -> dict[str, Any]:
        """What its driver tells of its Ray, once it runs."""
        until = time.monotonic() + 200
        while not self.told.exists():
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.1)
        return json.loads(self.told.read_text())

    def processes(self) -> dict[int, str]:
        """Numbers and commands of its processes."""
        mark, found = f"SLURM_JOB_ID={self.number}".encode(), {}
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (place / "environ").read_bytes().split(b"\0"):
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def end(self) -> None:
        """Kill what is left of it, as Slurm would."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for folder in Path("/tmp").glob(f"ray-{self.number}-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def remaining_processes(self) -> list[str]:
        """Processes and folders of the job that there are."""
        return [*self.processes().values(), *map(str, Path("/tmp").glob(f"ray-{self.number}-*"))]


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that all nodes share, outside of /tmp, with the stand-ins."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        place = Path(name)
        for folder in ("bin", "tmp"):
            (place / folder).mkdir()
        for command, text in STAND_INS.items():
            (place / "bin" / command).write_text(f"#!/bin/bash\n{text}")
            (place / "bin" / command).chmod(0o755)
        (place / "bin" / "run.py").write_text(RUN)
        yield place


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes of a job in /proc")
@pytest.mark.parametrize("cancelled", ["", "script", "all"])
def test_two_slurm_jobs_on_a_node_do_not_meet(cancelled: str, home: Path) -> None:
    """Each has its own Ray, exit code and end, also if one is cancelled: its script alone, or all its processes."""
    number = os.getpid() * 10  # the ports that both would try first are neighbours
    jobs = [Job(home, number, "wait fail"), Job(home, number + 1, "wait")]
    try:
        reports = [job.report() for job in jobs]
        for report in reports:
            assert report["arguments"][:4] == ["audit", "quickstart", "--out", "x"]
            assert (report["answer"], len(report["nodes"]), report["all"]["CPU"]) == (42, 1, 2.0)
            assert report["all"]["object_store_memory"] + report["all"]["memory"] < MEGABYTES * 2**20
        assert reports[0]["nodes"] != reports[1]["nodes"]
        assert all(job.remaining_processes() for job in jobs)
        if cancelled:
            for process in jobs[1].processes() if cancelled == "all" else [jobs[1].process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)
            assert jobs[1].process.wait(100) == 5, jobs[1].log.read_text()
            assert jobs[1].remaining_processes() == []
        assert jobs[0].process.poll() is None
        (home / "go").touch()
        codes = [job.process.wait(100) for job in jobs]
        assert codes == [3, 5 if cancelled else 0], "".join(job.log.read_text() for job in jobs)
        assert [job.remaining_processes() for job in jobs] == [[], []]
    finally:
        for job in jobs:
            job.end()


def alone(*command: str) -> list[str]:
    """A command with mounts, processes and a network of its own, in which a cable has one loose end."""
    apart = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--net"]
    network = "ip link set lo up && ip link add n0 type veth peer name n1 && ip address add 10.77.0.1/24 dev n0"
    return [*apart, "bash", "-c", f'{network} && ip link set n0 up && exec "$@"', "bash", *command]


def can_stand_alone() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(alone("true"), capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_stand_alone(), reason="needs namespaces for a second node")
def test_a_slurm_job_has_all_its_nodes(home: Path) -> None:
    job = Job(home, os.getpid() * 10, "fail", *alone(), nodes=2, ip="10.77.0.1")
    try:
        report = job.report()
        assert (len(report["nodes"]), report["all"]["CPU"]) == (2, 4.0)
        assert job.process.wait(100) == 3, job.log.read_text()
        assert (job.remaining_processes(), list((home / "tmp").iterdir())) == ([], [])
    finally:
        job.end()


@pytest.mark.parametrize("memory", [{}, {"SLURM_MEM_PER_NODE": "0"}])
def test_slurm_without_a_bound_of_memory_says_what_to_give(memory: dict[str, str]) -> None:
    environment = {"PATH": os.environ["PATH"], "SLURM_CPUS_PER_TASK": "2", **memory}
    command = ["bash", str(CLUSTER / "slurm.sh"), "quickstart"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "give sbatch --mem or --mem-per-cpu" in done.stderr) == (2, True)


def test_the_port_that_slurm_names_is_free() -> None:
    """The one that the number of the job gives may be in use; an address of another node has none."""
    (code,) = re.findall(r"client=.*? -c '(.*?)'", SLURM, re.S)

    def port_search(address: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code.replace("20000", str(port)), address, "30000"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert port < int(port_search("127.0.0.1").stdout) < port + 100
    assert port_search("192.0.2.77").stderr.startswith("slurm.sh: no port of 192.0.2.77 is free; if ENCODER_AUDIT_IP")


def test_slurm_without_a_config_says_how() -> None:
    done = subprocess.run(["bash", str(CLUSTER / "slurm.sh")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[:13]) == (2, "usage: sbatch")


# ----------------------------------------------------------------------------------------------------------- SkyPilot


def skypilot_faults(task: dict[str, object]) -> set[str]:
    """What SkyPilot's schema refuses, and what it cannot see."""
    if errors := {error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(task)}:
        return errors
    run, resources = str(task["run"]), task["resources"]
    assert isinstance(resources, dict)
    options = {word.partition("=")[0] for word in re.findall(r"(?<=\s)--[a-z-]+", _of_ray(run))}
    checks = {
        "an image without the GPU": resources["image_id"].endswith("-gpu"),
        "an option that ray start has not": options <= ray_commands()["start"],
        "SkyPilot's own Ray stopped": "symmetric-run" not in run and "ray stop" not in run,
        "no token authentication": "export RAY_AUTH_MODE=token" in run
        and "RAY_AUTH_TOKEN" in (task.get("secrets") or ()),
        "a secret in the file": not any((task.get("secrets") or {}).values()),  # type: ignore[attr-defined]
        "a name that is not set": set(re.findall(r"\$(?:{)?([A-Z_]+)", run))
        <= {
            *task["envs"],
            *(f"SKYPILOT_{name}" for name in ("NODE_IPS", "NODE_RANK", "NUM_NODES", "NUM_GPUS_PER_NODE")),
        },  # type: ignore[misc]
    }
    return {fault for fault, fine in checks.items() if not fine}


def _of_ray(run: str) -> str:
    """The lines that start Ray."""
    return "\n".join(line for line in run.splitlines() if "start" in line and "audit" not in line)


def test_skypilot_takes_it() -> None:
    assert skypilot_faults(SKYPILOT) == set()
