"""Where somebody else's scheduler gives the nodes: Slurm's script runs with stand-ins, SkyPilot's file is checked."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.cluster.reading import CLUSTER, GONE, TEXTS, changed, ray_commands, ray_version

SLURM = TEXTS["slurm.sh"]
SKYPILOT = yaml.safe_load(TEXTS["skypilot.yaml"])
SCHEMA = json.loads((Path(__file__).parent / "skypilot_schema.json").read_text())
SBATCH = {
    *("job-name", "nodes", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "time", "exclusive", "requeue"),
    *("output", "partition", "account", "mem"),
}
SRUN = {"--nodes", "--ntasks-per-node", "--kill-on-bad-exit", "--cpus-per-task"}
OF_SYMMETRIC_RUN = {"--address", "--min-nodes"}
REFUSED = {"--head", "--node-ip-address", "--port", "--block"}
"""Options of ``ray start`` that symmetric-run refuses."""


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
    """Options that sbatch, srun, symmetric-run or ray start would refuse."""
    asked = {re.split("[= ]", line)[1].removeprefix("--") for line in re.findall("^#SBATCH .*$", script, re.M)}
    (command,) = re.findall(r"^srun (.*)$", script.replace("\\\n", " "), re.M)
    words = shlex.split(command)
    ray, separator = words.index("ray"), words.index("--")
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    of_srun = {word.partition("=")[0] for word in words[:ray]}
    of_ray = {word.partition("=")[0] for word in words[ray:separator] if word.startswith("--")} - OF_SYMMETRIC_RUN
    checks = {
        "an option that sbatch has not": asked <= SBATCH,
        "a node that others use": "exclusive" in asked,
        "several Rays on a node": "--ntasks-per-node=1" in words and "#SBATCH --ntasks-per-node=1" in script,
        "an option that srun has not": of_srun <= SRUN,
        "no such command of Ray": words[ray + 1] in ray_commands()
        and ray_commands()[words[ray + 1]] >= OF_SYMMETRIC_RUN,
        "an option that ray start has not": of_ray <= ray_commands()["start"] - REFUSED,
        "nodes that are not waited for": given.count("--min-nodes") == 1,
        "nodes that symmetric-run does not find": 'export RAY_ADDRESS="$address"' in script,
        "one CPU for a task": "--cpus-per-task" in of_srun,
        "no token authentication": "export RAY_AUTH_MODE=token" in script,
    }
    return {fault for fault, fine in checks.items() if not fine}


def test_slurm_and_ray_know_every_option() -> None:
    assert slurm_faults(SLURM) == set()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("#SBATCH --exclusive", "#SBATCH --alone", "an option that sbatch has not"),
        ("#SBATCH --exclusive\n", "", "a node that others use"),
        ("--kill-on-bad-exit=1", "--kill=1", "an option that srun has not"),
        ("ray symmetric-run", "ray symmetric", "no such command of Ray"),
        ("--disable-usage-stats", "--port=6379", "an option that ray start has not"),
        ("--num-gpus", "--gpus", "an option that ray start has not"),
        ("--min-nodes", "--nodes", "nodes that are not waited for"),
        ("RAY_ADDRESS=", "ADDRESS=", "nodes that symmetric-run does not find"),
        (' --cpus-per-task="$SLURM', ' --exclusive="$SLURM', "one CPU for a task"),
        ("--ntasks-per-node=1 --kill", "--ntasks-per-node=2 --kill", "several Rays on a node"),
        ("RAY_AUTH_MODE=token", "RAY_AUTH_MODE=disabled", "no token authentication"),
    ],
)  # fmt: skip
def test_what_slurm_and_ray_would_refuse(old: str, new: str, fault: str) -> None:
    assert fault in slurm_faults(SLURM.replace(old, new))


SRUN_STAND_IN = """\
while [[ "$1" == --* ]]; do echo "srun $1"; shift; done
if [[ "$SLURM_JOB_NUM_NODES" == 2 ]]; then
    join='until ip link set n1 up 2> /dev/null; do sleep 0.1; done'
    join+='; ip link set lo up; ip address add 10.77.0.2/24 dev n1'
    unshare --net --pid --fork --mount-proc bash -c "$join"'; exec "$@"' bash "$@" > /dev/null 2>&1 &
    while [[ "$(readlink /proc/$!/ns/net)" == "$(readlink /proc/self/ns/net)" ]]; do sleep 0.1; done
    ip link add n0 type veth peer name n1
    ip address add 10.77.0.1/24 dev n0
    ip link set n0 up
    ip link set n1 netns $!
