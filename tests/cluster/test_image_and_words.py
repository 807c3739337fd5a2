"""The image, the metrics that are watched, the config of the job, and what README.md tells to type."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from pipelines.extract.actor.worker import BUSY, COUNTERS, PREFIX, SECONDS, STEPS, TAGS
from tests.cluster.reading import CLUSTER, ROOT, TEXTS, ray_version

DOCKERFILE = TEXTS["Dockerfile"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IGNORE = (ROOT / ".dockerignore").read_text()
COUNTED = {f"ray_{PREFIX}{name}_total" for name in (*COUNTERS, SECONDS)}
EXPORTED = COUNTED | {f"ray_{PREFIX}{BUSY}"}

# ---------------------------------------------------------------------------------------------------------- versions


def test_one_version_of_ray() -> None:
    version = ray_version()
    (ray,) = [one for one in map(Requirement, PROJECT["dependencies"]) if one.name == "ray"]
    assert ray.specifier.contains(version)
    named = {(name, found) for name, text in TEXTS.items() for found in re.findall(r"\b2\.\d+\.\d+\b", text)}
    assert {found for _, found in named} == {version}
    assert {name for name, _ in named} >= {"raycluster.yaml", "rayjob.yaml", "Dockerfile"}
    images = {(name, found) for name, text in TEXTS.items() for found in re.findall(r"encoder-audit:([\w.]+)-", text)}
    assert {found for _, found in images} == {PROJECT["version"]}
    assert {name for name, _ in images} >= {"aws.yaml", "rayjob.yaml", "skypilot.yaml"}


# ------------------------------------------------------------------------------------------------------------- image


def extras_of(text: str) -> list[str]:
    """The extras that a Dockerfile installs."""
    (named,) = re.findall(r"(?m)^ARG EXTRAS=(\S+)$", text)
    return str(named).split(",")


def linted(text: str, tmp_path: Path) -> list[str]:
    """What hadolint says of a Dockerfile."""
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    command = [str(Path(sys.executable).with_name("hadolint")), "--no-color", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout.splitlines()


def test_hadolint_has_nothing_to_say(tmp_path: Path) -> None:
    assert linted(DOCKERFILE, tmp_path) == []
    spoiled = DOCKERFILE.replace("--no-cache-dir ", "")
    assert any("DL3042" in line for line in linted(spoiled, tmp_path))


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, its words) of a Dockerfile, lines joined, without comments."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", "")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines.splitlines() if line.strip()]


def let_through(path: str, ignore: str) -> bool:
    """Whether .dockerignore lets a path through: the last pattern that fits decides."""
    through = True
    for line in ignore.splitlines():
        pattern = line.strip().removeprefix("!").removeprefix("**/")
        parts = path.split("/")
        whole = any(fnmatch.fnmatch("/".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))
        if line.strip() and not line.startswith("#") and (whole or (line.startswith("**/") and pattern in parts)):
            through = line.startswith("!")
    return through


def image_faults(text: str, ignore: str) -> set[str]:
    found = instructions(text)
    names = [name for name, _ in found]
    base = next(words for name, words in found if name == "FROM")
    before = {words.partition("=")[0] for name, words in found[: names.index("FROM")] if name == "ARG"}
    after = {words.partition("=")[0] for name, words in found[names.index("FROM") :] if name == "ARG"}
    runs = [words for name, words in found if name == "RUN"]
    copied = [
        word for name, words in found if name == "COPY" for word in words.split()[:-1] if not word.startswith("--")
    ]
    users = [words for name, words in found if name == "USER"]
    first = next(number for number, (name, words) in enumerate(found) if name == "RUN" and "pip install" in words)
    code = next((number for number, (name, words) in enumerate(found) if name == "COPY" and "pipelines" in words), -1)
    checks = {
        "not Ray's image": base.startswith("rayproject/ray:${RAY_VERSION}-"),
        "an argument that is not there": set(re.findall(r"\$\{(\w+)\}", base)) <= before
        and set(re.findall(r"\$\{(\w+)\}", " ".join(runs))) <= after,
        "a path that is not there": all((ROOT / path).exists() for path in copied),
        "a path that is kept out": all(let_through(path, ignore) for path in copied),
        "more in the context than the image needs": not any(
            let_through(path, ignore)
            for path in (
                ".git/config",
                "tests/conftest.py",
                "configs/results/coverage.json",
                "mi_core/__pycache__/a.pyc",
            )
        ),
        "code in the layer of dependencies": first < code,
        "Ray may change": all("--constraint" in words for words in runs if "pip install" in words)
        and any('"ray==${RAY_VERSION}"' in words for words in runs),
        "another package index": not re.search(r"--(extra-)?index-url|--find-links|https?://", text),
        "caches in a layer": all("--no-cache-dir" in words for words in runs if "pip install" in words)
        and all("rm -rf /var/lib/apt/lists" in words for words in runs if "apt-get install" in words),
        "no look at what was built": "encoder-audit list attacks" in runs[-1],
        "root": bool(users) and users[-1].split(":")[0] not in ("root", "0"),
        "extras that are not there": set(extras_of(text)) <= set(PROJECT["optional-dependencies"]),
        "extras in two places": sum("${EXTRAS}" in words for words in runs) == 2,
    }
    return {fault for fault, fine in checks.items() if not fine}


def test_the_image() -> None:
    assert image_faults(DOCKERFILE, IGNORE) == set()


def test_the_layer_of_dependencies_is_that_of_the_project() -> None:
    (run,) = [words for name, words in instructions(DOCKERFILE) if name == "RUN" and "tomllib" in words]
    command = shlex.split(run[: run.index(">")])
    assert command[0] == "python"
    code = [word.replace("${EXTRAS}", ",".join(extras_of(DOCKERFILE))) for word in command[1:]]
    found = subprocess.run([sys.executable, *code], cwd=ROOT, capture_output=True, text=True, check=True)
    extras = [one for name in extras_of(DOCKERFILE) for one in PROJECT["optional-dependencies"][name]]
    assert found.stdout.splitlines() == PROJECT["dependencies"] + extras


@pytest.mark.slow
def test_every_step_of_the_image_runs(tmp_path: Path) -> None:
    """In an environment of its own in place of Ray's image, as the file says and with no file but those it copies."""
    context, place, home = (tmp_path / name for name in ("context", "build", "home"))
    place.mkdir()
    home.mkdir()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in filter(lambda name: let_through(name, IGNORE), tracked):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, context / name, follow_symlinks=False)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "python")], check=True)
    told = {"RAY_VERSION": ray_version(), "EXTRAS": ",".join(extras_of(DOCKERFILE)), "HOME": str(home)}
    environ = os.environ | told | {"PATH": f"{tmp_path / 'python' / 'bin'}:{os.environ['PATH']}"}
    environ.pop("PYTHONPATH", None)
    at = place
    for instruction, words in instructions(DOCKERFILE):
        if instruction == "WORKDIR":
            at = home if words == "/home/ray" else place
        elif instruction == "COPY":
            *sources, target = (word for word in words.split() if not word.startswith("--"))
            for source in sources:
                if (context / source).is_dir():
                    shutil.copytree(context / source, at / target, symlinks=True)
                else:
                    shutil.copy(context / source, at / source)
        elif instruction == "RUN" and not words.startswith("mkdir"):
            done = subprocess.run(words, shell=True, cwd=at, env=environ, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "mean-cosine" in done.stdout


# ----------------------------------------------------------------------------------------------------------- metrics


def test_ray_exports_these_names() -> None:
    """Ray's exporter adds ``_total`` to counters, and nothing to gauges."""
    from prometheus_client import REGISTRY, generate_latest
    from ray._private.telemetry.open_telemetry_metric_recorder import OpenTelemetryMetricRecorder

    recorder = OpenTelemetryMetricRecorder()
    for name in (*COUNTERS, SECONDS):
        recorder.register_counter_metric(f"{PREFIX}{name}", "")
    recorder.register_gauge_metric(f"{PREFIX}{BUSY}", "")
    for name in (*COUNTERS, SECONDS, BUSY):
        recorder.set_metric_value(f"{PREFIX}{name}", {"run": "a"}, 1.0)
    assert set(re.findall(rf"^(ray_{PREFIX}\w+)\{{", generate_latest(REGISTRY).decode(), re.M)) == EXPORTED


def metrics_in(text: str) -> set[str]:
    return set(re.findall(rf"ray_{PREFIX}\w+", text))


def dashboard_faults(board: dict[str, Any]) -> set[str]:
    panels, names = board["panels"], {one["name"] for one in board["templating"]["list"]}
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    labels = {label for one in asked for some in re.findall(r"by \(([^)]*)\)", one) for label in some.split(", ")}
    labels |= {
        label for one in asked for some in re.findall(r"\{([^}]*)\}", one) for label in re.findall(r"(\w+)=", some)
    }
    corners = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    text = json.dumps(board)
    checks = {
        "a metric that is not exported": metrics_in(text) <= EXPORTED,
        "a metric that is not shown": metrics_in(" ".join(asked)) == EXPORTED,
        "a label that is not exported": labels <= {*TAGS, "step"},
        "a variable that is not there": set(re.findall(r"\$\{?([a-z]\w*)", text)) <= names,
        "a counter without a rate": all(
            re.search(rf"(rate|increase)\({name}\b", one) for one in asked for name in metrics_in(one) & COUNTED
        ),
        "panels on each other": len(corners) == len({panel["id"] for panel in panels}) == len(panels),
        "no source of data": all(panel["datasource"]["uid"] == "${datasource}" for panel in panels),
    }
    return {fault for fault, fine in checks.items() if not fine}


BOARD = json.loads(TEXTS["grafana-dashboard.json"])


def test_the_dashboard() -> None:
    assert dashboard_faults(BOARD) == set()


def test_prometheus_reads_the_file_that_ray_writes() -> None:
    from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE

    config = yaml.safe_load(TEXTS["prometheus.yaml"])
    assert set(config) == {"global", "scrape_configs"}
    (scrape,) = config["scrape_configs"]
    assert scrape["file_sd_configs"] == [{"files": [f"/tmp/ray/{PROMETHEUS_SERVICE_DISCOVERY_FILE}"]}]
    assert "--volume /tmp/ray:/tmp/ray" in yaml.safe_load(TEXTS["aws.yaml"])["docker"]["head_run_options"]


def test_the_monitor_of_pods_in_the_comments() -> None:
    _, comment = TEXTS["prometheus.yaml"].split("# ---\n")
    monitor = yaml.safe_load("\n".join(line.removeprefix("# ") for line in comment.splitlines()))
    assert monitor["kind"] == "PodMonitor"
    (port,) = [one["port"] for one in monitor["spec"]["podMetricsEndpoints"]]
    assert TEXTS["raycluster.yaml"].count(f"name: {port}, containerPort: 8080") == 2  # the head's, the workers'


def test_words_name_metrics_that_are_exported() -> None:
    assert {name: metrics_in(text) - EXPORTED for name, text in TEXTS.items() if metrics_in(text) - EXPORTED} == {}
    assert metrics_in(TEXTS["README.md"])
    assert all(step in TEXTS["README.md"] for step in STEPS)


# -------------------------------------------------------------------------------------------------------- the config


def documents(name: str) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(TEXTS[name])}


