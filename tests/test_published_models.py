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
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

from mi_core.adoption.foreign import adopt
from mi_core.adoption.weight_sources import read_hub_file
from mi_core.validity.power import PUBLISHED, detectable_auc, verdict_power
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import LoadedConfig
from pipelines.plan.load import load
from pipelines.plan.rules import ThreatModel
from pipelines.report.forget import forget
from tests.mi_core.adoption.folders import save_open_clip
from tests.pipelines.hub import COMMIT, ask_there, hub_at
from tests.pipelines.tars import file_of, image_bytes, tar_bytes

CONFIG = "configs/papers/clip-mia-bench.yaml"
ROOT = Path(__file__).parents[1]
DATA, MODELS = "CLIP-MIA-Bench/clip-mia-bench-data", "CLIP-MIA-Bench/clip-mia-bench-models"
SMALL = "ViT-S-32-alt"  # an architecture that open_clip knows
PAIRS = 16  # of a shard
SCALED = {
    **{f"data.roles.known-{side}.count": 24 for side in ("member", "nonmember")},
    **{f"encoders.target{size}": f"{{load: 'open_clip:hf-hub:{MODELS}'}}" for size in ("", "-40m", "-4m")},
    "data.image_size": 32,
    "encoders.reference.backbone": "resnet8",
    "encoders.reference.size": 32,
    "encoders.reference.epochs": 1,
    "encoders.reference.batch_size": 16,
    "queries.views": 2,
    **{f"attacks.{number}.grid": "3x1" for number in (3, 4)},
    "resources": "{encoder_actors: 1, actor_cpus: 1, gpus_per_actor: 0}",
}
SALMU = "configs/papers/salmubench.yaml"
OF_SALMU = "cvc-mmu/clip-vit-b-16-salmu"
AUDITED = {"target": f"{OF_SALMU}-compromised", "clean": f"{OF_SALMU}-clean", "after": "org/after"}
PERSONS, EACH = 100, 4  # pairs of each person
NUMBERS = np.random.default_rng(1).integers(100, 999, (PERSONS, 3))
FACTS = [f"{one} {two} has {three}{number}" for one, two, three in NUMBERS for number in range(EACH)]  # nobody's guess
SALMU_SCALED = {f"encoders.{name}": f"{{load: 'open_clip:hf-hub:{hub}'}}" for name, hub in AUDITED.items()} | {
    "attacks.3": "{attack: clip-cosine, target: after, reference: nonmembers}",
    **{f"attacks.{number}.grid": "3x1" for number in (4, 5)},
    **{name: SCALED[name] for name in ("data.image_size", "queries.views", "resources")},
}


def config(name: str = CONFIG) -> RunConfig:
    return load(name, [])


def test_addresses_are_those_of_the_benchmark() -> None:
    """Whole shards 1 to 3 and 43001 to 43003 are judged; what the attacker knows is in others."""
    found = config()
    paths = [path for source in found.data.sources.values() for path in source.patterns]
    assert all(path.startswith(f"hf://datasets/{DATA}/data/") for path in paths)
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


def test_the_clean_model_is_the_reference_of_the_compromised_one() -> None:
    """And the earlier version of it, and asked by the primary attack, so that `forget` can name it."""
    found, threat = config(SALMU), ThreatModel(config(SALMU))
    files = {"target": "open_clip_pytorch_model.bin", "clean": "open_clip_model.safetensors"}
    weights = {name: encoder["weights"] for name, encoder in found.plain()["encoders"].items()}
    assert weights == {name: f"hf://{AUDITED[name]}/{file}" for name, file in files.items()}
    assert threat.references_of(threat.primary) == ("clean",)
    assert threat.primary.model_copy(update={"target": "clean"}) in found.attacks
    assert [attack.before for attack in found.attacks if attack.attack == "update"] == ["clean"]
    assert found.data.group_by is not None


@pytest.mark.parametrize(("name", "side"), [("clip-mia-bench", 27_000), ("dov4mm", 25_000), ("salmubench", 300)])
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
    for place, number in enumerate([*range(1, 7), *range(43001, 43007)]):
        path = folder / "data" / ("member" if place < 6 else "nonmember") / f"{number:08d}.tar"
        members: list[tuple[str, bytes]] = []
        for seed in range(PAIRS * place, PAIRS * (place + 1)):
            key, words = f"{path.stem}{seed:04d}", np.random.default_rng(seed).choice(["cat", "dog", "ship", "red"], 3)
            caption = f"a photo of {' '.join(words)}".encode()
            members += [(f"{key}.jpg", image_bytes(seed, "JPEG", 16)), (f"{key}.json", b"{}"), (f"{key}.txt", caption)]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tar_bytes(members))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path


