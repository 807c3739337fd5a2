"""The files that say where the pipeline runs: each is taken by the rules of whoever reads it.

No cloud and no cluster is asked; what is read is the files, Ray's own checks, and the code that they name.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.cluster.reading import GONE, TEXTS, changed, ray_commands, ray_version, strings

SCHEMA = json.loads((Path(__file__).parent / "kuberay_schema.json").read_text())
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.I)
SECRET_TEXT = re.compile(r"AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY|aws_secret_access_key|private_key_id", re.I)

# ----------------------------------------------------------------------------------------------------------- ray up

WITH_GPU = re.compile(r"^(g[2-9]|p[3-9])")
CLOUDS = ["aws"]


def ray_up(name: str) -> dict[str, Any]:
    return yaml.safe_load(TEXTS[f"{name}.yaml"])


def ray_up_faults(config: dict[str, Any]) -> set[str]:
    """What Ray's own check lets through, and a run would find out."""
    types = config["available_node_types"]
    head = types[config["head_node_type"]]
    workers = [one for name, one in types.items() if name != config["head_node_type"]]
    region, zones = config["provider"].get("region", ""), config["provider"].get("availability_zone", "")
    starts = [shlex.split(line) for line in config["head_start_ray_commands"] + config["worker_start_ray_commands"]]
    options = [
        {word.partition("=")[0] for word in words if word.startswith("--")} for words in starts if "start" in words
    ]
    ports = {word for words in starts for word in words if word.startswith("--metrics-export-port=")}
    run = " ".join(config["docker"]["run_options"])
    checks = {
        "no region": bool(region),
        "a zone of another region": bool(zones) and all(zone.startswith(region) for zone in zones.split(",")),
        "the head takes work": head["resources"] == {"CPU": 0},
        "the head may be taken away": not _spot(head),
        "a worker that is no spot machine": all(map(_spot, workers)),
        "a worker without CPUs": all(one["resources"].get("CPU", 0) > 0 for one in workers),
        "a GPU that Ray is not told of": all(
            bool(WITH_GPU.match(one["node_config"]["InstanceType"])) == (one["resources"].get("GPU", 0) > 0)
            for one in types.values()
        ),
        "a GPU without its image": all(
            one.get("docker", {}).get("worker_image", config["docker"]["image"]).endswith("-gpu")
            == ("GPU" in one["resources"])
            for one in types.values()
        ),
        "more at least than at most": all(one["min_workers"] <= one["max_workers"] for one in workers)
        and sum(one["min_workers"] for one in workers) <= config["max_workers"],
        "no GPU at the start": any(one["min_workers"] for one in workers if "GPU" in one["resources"]),
        "a node with rights of nobody": all(one["node_config"].get("IamInstanceProfile") for one in workers),
        "no token authentication": "RAY_AUTH_MODE=token" in run
        and config["file_mounts"] == {"/home/ray/.ray/auth_token": "~/.ray/auth_token"},
        "a secret in the file": not any(map(SECRET_TEXT.search, strings(config)))
        and not any(map(SECRET_NAME.search, re.findall(r"--env[ =](\w+)=", run))),
        "metrics on different ports": len(ports) == 1,
        "an option that ray start has not": all(some <= ray_commands()["start"] for some in options),
        "something installed at the start": not config["setup_commands"] and not config["head_setup_commands"],
    }
    return {fault for fault, fine in checks.items() if not fine}


def _spot(node_type: dict[str, Any]) -> bool:
    return bool(node_type["node_config"].get("InstanceMarketOptions", {}).get("MarketType") == "spot")


def ray_takes(config: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(copy.deepcopy(config)))


@pytest.mark.parametrize("name", CLOUDS)
def test_ray_up_takes_it(name: str) -> None:
    config = ray_up(name)
    ray_takes(config)
    assert ray_up_faults(config) == set()
    for path, value in (("wrong", 1), ("provider/type", GONE), ("head_node_type", GONE), ("max_workers", 1)):
        with pytest.raises((jsonschema.ValidationError, ValueError, KeyError)):
            ray_takes(changed(config, path, value))


# ---------------------------------------------------------------------------------------------------------- KubeRay


def kubernetes(name: str) -> dict[str, dict[str, Any]]:
    """The documents of a file by their kinds."""
    return {document["kind"]: document for document in yaml.safe_load_all(TEXTS[f"{name}.yaml"])}


