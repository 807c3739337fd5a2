"""Weights and models of the Hub: read through huggingface_hub from a stand-in on loopback, recorded with the commit."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml

from mi_core import audit
from mi_core.adoption.model_folder import definition
from mi_core.adoption.weight_sources import commit_of, read_hub_file, read_hub_model, read_local, read_weights_of
from mi_core.checks import ConfigError
from mi_core.encoders import build_backbone
from pipelines.cli.flags import Flags
from pipelines.config.sections.encoders import LoadedConfig
from pipelines.data.draw.draw import draw
from pipelines.data.scan.scan import scan
from pipelines.encoders.adopt import Adoption, adopt_one, commits_of, origin
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.plan.load import load
from pipelines.run.folder import RunFolder
from tests.endpoints import running
from tests.mi_core.adoption.folders import save_transformers
from tests.pipelines.hub import ask_there
from tests.raising import refused

huggingface_hub = pytest.importorskip("huggingface_hub")
OLD, NEW, LORA = "a" * 40, "b" * 40, "c" * 40


def weights(seed: int) -> bytes:
    torch.manual_seed(seed)
    return safetensors.torch.save(dict(build_backbone("conv4", 1, 8).state_dict()))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The Hub's resolve route for org/name with two commits; yields the paths that were asked for."""
    commits = {"main": NEW, "v1": OLD, "refs%2Fpr%2F1": OLD, OLD: OLD, NEW: NEW, "lora": LORA}
    files = {(OLD, "sub/model.safetensors"): weights(0), (NEW, "sub/model.safetensors"): weights(1)}
    model = tmp_path / "model"
    save_transformers("CLIPModel", model, images="CLIPImageProcessor", words=True)
    files |= {(NEW, path.name): path.read_bytes() for path in model.iterdir()}
    files[LORA, "adapter_config.json"] = b'{"base_model_name_or_path": "org/base"}'
    asked: list[str] = []

    class Resolve(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            parts = self.path.split("/")
            commit = commits.get(parts[4]) if parts[1:4] == ["org", "name", "resolve"] else None
            content = files.get((commit or "", "/".join(parts[5:])))
            if content is None:
                code = "RepoNotFound" if parts[1:3] != ["org", "name"] else "EntryNotFound"
                code = "RevisionNotFound" if code == "EntryNotFound" and commit is None else code
                self.send_response(404)
                self.send_header("X-Error-Code", code)
                if commit is not None:
                    self.send_header("X-Repo-Commit", commit)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("X-Repo-Commit", str(commit))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Resolve)) as server:
        ask_there(f"http://127.0.0.1:{server.server_port}", monkeypatch)
        yield asked


@pytest.mark.parametrize(
    ("revision", "commit", "seed"), [("", NEW, 1), ("@v1", OLD, 0), (f"@{OLD}", OLD, 0), ("@refs%2Fpr%2F1", OLD, 0)]
)
def test_a_revision_decides_the_bytes(served: list[str], revision: str, commit: str, seed: int) -> None:
    file = read_hub_file(f"hf://org/name{revision}/sub/model.safetensors")
    assert file.content == weights(seed)
    assert (file.commit, file.files) == (commit, {"sub/model.safetensors": hashlib.sha256(weights(seed)).hexdigest()})