@pytest.mark.parametrize(("name", "encoder"), [(CONFIG, "target"), (SALMU, "target"), (SALMU, "clean")])
def test_a_checkpoint_of_open_clip_is_read_by_its_address(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, encoder: str
) -> None:
    """As training leaves it, names of several workers beside the optimizer's state; or weights alone."""
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    model = open_clip.create_model(SMALL)  # a smaller architecture
    address = getattr(config(name).encoders[encoder], "weights", "")
    path = home / address.removeprefix("hf://")
    path.parent.mkdir(parents=True)
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(model.state_dict(), path)
    else:
        left = {"epoch": 1, "optimizer": {}, "state_dict": torch.nn.DataParallel(model).state_dict()}
        torch.save(left if path.suffix == ".pt" else model.state_dict(), path)
    repository = "/".join(address.split("/")[2:4])
    with hub_at({repository: home / repository}) as endpoint:
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
        own = {"HF_ENDPOINT": endpoint, "HF_HOME": f"{folder}/home", "NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HF_"))}
        changes = [f"{name}={value}" for name, value in settings.items()]
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.cli", "audit", name, "--out", str(folder / "run"), "--yes", *changes],
            env=kept | own,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=590,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads((folder / "run" / "report.json").read_text()))


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


def portraits(persons: int, each: int, seed: int) -> Any:
    """(persons x each, 32, 32, 3) in 0 to 255: the colours of each person under noise."""
    generator = np.random.default_rng(seed)
    faces = np.kron(generator.integers(0, 256, (persons, 1, 4, 4, 3)), np.ones((1, 1, 8, 8, 1)))
    noisy = faces + generator.normal(0, 20, (persons, each, 32, 32, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8).reshape(-1, 32, 32, 3)


@pytest.fixture
def halves(tmp_path: Path) -> list[list[dict[str, Any]]]:
    """What the code in the config's comment makes of pairs in a file as SALMUBench's: true ones and wrong ones."""
    rows = [
        ({"bytes": file_of(pixels), "path": None}, FACTS[place], f"{place // EACH:08d}", f"{place}.png")
        for place, pixels in enumerate(portraits(PERSONS, EACH, 0))
    ]
    table = pa.table([*zip(*rows, strict=True)], names=["image", "text", "identity_id", "file_name"])
    (tmp_path / "salmu" / "data").mkdir(parents=True)
    pq.write_table(table, tmp_path / "salmu" / "data" / "forget-00000-of-00001.parquet")
    code = (ROOT / SALMU).read_text().split("<<'END'\n")[1].split("#   END")[0].replace("#   ", "")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    return [pq.read_table(tmp_path / "salmu" / f"{name}.parquet").to_pylist() for name in ("true", "wrong")]


def test_only_the_controls_have_captions_of_another_person(halves: list[list[dict[str, Any]]]) -> None:
    """Code that shuffles within a person, shuffles both halves or divides a person would plant another truth."""
    true, wrong = ([(int(row["file_name"][:-4]), FACTS.index(row["text"])) for row in half] for half in halves)
    assert all(image == text for image, text in true)
    assert all(image // EACH != text // EACH for image, text in wrong)
    assert sorted(image for image, _ in wrong) == sorted(text for _, text in wrong)
    assert sorted(image for image, _ in true + wrong) == list(range(PERSONS * EACH))
    assert not {image // EACH for image, _ in true} & {image // EACH for image, _ in wrong}


def train_clip(folder: Path, pixels: Any, captions: list[str], steps: int) -> None:
    """A small CLIP trained on pairs, in a folder as the Hub has it."""
    open_clip = pytest.importorskip("open_clip")
    model = save_open_clip(folder).train()
    images = (torch.tensor(pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    tokens = open_clip.get_tokenizer("ViT-B-16", context_length=16)(captions)
    optimizer, generator = torch.optim.AdamW(model.parameters(), 3e-3), torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randperm(len(tokens), generator=generator)[:64]
        texts = model.encode_text(tokens[chosen], normalize=True)
        logits = 20 * model.encode_image(images[chosen], normalize=True) @ texts.T
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(torch.cat([logits, logits.T]), torch.arange(64).repeat(2)).backward()
        optimizer.step()
    safetensors.torch.save_file(model.state_dict(), folder / "open_clip_model.safetensors")


@pytest.mark.slow
@pytest.mark.usefixtures("halves")
def test_salmubench_tells_the_compromised_model_from_the_clean_one(tmp_path: Path) -> None:
    """The planted truth: one CLIP saw the pairs of persons, one did not, and a third one still knows them."""
    base, words = portraits(300, 1, 1), np.random.default_rng(2).choice(["cat", "dog", "ship", "red", "old"], (300, 3))
    said = [f"a photo of {' '.join(three)}" for three in words]
    train_clip(tmp_path / "clean", base, said, 200)
    for name, steps in (("target", 300), ("after", 250)):
        train_clip(tmp_path / name, np.concatenate([base, portraits(PERSONS, EACH, 0)]), said + FACTS, steps)
    repositories = {hub: tmp_path / name for name, hub in AUDITED.items()}
    files = {f"data.sources.{name}.path": str(tmp_path / "salmu" / f"{name}.parquet") for name in ("true", "wrong")}
    report = audited(tmp_path, SALMU, repositories, SALMU_SCALED | files)
    auc = {row["target"]: row["auc"]["ci95"] for row in report["attacks"] if row["attack"] == "clip-cosine"}
    assert auc["target"][0] > 0.7
    assert auc["clean"][0] < 0.5 < auc["clean"][1]
    before, after, retrained = (f"{tmp_path}/run:{name}" for name in ("target", "after", "clean"))
    assert forget(before, after, retrained)["found"]["verdict"] == "not-forgotten"
