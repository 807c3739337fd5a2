"""Folders of models: what is packed comes back, weights in parts are joined, and what is missing is named."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from mi_core.adoption.foreign import adopt, rebuild, saved_mark
from mi_core.adoption.model_folder import (
    Repository,
    definition,
    folder_kind,
    packed,
    repository,
    with_definition,
    without_weights,
)
from mi_core.adoption.weight_sources import named_by_files, on_hub, read_local, read_weights_of
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import weights_bytes
from tests.mi_core.adoption.folders import save_open_clip, save_timm, save_transformers
from tests.pipelines.hub import ask_there, hub_at
from tests.raising import refused

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.bias": torch.ones(4)}


def reader(files: dict[str, bytes]) -> Callable[[str], bytes | None]:
    return files.get


def test_a_folder_comes_back_from_one_file() -> None:
    files = {"config.json": b"{}", "tokenizer.json": bytes(range(256))}
    data = packed("transformers", reader({**files, "model.safetensors": safetensors.torch.save(STATE)}))
    assert definition(data) == files
    assert all(torch.equal(value, STATE[name]) for name, value in safetensors.torch.load(data).items())
    bare = without_weights(files)
    assert bare is not None
    assert definition(bare) == files
    assert not safetensors.torch.load(bare)
    assert without_weights({}) is None
    assert with_definition(b"as it is", {}) == b"as it is"


@pytest.mark.parametrize("data", [None, b"", b"PK\x03\x04" + bytes(40), b"\xff" * 40, safetensors.torch.save(STATE)])
def test_other_files_define_nothing(data: bytes | None) -> None:
    assert definition(data) == {}


def test_weights_in_parts_are_joined() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    torch.save({"a.weight": STATE["a.weight"]}, first)
    torch.save({"b.bias": STATE["b.bias"]}, second)
    names = {"a.weight": "part-1.bin", "b.bias": "part-2.bin"}
    files = {
        "config.json": b"{}",
        "pytorch_model.bin.index.json": json.dumps({"weight_map": names}).encode(),
        "part-1.bin": first.getvalue(),
        "part-2.bin": second.getvalue(),
    }
    loaded = safetensors.torch.load(packed("transformers", reader(files)))
    assert sorted(loaded) == sorted(STATE)
    assert all(torch.equal(value, STATE[name]) for name, value in loaded.items())
    del files["part-2.bin"]
    refused(ConfigError, r"no part-2\.bin", packed, "transformers", reader(files))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    refused(ConfigError, r"no config\.json", packed, "timm", reader({}))
    with pytest.raises(ConfigError, match=r"none of open_clip_model\.safetensors, open_clip_pytorch_model\.bin"):
        packed("open_clip", reader({"open_clip_config.json": b"{}"}))
    with pytest.raises(ConfigError, match=f"{tmp_path} is no folder of transformers"):
        read_weights_of("transformers:x", str(tmp_path), read_local)
    refused(ConfigError, "is no file", read_weights_of, "timm:resnet18", str(tmp_path), read_local)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "org/base"}')
    merged = rf"of peft, such as LoRA, to the model org/base, .*pretrained\(BASE, '{tmp_path}'\).merge_and_unload\(\)"
    for load in ("transformers:x", "timm:resnet18"):
        refused(ConfigError, merged, read_weights_of, load, str(tmp_path), read_local)


@pytest.mark.parametrize(
    ("load", "kind", "place"),
    [
        ("transformers:org/name", "transformers", Repository("org/name")),
        ("transformers:org/name@v1", "transformers", Repository("org/name", "v1")),
        ("open_clip:hf-hub:org/name", "open_clip", Repository("org/name")),
        ("timm:hf_hub:org/name", "timm", Repository("org/name")),
        ("timm:hf-hub:org/na.me@abc", "timm", Repository("org/na.me", "abc")),
    ],
)
def test_names_of_repositories(load: str, kind: str, place: Repository) -> None:
    assert folder_kind(load) == kind
    assert repository(load) == place
    assert on_hub(load, None) == load
    assert on_hub(load, "folder") is None


@pytest.mark.parametrize("load", ["transformers", "transformers:name", "open_clip:hf-hub:", "timm:hf_hub:a/b/c"])
def test_what_names_no_repository(load: str) -> None:
    refused(ConfigError, "names no repository of the Hub; write .*:org/name", repository, load)


def test_names_of_architectures_are_no_folders() -> None:
    assert [folder_kind(load) for load in ("open_clip:ViT-B-32", "timm:resnet18", "python:m:f")] == [None] * 3
    assert on_hub("timm:resnet18", "hf://org/name/file") == "hf://org/name/file"


@pytest.mark.parametrize(
    ("save", "kind"),
    [
        (save_open_clip, "open_clip:hf-hub"),
        (save_timm, "timm:hf_hub"),
        (lambda folder: save_transformers("CLIPModel", folder), "transformers"),
    ],
)
def test_files_tell_the_kind_of_a_repository(tmp_path: Path, save: Callable[[Path], object], kind: str) -> None:
    save(tmp_path)
    assert named_by_files("hub:org/name@v1", str(tmp_path), read_local) == f"{kind}:org/name@v1"
    assert named_by_files("hub", str(tmp_path), read_local) == kind
    with hub_at({"org/name": tmp_path}) as endpoint, pytest.MonkeyPatch.context() as patch:
        ask_there(endpoint, patch)
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
        assert named_by_files("hub:org/name", None, read_local) == f"{kind}:org/name"
    if kind == "open_clip:hf-hub":  # as many repositories have both, and open_clip trained the model
        (tmp_path / "config.json").write_text('{"model_type": "clip"}')
        assert named_by_files("hub", str(tmp_path), read_local) == kind


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "adapter_config.json",
            '{"base_model_name_or_path": "org/base"}',
            "hub:a/b is an adapter .* the model org/base",
        ),
        ("config.json", "{}", "hub:a/b is no model of transformers, .* name its architecture"),
    ],
)
def test_a_repository_of_no_kind_is_told(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    refused(ConfigError, message, named_by_files, "hub:a/b", str(tmp_path), read_local)


def test_open_clip_is_that_of_the_package(tmp_path: Path) -> None:
    import open_clip

    model = save_open_clip(tmp_path)
    load, captions = "open_clip:hf-hub:org/name", ["a cat", "two dogs"]
    data = read_weights_of(load, str(tmp_path), read_local).content
    found = adopt(load, data, channels=3, image_size=32)
    assert found.preprocessing.decoding() == {
        "image_size": 32, "interpolation": "bilinear", "fit": "squash", "resize": 32,
    }  # fmt: skip
    images = torch.rand(2, 3, 32, 32)
    assert found.encoder.text is not None
    with torch.inference_mode():
        answers = found.encoder(images)
        torch.testing.assert_close(answers["projection"], model.encode_image((images - 0.5) / 0.25))
        torch.testing.assert_close(
            found.encoder.text(captions), model.encode_text(open_clip.get_tokenizer("ViT-B-32", 16)(captions))
        )
        saved = with_definition(weights_bytes(found.encoder), found.files)
        again = rebuild(load, saved, found.preprocessing, channels=3, image_size=32, mark=found.fingerprint)
        assert saved_mark(load, saved, found.activations) == found.fingerprint
        assert torch.equal(again(images)["projection"], answers["projection"])


def test_timm_is_that_of_the_package(tmp_path: Path) -> None:
    model = save_timm(tmp_path)
    load = "timm:hf_hub:org/name"
    found = adopt(load, read_weights_of(load, str(tmp_path), read_local).content, channels=3, image_size=160)
    assert found.preprocessing.mean == (0.1, 0.2, 0.3)
    side = found.preprocessing.size
    assert side is not None
    images = torch.rand(2, 3, side, side)
    mean, std = (
        torch.tensor(values).reshape(1, 3, 1, 1) for values in (found.preprocessing.mean, found.preprocessing.std)
    )
    with torch.inference_mode():
        torch.testing.assert_close(found.encoder(images)["backbone"], model((images - mean) / std))


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="published as a folder"):
        adopt("transformers:org/name", safetensors.torch.save(STATE), channels=3, image_size=32)
    refused(ConfigError, "colour", adopt, "timm:hf_hub:org/name", None, channels=1, image_size=32, fresh=0)