def test_the_job_brings_a_cluster_like_the_one_that_stays() -> None:
    cluster = documents("rayjob.yaml")["RayJob"]["spec"]["rayClusterSpec"]
    pod = cluster["headGroupSpec"]["template"]["spec"]
    assert pod["containers"][0]["volumeMounts"].pop()["name"] == pod["volumes"].pop()["name"] == "config"
    assert cluster == documents("raycluster.yaml")["RayCluster"]["spec"]


def test_the_config_of_the_job_runs_on_its_smallest_cluster() -> None:
    from pipelines.plan.load import parse

    found = documents("rayjob.yaml")
    job, held = found["RayJob"]["spec"], found["ConfigMap"]
    pod = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    (mount,) = [one["mountPath"] for one in pod["containers"][0]["volumeMounts"] if one["name"] == "config"]
    assert pod["volumes"][-1] == {"name": "config", "configMap": {"name": held["metadata"]["name"]}}
    (name,) = held["data"]
    config = parse(yaml.safe_load(held["data"][name]), name)
    words = shlex.split(job["entrypoint"])
    assert words == ["encoder-audit", "audit", f"{mount}/{name}", "--out", f"s3://BUCKET/runs/{config.name}", "--yes"]
    there = {"CPU": 0, "GPU": 0}
    for group in job["rayClusterSpec"]["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        there["CPU"] += group["minReplicas"] * int(limits["cpu"])
        there["GPU"] += group["minReplicas"] * int(limits.get("nvidia.com/gpu", 0))
    config.resources.check(there)
    assert config.resources.encoder_actors * config.resources.gpus_per_actor == there["GPU"]  # none stands idle
    assert all(source.path.startswith("s3://") for source in config.data.sources.values())  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------------------- words

PLACEHOLDER = re.compile(r"\b(?:REGISTRY|BUCKET|PROJECT_ID|IMAGE_FAMILY|ROLE_ARN|ami-REPLACE)\b")


@pytest.mark.parametrize("name", ["aws.yaml", "raycluster.yaml", "rayjob.yaml"])
def test_what_is_to_be_replaced_is_said_first(name: str) -> None:
    head = TEXTS[name][: re.search(r"^[^#]", TEXTS[name], re.M).start()]  # type: ignore[union-attr]
    assert set(PLACEHOLDER.findall(head)) == set(PLACEHOLDER.findall(TEXTS[name])) != set()


def test_files_that_are_told_exist() -> None:
    named = set(re.findall(r"(?<!/)\b(?:cluster|configs)/[\w.-]+\.(?:yaml|json)", " ".join(TEXTS.values())))
    assert {name for name in named if not (ROOT / name).exists()} == set()
    links = re.findall(r"\]\(([^)#]+)\)", TEXTS["README.md"])
    assert all((CLUSTER / link).exists() for link in links), links
    assert Path(CLUSTER / "README.md").stat().st_size > 5000