fi
"$@"
"""
"""Starts the command here and, for two nodes, on another: with a network and processes of its own, and a cable."""

STAND_INS = {
    "srun": SRUN_STAND_IN,
    "encoder-audit": 'exec "$PYTHON" "$(dirname "$0")/run.py" "$@"\n',
}
RUN = """\
import sys
import ray

ray.init(address=sys.argv[sys.argv.index("--address") + 1])
print("arguments", *sys.argv[1:])
answer = ray.get(ray.remote(lambda: 42).remote())
print("nodes", len(ray.nodes()), "CPUs", ray.cluster_resources()["CPU"], "answer", answer)
sys.exit(3 if "fail" in sys.argv else 0)
"""


def alone(*command: str) -> list[str]:
    """A command that sees and ends no process but its own: symmetric-run stops every Ray that it sees."""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--net"]
    loopback = 'ip link set lo up 2> /dev/null; exec "$@"'
    return [*apart, "bash", "-c", loopback, "bash", *command]


def can_stand_alone() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(alone("true"), capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_stand_alone(), reason="needs namespaces: symmetric-run would stop every Ray of this user")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "last", "code"), [(1, "fail", 3), (1, "seeds=[0]", 0), (2, "fail", 3), (2, "seeds=[0]", 0)]
)
def test_slurm_runs_on_its_nodes(nodes: int, last: str, code: int, tmp_path: Path) -> None:
    """`srun` and `encoder-audit` are stand-ins; Ray's symmetric-run is real, on loopback, and so is its exit code."""
    place, address = tmp_path / "bin", "127.0.0.1" if nodes == 1 else "10.77.0.1"
    place.mkdir()
    for name, text in STAND_INS.items():
        (place / name).write_text(f"#!/bin/bash\n{text}")
        (place / name).chmod(0o755)
    (place / "run.py").write_text(RUN)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))},
        "PATH": f"{place}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_CPUS_PER_TASK": "2",
        "ENCODER_AUDIT_IP": address,
    }
    command = alone("timeout", "400", "bash", str(CLUSTER / "slurm.sh"), "quickstart", "--out", "x", last)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    shutil.rmtree(f"/tmp/ray-{os.getpid()}", ignore_errors=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert "arguments audit quickstart --out x" in done.stdout
    assert f"--address {address}:6379 --yes" in done.stdout
    assert f"nodes {nodes} CPUs {2.0 * nodes} answer 42" in done.stdout
    assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o077 == 0


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
        "another Ray": f":{ray_version()}-gpu" in resources["image_id"],
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


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("resources/infra", "nowhere", "does not match"),
        ("resources/accelerator", "L4:1", "('accelerator' was unexpected)"),
        ("num_node", 2, "('num_node' was unexpected)"),
        ("num_nodes", "two", "'two' is not of type 'integer'"),
        ("run", GONE, "'run' is a required property"),
        ("resources/image_id", "docker:REGISTRY/encoder-audit:2.59.0-gpu", "another Ray"),
        ("secrets/RAY_AUTH_TOKEN", "abc", "a secret in the file"),
        ("secrets", GONE, "no token authentication"),
        ("envs/CONFIG", GONE, "a name that is not set"),
        ("run", "ray symmetric-run -- encoder-audit", "SkyPilot's own Ray stopped"),
        ("run", "ray start --gpus=1", "an option that ray start has not"),
    ],
)
def test_skypilot_takes_it(path: str, value: object, fault: str) -> None:
    assert skypilot_faults(SKYPILOT) == set()
    assert any(fault in found for found in skypilot_faults(changed(SKYPILOT, path, value)))