def cluster_of(document: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = document["spec"]
    return spec if document["kind"] == "RayCluster" else spec["rayClusterSpec"]


def kuberay_faults(document: dict[str, Any]) -> set[str]:
    """What the schema refuses, and what it cannot see."""
    validator = jsonschema.Draft202012Validator(SCHEMA | {"$ref": f"#/$defs/{document['kind']}"})
    if errors := {error.message for error in validator.iter_errors(document)}:
        return errors
    cluster, job = cluster_of(document), document["spec"] if document["kind"] == "RayJob" else {}
    head, groups = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    ray_pods = [_pod(one) for one in (head, *groups)]
    pods = ray_pods + [job[name]["spec"] for name in ("submitterPodTemplate",) if name in job]
    containers = [pod["containers"][0] for pod in pods]
    params = [one["rayStartParams"] for one in (head, *groups)]
    checks = {
        "the head takes work": params[0].get("num-cpus") == "0",
        "no autoscaling": cluster.get("enableInTreeAutoscaling") is True,
        "no token authentication": cluster.get("authOptions") == {"mode": "token"},
        "more at least than at most": all(
            one["minReplicas"] <= one.get("replicas", one["minReplicas"]) <= one["maxReplicas"] for one in groups
        ),
        "no GPU at the start": any(one["minReplicas"] for one in groups if _gpus(_pod(one))),
        "a GPU without its image": all(
            bool(_gpus(pod)) == pod["containers"][0]["image"].endswith("-gpu") for pod in pods
        ),
        "as many GPUs for Ray as for the pod": all(
            one["rayStartParams"].get("num-gpus", _gpus(_pod(one))) == _gpus(_pod(one)) for one in groups
        ),
        "a request that is no limit": all(
            one["resources"]["requests"] == one["resources"]["limits"] for one in containers
        ),
        "root": all(
            pod["securityContext"].get("runAsNonRoot") is True and pod["securityContext"].get("runAsUser")
            for pod in pods
        ),
        "a secret in the file": not any(
            SECRET_NAME.search(entry["name"]) and "value" in entry for one in containers for entry in one.get("env", ())
        )
        and not any(map(SECRET_TEXT.search, strings(document))),
        "objects that do not fit": all(map(_objects_fit, ray_pods, params)),
        "metrics nowhere": all(
            {"name": "metrics", "containerPort": int(some["metrics-export-port"])} in pod["containers"][0]["ports"]
            for pod, some in zip(ray_pods, params, strict=True)
        ),
        "a volume that is not there": all(
            {mount["name"] for mount in pod["containers"][0].get("volumeMounts", ())}
            == {volume["name"] for volume in pod.get("volumes", ())}
            for pod in pods
        ),
        "an option that ray start has not": all(
            {f"--{name}" for name in some} <= ray_commands()["start"] for some in params
        ),
        "an account of its own": {pod.get("serviceAccountName") for pod in ray_pods} == {"encoder-audit"},
        "another Ray": cluster["rayVersion"] == ray_version(),
        "a job that is not tried again": not job or job.get("backoffLimit", 0) > 0,
        "a cluster that stays": not job or (job.get("shutdownAfterJobFinishes") and job["ttlSecondsAfterFinished"] > 0),
    }
    return {fault for fault, fine in checks.items() if not fine}


def _pod(group: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = group["template"]["spec"]
    return pod


def _gpus(pod: dict[str, Any]) -> str | None:
    found: str | None = pod["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
    return found


def _objects_fit(pod: dict[str, Any], params: dict[str, str]) -> bool:
    """The object store fits in /dev/shm, and that, as memory which it is, in half of the pod's limit."""
    container = pod["containers"][0]
    shared = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
    volume = next((one["emptyDir"] for one in pod["volumes"] if one["name"] in shared), {})
    room, limit = (
        int(text.removesuffix("Gi"))
        for text in (volume.get("sizeLimit", "0Gi"), container["resources"]["limits"]["memory"])
    )
    return volume.get("medium") == "Memory" and int(params["object-store-memory"]) < room * 2**30 and 2 * room <= limit


@pytest.mark.parametrize(("name", "kind"), [("raycluster", "RayCluster"), ("rayjob", "RayJob")])
def test_kuberay_takes_it(name: str, kind: str) -> None:
    assert kuberay_faults(kubernetes(name)[kind]) == set()
