"""Configs for published models on a stand-in for the Hub: their own addresses, few images, small models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mi_core.adoption.foreign import adopt
from mi_core.adoption.weight_sources import read_hub_file
from mi_core.validity.power import PUBLISHED, detectable_auc, verdict_power
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import LoadedConfig
from pipelines.plan.load import load
from pipelines.plan.rules import ThreatModel
from tests.mi_core.adoption.folders import save_open_clip
from tests.pipelines.hub import COMMIT, ask_there, hub_at
from tests.pipelines.tars import image_bytes, tar_bytes

CONFIG = "configs/papers/clip-mia-bench.yaml"
ROOT = Path(__file__).parents[1]
DATA, MODELS = "CLIP-MIA-Bench/clip-mia-bench-data", "CLIP-MIA-Bench/clip-mia-bench-models"
SMALL = "ViT-S-32-alt"  # an architecture that open_clip knows
PAIRS = 16  # of a shard
SCALED = {
    "data.roles.known-member.count": 24,
    "data.roles.known-nonmember.count": 24,
    **{f"encoders.{name}.load": f"open_clip:hf-hub:{MODELS}" for name in ("target", "target-40m", "target-4m")},
    **{f"encoders.{name}.weights": "null" for name in ("target", "target-40m", "target-4m")},
    "data.image_size": 32,
    "encoders.reference.backbone": "resnet8",
    "encoders.reference.size": 32,
    "encoders.reference.epochs": 1,
    "encoders.reference.batch_size": 16,
    "queries.views": 2,
    **{f"attacks.{number}.grid": "3x1" for number in (3, 4)},
    "resources": "{encoder_actors: 1, actor_cpus: 1, gpus_per_actor: 0}",
}


def config() -> RunConfig:
    return load(CONFIG, [])


def paths_of(config: RunConfig) -> list[str]:
    return [path for source in config.data.sources.values() for path in source.patterns]


def test_addresses_are_those_of_the_benchmark() -> None:
    """Whole shards 1 to 3 and 43001 to 43003 are judged; what the attacker knows is in others."""
    found = config()
    assert all(path.startswith(f"hf://datasets/{DATA}/data/") for path in paths_of(found))
    weights = {name: getattr(encoder, "weights", None) for name, encoder in found.encoders.items()}
    for name, size in {"target": "400M", "target-40m": "40M", "target-4m": "4M"}.items():
        assert weights[name] == f"hf://{MODELS}/model/{size}/checkpoints/epoch_latest.pt"
    judged = {found.data.roles[role].source_name for role in ("target-member", "target-nonmember")}
    assert {path for name in judged for path in found.data.sources[name].patterns} == {
        f"hf://datasets/{DATA}/data/member/{{00000001..00000003}}.tar",
        f"hf://datasets/{DATA}/data/nonmember/{{00043001..00043003}}.tar",
    }
    others = {role.source_name for name, role in found.data.roles.items() if not name.startswith("target-")}
    assert not others & judged
    assert ThreatModel(found).groups_by == "choice"


@pytest.mark.parametrize(("name", "side"), [("clip-mia-bench", 27_000), ("dov4mm", 25_000)])
def test_the_power_is_told(name: str, side: int) -> None:
    """In the config and on the page, of the published AUC and of 80 %."""
    told = (ROOT / "configs" / "papers" / f"{name}.yaml").read_text()
    page = (ROOT / "configs" / "papers" / "README.md").read_text().split("## Published models")[1]
    least = detectable_auc(side, side)
    assert least is not None
    for number in (verdict_power(side, side, PUBLISHED), least):
        figure = f"{number:.3f}".removeprefix("0")
        assert figure in told
        assert figure in page
    assert f"{verdict_power(side, side, PUBLISHED, by='lot'):.3f}".removeprefix("0") in page
    assert f"{side:,}" in told
    assert f"{side:,}" in page


def write_shards(folder: Path) -> None:
    """Pairs of small images with captions, in every shard that the config names."""
    shards = [
        *(f"member/{number:08d}" for number in range(1, 13)),
        *(f"nonmember/{43000 + n:08d}" for n in range(1, 13)),
    ]
    for place, shard in enumerate(shards):
        members: list[tuple[str, bytes]] = []
        for seed in range(PAIRS * place, PAIRS * (place + 1)):
            key = f"{shard.rpartition('/')[2]}{seed:04d}"
            words = np.random.default_rng(seed).choice(["cat", "dog", "ship", "red", "old", "two"], 3)
            members += [
                (f"{key}.jpg", image_bytes(seed, "JPEG", 16)),
                (f"{key}.json", b"{}"),
                (f"{key}.txt", f"a photo of {' '.join(words)}".encode()),
            ]
        path = folder / "data" / f"{shard}.tar"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tar_bytes(members))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path


def test_a_checkpoint_of_open_clip_s_training_is_read_by_its_address(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of several workers, beside the optimizer's state; the architecture is a smaller one."""
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    model = open_clip.create_model(SMALL)
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    path = home / "models" / "model" / "400M" / "checkpoints" / "epoch_latest.pt"
    path.parent.mkdir(parents=True)
    torch.save({"epoch": 1, "name": "x", "state_dict": state, "optimizer": {"state": {}, "param_groups": []}}, path)
    address = getattr(config().encoders["target"], "weights", "")
    with hub_at({MODELS: home / "models"}) as endpoint:
        ask_there(endpoint, monkeypatch)
        file = read_hub_file(address)
    assert file.commit == COMMIT
    found = adopt(f"open_clip:{SMALL}", file.content, channels=3, image_size=224).encoder
    image = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        expected = model.eval().encode_image((image - found.mean) / found.std)
        torch.testing.assert_close(found(image)["projection"], expected, rtol=1e-3, atol=1e-4)
    assert found.text is not None


def audited(
    folder: Path, name: str, repositories: dict[str, Path], settings: Mapping[str, str | int]
) -> dict[str, Any]:
    """The report of a config's run against a Hub of some folders, in processes of its own."""
    with hub_at(repositories) as endpoint:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HF_"))} | {
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(folder / "home"),
            "NO_PROXY": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
        }
        changes = [f"{name}={value}" for name, value in settings.items()]
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.cli", "audit", name, "--out", str(folder / "run"), "--yes", *changes],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=590,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads((folder / "run" / "report.json").read_text())
    return report


def check_rows(report: Mapping[str, Any], config: RunConfig) -> None:
    """Every attack has its row with an interval, and the record of every model of the Hub its commit."""
    asked = Counter((attack.attack, attack.target) for attack in config.attacks)
    assert Counter((row["attack"], row["target"]) for row in report["attacks"]) == asked
    assert all(row["auc"]["ci95"][0] < row["auc"]["value"] < row["auc"]["ci95"][1] for row in report["attacks"])
    loaded = {name for name, encoder in config.encoders.items() if isinstance(encoder, LoadedConfig)}
    assert {name for name in loaded if COMMIT in json.dumps(report["encoders"][name])} == loaded


@pytest.mark.slow
def test_clip_mia_bench_ends_with_a_row_of_every_attack(tmp_path: Path) -> None:
    write_shards(tmp_path / "data")
    save_open_clip(tmp_path / "models")
    repositories = {f"datasets/{DATA}": tmp_path / "data", MODELS: tmp_path / "models"}
    report = audited(tmp_path, CONFIG, repositories, SCALED)
    check_rows(report, config())
    assert {row["auc"]["n"] for row in report["attacks"]} == {6 * PAIRS}
