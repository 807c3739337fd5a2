"""`configs/papers/clip-mia-bench.yaml` on a stand-in for the Hub: its own addresses, few pairs, a small CLIP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mi_core.adoption import hub
from mi_core.adoption.foreign import adopt
from pipelines.config.run_config import RunConfig
from pipelines.plan.load import load
from pipelines.plan.rules.controls import groups_by
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
    "data.roles.anchor.count": 8,
    "data.roles.unlabelled.count": 60,
    **{f"encoders.{name}.load": f"open_clip:hf-hub:{MODELS}" for name in ("target", "target-40m", "target-4m")},
    **{f"encoders.{name}.weights": "null" for name in ("target", "target-40m", "target-4m")},
    "data.image_size": 32,
    "encoders.reference.backbone": "resnet8",
    "encoders.reference.size": 32,
    "encoders.reference.epochs": 1,
    "encoders.reference.batch_size": 16,
    "queries.views": 2,
    **{f"attacks.{number}.bank": 8 for number in (4, 5)},
    **{f"attacks.{number}.grid": "3x1" for number in (6, 7)},
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
    assert groups_by(found) == "choice"


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
            word = np.random.default_rng(seed).choice(["cat", "dog", "ship"])
            members += [
                (f"{key}.jpg", image_bytes(seed, "JPEG", 16)),
                (f"{key}.json", b"{}"),
                (f"{key}.txt", f"a photo of {word} {seed}".encode()),
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
        file = hub.read(address)
    assert file.commit == COMMIT
    found = adopt(f"open_clip:{SMALL}", file.content, channels=3, image_size=224).encoder
    image = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        expected = model.eval().encode_image((image - found.mean) / found.std)
        torch.testing.assert_close(found(image)["projection"], expected, rtol=1e-3, atol=1e-4)
    assert found.text is not None


@pytest.mark.slow
def test_every_attack_ends_in_the_report(tmp_path: Path) -> None:
    data, models, home = tmp_path / "data", tmp_path / "models", tmp_path / "home"
    write_shards(data)
    save_open_clip(models)
    with hub_at({f"datasets/{DATA}": data, MODELS: models}) as endpoint:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HF_"))} | {
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(home),
            "NO_PROXY": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
        }
        scaled = [f"{name}={value}" for name, value in SCALED.items()]
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.cli", "audit", CONFIG, "--out", str(tmp_path / "run"), "--yes", *scaled],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=590,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    asked = {(attack.attack, attack.target, attack.reference) for attack in config().attacks}
    assert {(row["attack"], row["target"], row["reference"]) for row in report["rows"]} == asked
    assert COMMIT in (tmp_path / "run" / "report.json").read_text()
