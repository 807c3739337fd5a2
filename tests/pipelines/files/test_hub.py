"""Weights of the Hub: read through huggingface_hub from a stand-in on loopback, and recorded with their commit."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from mi_core.encoders import build_backbone
from pipelines.config.encoders import LoadedConfig
from pipelines.config.load import load
from pipelines.encoders.adopt import Adoption, adopt_untried, origin
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.files import hub
from pipelines.run.folder import RunFolder

huggingface_hub = pytest.importorskip("huggingface_hub")
OLD, NEW = "a" * 40, "b" * 40


def weights(seed: int) -> bytes:
    torch.manual_seed(seed)
    return safetensors.torch.save(dict(build_backbone("conv4", 1, 8).state_dict()))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The Hub's resolve route for org/name with two commits; yields the paths that were asked for."""
    commits = {"main": NEW, "v1": OLD, "refs%2Fpr%2F1": OLD, OLD: OLD, NEW: NEW}
    files = {OLD: weights(0), NEW: weights(1)}
    asked: list[str] = []

    class Resolve(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            parts = self.path.split("/")
            commit = commits.get(parts[4]) if parts[1:4] == ["org", "name", "resolve"] else None
            if commit is None or parts[5:] != ["sub", "model.safetensors"]:
                code = "RepoNotFound" if parts[1:3] != ["org", "name"] else "EntryNotFound"
                code = "RevisionNotFound" if code == "EntryNotFound" and commit is None else code
                self.send_response(404)
                self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha256(files[commit]).hexdigest()}"')
            self.send_header("Content-Length", str(len(files[commit])))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(files[commit])

        do_GET = do_HEAD

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Resolve)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("revision", "commit", "seed"), [("", NEW, 1), ("@v1", OLD, 0), (f"@{OLD}", OLD, 0), ("@refs%2Fpr%2F1", OLD, 0)]
)
def test_a_revision_decides_the_bytes(served: list[str], revision: str, commit: str, seed: int) -> None:
    file = hub.read(f"hf://org/name{revision}/sub/model.safetensors")
    assert file.content == weights(seed)
    assert (file.commit, file.sha256) == (commit, hashlib.sha256(weights(seed)).hexdigest())


def test_offline_takes_the_cache_and_asks_nothing(served: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.read("hf://org/name/sub/model.safetensors")
    before = len(served)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert hub.read("hf://org/name/sub/model.safetensors").commit == NEW
    with pytest.raises(UserError, match="hf://org/name@v1/sub"):
        hub.read("hf://org/name@v1/sub/model.safetensors")
    assert len(served) == before


@pytest.mark.parametrize(
    "address", ["hf://org/other/f", "hf://org/name/f", "hf://org/name@v9/f", "hf://org/name", "hf://o/n/../x"]
)
def test_no_such_file_is_one_line(served: list[str], address: str) -> None:
    with pytest.raises(UserError, match=address) as caught:
        hub.read(address)
    assert "\n" not in str(caught.value)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"encoder-audit\[hub\]"):
        hub.read("hf://org/name/f")


def test_the_record_says_the_commit_and_the_encoder_is_that_of_the_file(
    served: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = LoadedConfig.model_validate(
        {
            "load": "checkpoint:conv4",
            "weights": "hf://org/name@v1/sub/model.safetensors",
            "mean": [0.5],
            "std": [0.5],
        }
    )
    data = load("quickstart").data
    folder = RunFolder(str(tmp_path / "run")).seed(0)
    adopt_untried(Adoption("target", target, data, folder, "x", ("target-member",)), target, 8)
    record = describe(folder, "target").record
    assert record.source == {"commit": OLD, "sha256": hashlib.sha256(weights(0)).hexdigest()}
    monkeypatch.setattr("pipelines.encoders.adopt.consistency_in_words", str)  # this encoder was not tried out
    assert OLD in origin(target, record)["weights"]
    torch.manual_seed(0)
    referee = build_backbone("conv4", 1, 8).eval()
    images = torch.rand(4, 1, 8, 8)
    with torch.no_grad():
        backbone = describe(folder, "target").load(0)(images)["backbone"]
        assert torch.allclose(backbone, referee((images - 0.5) / 0.5), atol=1e-6)