def test_offline_takes_the_cache_and_asks_nothing(served: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read_hub_file("hf://org/name/sub/model.safetensors")
    before = len(served)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert read_hub_file("hf://org/name/sub/model.safetensors").commit == NEW
    refused(ConfigError, "hf://org/name@v1/sub", read_hub_file, "hf://org/name@v1/sub/model.safetensors")
    assert len(served) == before


@pytest.mark.parametrize(
    "address", ["hf://org/other/f", "hf://org/name/f", "hf://org/name@v9/f", "hf://org/name", "hf://o/n/../x"]
)
def test_no_such_file_is_one_line(served: list[str], address: str) -> None:
    with pytest.raises(ConfigError, match=address) as caught:
        read_hub_file(address)
    assert "\n" not in str(caught.value)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(ConfigError, r"encoder-audit\[hub\]", read_hub_file, "hf://org/name/f")


def test_the_record_says_the_commit_and_the_encoder_is_that_of_the_file(served: list[str], tmp_path: Path) -> None:
    target = LoadedConfig.model_validate(
        {"load": "checkpoint:conv4", "weights": "hf://org/name@v1/sub/model.safetensors", "mean": [0.5], "std": [0.5]}
    )
    data = load("quickstart").data
    folder = RunFolder(str(tmp_path / "run")).seed(0)
    draw(data, scan(data, f"{tmp_path}/scan"), 0, folder.path)
    adopt_one(Adoption("target", target, data, folder, "x", ("target-member",)), None, None)
    record = describe(folder, "target").record
    assert record.source == {"commit": OLD, "files": read_hub_file(target.weights).files}
    assert OLD in origin(target, record)["weights"]
    torch.manual_seed(0)
    referee = build_backbone("conv4", 1, 8).eval()
    images = torch.rand(4, 1, 8, 8)
    with torch.no_grad():
        backbone = describe(folder, "target").load(0)(images)["backbone"]
        assert torch.allclose(backbone, referee((images - 0.5) / 0.5), atol=1e-6)


LOAD = "transformers:org/name"


def test_a_model_is_read_whole_at_one_commit(served: list[str], tmp_path: Path) -> None:
    found = read_hub_model(LOAD)
    assert found.commit == NEW == commit_of(LOAD) == commit_of("hf://org/name/sub/model.safetensors")
    here = read_weights_of(LOAD, str(tmp_path / "model"), read_local)
    assert (found.content, found.files) == (here.content, here.files)
    for name in ("config.json", "model.safetensors"):
        assert found.files[name] == hashlib.sha256((tmp_path / "model" / name).read_bytes()).hexdigest()
    asked = [path.split("/") for path in served if "/resolve/" in path]
    assert {revision for *_, revision, name in asked if name.startswith(("token", "pre", "pro"))} == {NEW}
    bare = read_hub_model(LOAD, weights=False)
    assert definition(bare.content) == definition(found.content)
    assert len(bare.content) < len(found.content)


def test_a_model_that_is_not_there_is_one_line(served: list[str]) -> None:
    refused(ConfigError, r"transformers:org/name@v1: it has no config\.json", read_hub_model, f"{LOAD}@v1")
    refused(ConfigError, "name@lora is an adapter of peft.* to the model org/base", read_hub_model, f"{LOAD}@lora")
    refused(ConfigError, "transformers:org/other", read_hub_model, "transformers:org/other")
    refused(ConfigError, "it has no open_clip_config", read_hub_model, "open_clip:hf-hub:org/name")


def test_a_cached_model_needs_no_hub(served: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_hub_model(LOAD)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert read_hub_model(LOAD) == before
    assert commit_of(LOAD) == NEW
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set; download the model elsewhere"):
        read_hub_model("transformers:org/other")


def test_one_commit_serves_all_seeds(served: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub's main branch moves between two seeds: both adopt what it was at first."""
    file = "hf://org/name/sub/model.safetensors"
    target = LoadedConfig.model_validate({"load": "checkpoint:conv4", "weights": file})
    data, folder = load("quickstart").data, RunFolder("unused")
    jobs = [Adoption("target", target, data, folder.seed(seed), "x", ()) for seed in (0, 1)]
    assert commits_of(jobs) == {file: NEW}
    assert len([path for path in served if "main" in path]) == 1
    assert read_hub_file(file, commit=OLD).content == weights(0)


def test_flags_take_what_its_folder_says(served: list[str]) -> None:
    """One line of shell: size, crop, views and output come from the model itself."""
    made = Flags(encoder=LOAD, candidates="photos", controls="others").settings()
    assert made["data"] | {"roles": 0, "sources": 0} == {
        "image_size": 32,
        "interpolation": "bicubic",
        "fit": "shortest",
        "resize": 36,
        "near_duplicates": {},
        "roles": 0,
        "sources": 0,
    }
    assert made["encoders"]["target"] == {"objective": "clip", "load": LOAD}
    assert made["encoders"]["reference"]["train_on"] == ["candidate", "control"]
    assert made["queries"]["outputs"] == ["projection"]
    with pytest.raises(UserError, match="--encoder transformers:org/other"):
        Flags(encoder="transformers:org/other", candidates="photos", controls="others").settings()


def test_python_audits_a_model_of_the_hub(served: list[str]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (160, 32, 32, 3), dtype=np.uint8)
    found = audit(LOAD, images[:80], images[80:], views=2, quick=True, progress=False)
    assert found.verdict != "leak"
    settings = yaml.safe_load(found.config())
    assert settings["encoders"]["target"]["load"] == LOAD
    assert settings["data"]["resize"] == 36
    assert settings["queries"]["outputs"] == ["projection"]
