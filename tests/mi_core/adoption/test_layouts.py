"""Checkpoints as the original projects write them, built here by hand, give the embeddings of what they hold."""

from __future__ import annotations

import argparse
import collections
import datetime
import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import nn
from torchvision import models

from mi_core.adoption.foreign import Adopted, adopt, rebuild, saved_mark
from mi_core.adoption.layouts import listed, recognise
from mi_core.adoption.layouts.files import read_weights, unwrap
from mi_core.adoption.layouts.heads import head_module
from mi_core.adoption.layouts.looks import look_at
from mi_core.adoption.layouts.table import LAYOUTS
from mi_core.checks import ConfigError
from mi_core.encoders import ENCODERS, build_backbone
from mi_core.encoders.checkpoint import weights_bytes
from tests.mi_core.adoption.references import (
    CASES,
    LAYERS,
    MEAN,
    STD,
    Case,
    State,
    cifar_resnet,
    dino_head,
    images,
    mlp,
    moco_positions,
    saved,
    seeded,
    short,
    transformer,
    without_fc,
)


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backbones of as many layers as the files here have: their names and answers are made in the same way."""
    for name in ("vit-s", "vit-b", "vit-b-gap", "deit-s", "dinov2-s", "dinov2-s-reg"):
        monkeypatch.setitem(ENCODERS, name, replace(row := ENCODERS[name], build=partial(row.build, layers=LAYERS)))


def taken(case: Case) -> Adopted:
    """What is adopted, which is the same when it is built again from what the run folder keeps."""
    load, shape = f"checkpoint:{case.load}", {"channels": 3, "image_size": case.side}
    adopted = adopt(load, saved(case.content), activations=case.activations, **shape)  # type: ignore[arg-type]
    kept = weights_bytes(adopted.encoder)
    again = rebuild(
        load,
        kept,
        adopted.preprocessing,
        mark=adopted.fingerprint,
        activations=adopted.activations,
        **shape,  # type: ignore[arg-type]
    )
    with torch.no_grad():
        first, second = (encoder(images(case.side)) for encoder in (adopted.encoder, again))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[output], second[output]) for output in first)
    assert saved_mark(load, kept, adopted.activations) == adopted.fingerprint
    return adopted


def counted(words: str) -> int:
    """Keys that a sentence of `listed` stands for."""
    many = re.search(r", (\d+) keys \(", words)
    return int(many[1]) if many else len(words.partition(" (")[0].split(", "))


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
@torch.no_grad()
def test_published_checkpoints(build: Callable[[], Case], shallow: None) -> None:
    case = build()
    adopted = taken(case)
    assert adopted.layout == case.layout
    assert adopted.ignored == case.ignored
    normalisation = "normalisation assumed: bilinear, mean 0.485, 0.456, 0.406, std 0.229, 0.224, 0.225"
    assert adopted.assumed == (*case.assumed, normalisation)
    assert adopted.encoder.outputs == ("backbone", *(output for output in case.expected if output != "backbone"))
    normalised = (images(case.side) - MEAN) / STD
    found = adopted.encoder(images(case.side))
    for output, reference in case.expected.items():
        torch.testing.assert_close(found[output], reference(normalised), rtol=1e-5, atol=1e-5)
    _every_key_is_used_or_ignored_or_ends_the_run(case)


def _every_key_is_used_or_ignored_or_ends_the_run(case: Case) -> None:
    state = unwrap(case.content).state
    with torch.device("meta"):
        backbone = build_backbone(case.load, 3, case.side)

    def sorted_out(state: State) -> Any:
        return recognise(state, backbone, name=case.load, activations=case.activations)

    found = sorted_out(state)
    used = sum(int(part.split()[-1]) for part in found.used.split(", "))
    assert used + sum(map(counted, found.ignored)) == len(state)
    with pytest.raises(
        ConfigError, match=r"1 keys are neither the backbone nor a known head, first \['probe.weight'\]"
    ):
        sorted_out(state | {"probe.weight": torch.ones(2, 2)})
    place, _, name = next(iter(found.backbone)).rpartition(".")
    layer = backbone.get_submodule(place)
    setattr(layer, name, nn.Parameter(getattr(layer, name)[..., :-1]))
    with pytest.raises(ConfigError, match=rf"weights do not fit checkpoint:{case.load}; the file looks like a"):
        sorted_out(state)


@torch.no_grad()
def test_decoders_are_left_out(shallow: None) -> None:
    """MAE's decoder and I-JEPA's predictor stand beside the encoder; no audit reads them."""
    network = seeded(lambda: transformer("vit_tiny_patch16_224", img_size=224))
    tail = {"mask_token": torch.randn(1, 1, 512), "decoder_pos_embed": torch.randn(1, 5, 512)}
    tail |= {f"decoder_{name}.weight": torch.ones(512, 512) for name in ("embed", "blocks.0.mlp.fc1", "norm", "pred")}
    for load, words in (
        ("checkpoint:deit-tiny/16", "the decoder, which"),
        ("timm:vit_tiny_patch16_224", "a decoder, which"),
    ):
        adopted = embedded({"model": network.state_dict() | tail}, load, 224)
        assert len(adopted.ignored) == 1 and words in adopted.ignored[0]
    own = below("module.", seeded(lambda: short("vit_base_patch16_gap_224", num_heads=12)).state_dict())
    others = below("module.", {"predictor_embed.weight": torch.ones(384, 768), "mask_token": torch.ones(1, 1, 384)})
    content = {"encoder": own, "predictor": others, "target_encoder": own, "opt": {}, "epoch": 3}
    adopted = embedded(content, "checkpoint:vit-b-gap/16", 32)
    assert adopted.layout == "I-JEPA checkpoint with timm names"
    assert "predictor.*, 2 keys (the predictor, which is no part of the encoder)" in adopted.ignored


@pytest.mark.slow
def test_every_layout_is_shown() -> None:
    shown = {build().layout.partition(" with ")[0] for build in CASES}
    rest = {"state dict of this package", "encoder.* state dict", "f.* state dict", "DINOv2 training checkpoint"}
    rest |= {"DINO state dict of this package", "I-JEPA checkpoint"}
    assert {known.name for known in LAYOUTS} == shown | rest


def shapes_of(build: Callable[[], nn.Module], prefix: str = "") -> State:
    """A state dict of the right shapes that takes no memory."""
    with torch.device("meta"):
        module = build()
    return {f"{prefix}{name}": torch.zeros(()).expand(value.shape) for name, value in module.state_dict().items()}


def bare(name: str, side: int = 32) -> nn.Module:
    with torch.device("meta"):
        return build_backbone(name, 3, side)


def refused(state: State, name: str, message: str, side: int = 32, **settings: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        recognise(state, bare(name, side), name=name, **settings)


def test_a_small_transformer_is_taken_only_where_its_attention_heads_are_known() -> None:
    """Nothing in a state dict tells 6 heads from 12: the two compute something else from equal shapes."""
    plain = shapes_of(transformer)
    refused(plain, "vit-s/16", "write checkpoint:deit-s/16 or checkpoint:moco-vit-s/16")
    assert recognise(plain, bare("deit-s/16"), name="deit-s/16").assumed == ("6 attention heads, as deit-s/16 has",)
    named = recognise(plain, bare("moco-vit-s/16"), name="moco-vit-s/16")
    assert named.assumed == ("12 attention heads, as moco-vit-s/16 has",)
    extracted = plain | {"pos_embed": moco_positions(2, 384)}
    said = "a file with the fixed positions of MoCo v3"
    assert recognise(extracted, bare("vit-s/16"), name="vit-s/16").assumed == (f"12 attention heads, as {said} has",)
    refused(
        extracted, "deit-s/16", f"{said} of width 384 has 12 attention heads, deit-s/16 has 6; write checkpoint:moco"
    )
    moco = shapes_of(transformer, "base_encoder.")
    refused(moco, "deit-s/16", "a MoCo v3 checkpoint of width 384 has 12 attention heads, deit-s/16 has 6")
    dino = shapes_of(transformer, "backbone.") | shapes_of(lambda: dino_head(384), "head.")
    refused(dino, "vit-s/16", "a DINO checkpoint of width 384 has 6 .*, vit-s/16 has 12; write checkpoint:deit-s/16")
    with torch.device("meta"):
        ours = build_backbone("vit-s/16", 3, 32)
    own = {f"backbone.{name}": torch.zeros(()).expand(value.shape) for name, value in ours.state_dict().items()}
    own |= {"mean": torch.zeros(1, 3, 1, 1), "std": torch.ones(1, 3, 1, 1)}
    assert recognise(own, ours, name="vit-s/16").assumed == ("12 attention heads, as vit-s/16 has",)


def test_an_activation_that_no_file_tells_is_asked_for() -> None:
    network = shapes_of(lambda: without_fc(cifar_resnet()), "encoder.")
    head = shapes_of(lambda: mlp([512, 32, 8]), "projector.")
    refused(
        network | head,
        "resnet18",
        r"heads.projection.activation is missing: layers 1 of the projection have no weights, and the file "
        r"\(encoder.\* state dict\) does not tell what they do; give one of relu, gelu",
    )
    given = recognise(network | head, bare("resnet18"), name="resnet18", activations={"projection": "silu"})
    assert given.activations == {"projection": "silu"}
    assert given.assumed[0] == "activation silu in the projection, as the config says"
    linear = shapes_of(lambda: nn.Linear(512, 8), "projector.")
    assert recognise(network | linear, bare("resnet18"), name="resnet18").activations == {}
    refused(network | linear, "resnet18", "no place for one", activations={"projection": "relu"})
    refused(network, "resnet18", "the file has the heads: none", activations={"projection": "relu"})
    first = {"projector.1.weight": torch.ones(8, 512)}  # what stands before it is not known even of known code
    refused(network | first, "resnet18", "layers 0 of the projection have no weights")
    narrow = shapes_of(lambda: nn.Linear(256, 8), "projector.")
    refused(network | narrow, "resnet18", "the projection reads 256 numbers, but the backbone gives 512")
    beside = network | linear | shapes_of(lambda: nn.Linear(512, 10), "fc.")
    ignored = recognise(beside, bare("resnet18"), name="resnet18").ignored
    assert ignored == ("fc.*, 2 keys (a classifier beside the projection)",)


def test_heads() -> None:
    weights = {"0.weight": torch.ones(3, 2), "3.weight": torch.ones(1, 3), "4.running_mean": torch.zeros(1)}
    kinds = [type(layer).__name__ for layer in head_module(weights, "gelu")]
    assert kinds == ["Linear", "GELU", "Identity", "Linear", "BatchNorm1d"]
    with pytest.raises(ConfigError, match="neither linear, batch norm nor prototypes"):
        head_module({"0.weight": torch.ones(1, 1, 1, 1)})
    with pytest.raises(ConfigError, match="activation = 'sine', allowed: elu"):
        head_module(weights, "sine")


def test_layers_of_a_head_that_have_one_number_are_refused() -> None:
    blocks = {f"layer{block}": nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128)) for block in (1, 2, 3)}
    state = shapes_of(lambda: build_backbone("resnet8", 3, 32), "backbone.")
    state |= {f"projector.{name}": value for name, value in nn.ModuleDict(blocks).state_dict().items()}
    message = r"layer1\.0\.weight and layer2\.0\.weight have one number; save the file with its layers numbered through"
    refused(state, "resnet8", message)


def test_what_stands_beside_the_weights_is_said() -> None:
    tensor = torch.ones(2, 2)
    found = unwrap(
        {"state_dict": {"a.weight": tensor}, "best_acc1": torch.tensor(76.0), "state_dict_ema": {"a": tensor}}
    )
    assert list(found.state) == ["a.weight"]
    assert found.ignored == ("best_acc1 (no weights)", "state_dict_ema (averaged weights; weights_key chooses them)")
    assert sorted(unwrap({"model": {"module.a": tensor}, "head": {"0.weight": tensor}}).state) == ["a", "head.0.weight"]
    assert listed({f"part{number}.a.total_ops": "counters" for number in range(9)}) == ["total_ops, 9 keys (counters)"]
    for content, message in (
        ([1, 2], "the file holds a list"),
        ({"epoch": 3}, r"holds no tensor; its keys are \['epoch'\]"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_weights(saved(content))


class Parts(nn.Module):
    """A module with all that a state dict has and has not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Identity())
        self.shared = self.layer[0]
        self.token = nn.Parameter(torch.randn(2, 3).T)
        self.half = nn.Linear(2, 2).to(torch.bfloat16)
        self.absent = None
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("hidden", torch.ones(2), persistent=False)
        self.me = [self]


BESIDE: dict[str, Any] = {
    "a number of numpy": np.float64(0.5),
    "an array": np.arange(3),
    "random state": np.random.get_state(),  # noqa: NPY002 - as trainings keep it
    "a generator": np.random.default_rng(0),
    "arguments": argparse.Namespace(lr=0.1),
    "a path": {"out": Path("/tmp")},
    "a date": datetime.datetime(2026, 1, 1),
    "a dictionary with a default": collections.defaultdict(list, {"a": [1]}),
    "a set": {1, 2},
    "a device and a dtype": [torch.device("cpu"), torch.float16],
    "a class": nn.Linear,
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", BESIDE)
def test_objects_beside_the_weights_do_not_hinder_them(name: str, zipped: bool) -> None:
    state = Parts().state_dict()
    data = saved({name: BESIDE[name], "state_dict": state, "epoch": 3}, _use_new_zipfile_serialization=zipped)
    found = read_weights(data)
    assert found.state.keys() == state.keys()
    assert all(
        torch.equal(found.state[key], value) and found.state[key].dtype == value.dtype for key, value in state.items()
    )
    assert found.ignored == (f"{name}, epoch (no weights)",)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_whole_module_is_read_as_its_state_dict(zipped: bool, wrapped: bool) -> None:
    module = Parts()
    data = saved(
        {"model": nn.DataParallel(module), "epoch": 3} if wrapped else module, _use_new_zipfile_serialization=zipped
    )
    found, state = read_weights(data).state, module.state_dict()
    assert list(found) == list(state)
    assert all(torch.equal(found[key], value) for key, value in state.items())


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_of_a_file_is_run(zipped: bool) -> None:
    """Neither a function, nor one reached by another, nor a class, nor an attribute of what builds tensors."""

    class Trap:
        def __init__(self, *call: Any) -> None:
            self.call = call

        def __reduce__(self) -> tuple[Any, ...]:
            return self.call

    for call in (
        (exec, ("raise SystemExit('it ran')",)),
        (getattr, (Path, "cwd")),
        (eval, ("__import__('os')._exit(3)",)),
        (Path, ("/",), {"touched": True}),
        (torch._utils._rebuild_tensor_v2, (Trap(exec, ("raise SystemExit('it ran')",)), 0, (1,), (1,))),
    ):
        data = saved({"model": {"a": torch.ones(1)}, "args": Trap(*call)}, _use_new_zipfile_serialization=zipped)
        if call[0] is torch._utils._rebuild_tensor_v2:
            with pytest.raises(ConfigError, match="the file is a"):
                read_weights(data)
        else:
            assert list(read_weights(data).state) == ["a"]


def header(size: int) -> bytes:
    text = json.dumps({"a": {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}}).encode()
    return len(text).to_bytes(8, "little") + text


def archive(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr(name, b"0")
    return buffer.getvalue()


TENSORS = {"a": torch.ones(5000)}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"the file is empty \(0 bytes\)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "Git-LFS pointer.* git lfs pull"),
        (b"<!DOCTYPE html>\n<html>Sign in</html>", "a web page or an answer in XML"),
        (b"\n  <html></html>", "a web page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an answer in XML"),
        (b'{"metadata": {}, "weight_map": {}}', "the index of a model in several files"),
        (b'{"error": "gated"}', "JSON; give the file of weights"),
        (saved(TENSORS)[:9000], "a PyTorch or ZIP file that is cut short after 9,000 bytes"),
        (saved(TENSORS, _use_new_zipfile_serialization=False)[:9000], "a pickle that is damaged, cut short"),
        (pickle.dumps(TENSORS["a"].numpy()), "a pickle that is damaged, cut short or not of PyTorch"),
        (header(9)[:20], "a safetensors file that is cut short, 20 of"),
        (header(9) + bytes(8), "a safetensors file that is cut short"),
        (b"\x1f\x8b\x08rest", r"compressed \(gzip\); unpack it"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (archive("arrays/a.npy"), "a NumPy archive"),
        (archive("readme.txt"), "a ZIP archive of readme.txt; unpack it"),
        (b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:\x90", "an ONNX file; write load: onnx"),
        (save({"base_model.model.q.lora_A.weight": torch.ones(1)}), "a LoRA adapter, a change of another model"),
        (b"\x1c\x00\x00\x00TFL3\x14\x00", "a TFLite file; give the PyTorch weights .* load: python:"),
        (b"nothing", "neither safetensors nor a PyTorch file"),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_weights_is_named_for_what_it_is(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_weights(data)
    assert "weights_only=False" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_torchscript_file_is_told() -> None:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), buffer)
    with pytest.raises(ConfigError, match="the weights are a TorchScript file, which is code"):
        read_weights(buffer.getvalue())


def test_what_a_file_looks_like_and_the_line_that_loads_it() -> None:
    shown = {
        "checkpoint:resnet50-imagenet": shapes_of(lambda: without_fc(models.resnet50())),
        "checkpoint:resnet18": shapes_of(cifar_resnet, "encoder_q."),
        "checkpoint:vit-s/16": shapes_of(transformer, "base_encoder."),
        "checkpoint:vit-b/16": shapes_of(lambda: transformer("vit_base_patch16_224")),
        "checkpoint:vit-l/16": shapes_of(lambda: transformer("vit_large_patch16_224")),
        "checkpoint:dinov2-b/14": shapes_of(lambda: transformer("vit_base_patch14_dinov2", img_size=28)),
        "checkpoint:deit-s/16 (DeiT, timm, DINO: 6 attention heads) or checkpoint:moco-vit-s/16 (12)": shapes_of(
            transformer
        ),
    }
    for load, state in shown.items():
        assert look_at(state).load == load
        assert look_at(state).sentence().endswith(f"; write load: {load}")
    assert look_at(shapes_of(models.resnet34)).words == "a plain state dict of a ResNet-34 with the ImageNet stem"
    wide = look_at(shapes_of(models.wide_resnet50_2))
    assert (wide.load, wide.words.endswith("of another width")) == (None, True)
    assert look_at(shown["checkpoint:vit-s/16"]).side == 32
    with pytest.raises(
        ConfigError, match=r"asked for torchvision:resnet18; the file looks like .*load: checkpoint:resnet18"
    ):
        state = without_fc(models.resnet18()).state_dict()
        adopt("torchvision:resnet18", saved(state), channels=3, image_size=32)
    refused(
        shapes_of(models.resnet18),
        "resnet18",
        r"looks like a plain state dict of a ResNet-18 with the ImageNet stem; write load: checkpoint:resnet18-imagenet"
        r"; missing \[\] \(0\), unexpected \[\] \(0\), wrong shape "
        r"\['conv1.weight \(64, 3, 7, 7\) instead of \(64, 3, 3, 3\)'\]",
    )


def test_images_reach_a_transformer_at_the_side_of_its_positions() -> None:
    data = saved(seeded(lambda: transformer("vit_tiny_patch16_224")).state_dict())
    adopted = adopt("checkpoint:deit-tiny/16", data, channels=3, image_size=64)
    assert adopted.preprocessing.size == 32
    again = rebuild(
        "checkpoint:deit-tiny/16",
        weights_bytes(adopted.encoder),
        adopted.preprocessing,
        channels=3,
        image_size=64,
        mark=adopted.fingerprint,
    )
    assert again(images(64))["backbone"].shape == (3, 192)
    with pytest.raises(ConfigError, match="size = 48, but the positions in the file are for images of 32 px"):
        adopt("checkpoint:deit-tiny/16", data, channels=3, image_size=64, preprocessing={"size": 48})


def test_own_checkpoints_bring_their_normalisation() -> None:
    shape: Any = {"channels": 3, "image_size": 32}
    ours = adopt("checkpoint:resnet8", None, fresh=0, preprocessing={"mean": (0.1,), "std": (0.3,)}, **shape)
    again = adopt("checkpoint:resnet8", weights_bytes(ours.encoder), **shape)
    assert (again.layout, again.fingerprint) == ("state dict of this package", ours.fingerprint)
    assert again.preprocessing.mean == pytest.approx((0.1, 0.1, 0.1))
    assert torch.equal(again.encoder(images())["backbone"], ours.encoder(images())["backbone"])


def test_fingerprints_tell_networks_apart_that_have_equal_weights() -> None:
    shape: Any = {"channels": 3, "image_size": 32}
    state = {f"encoder.{name}": value for name, value in build_backbone("resnet8", 3, 32).state_dict().items()}
    data = save(state | {f"projector.{name}": value for name, value in mlp([128, 8, 4]).state_dict().items()})
    prints = [
        adopt("checkpoint:resnet8", data, activations={"projection": activation}, **shape).fingerprint
        for activation in ("relu", "relu", "gelu")
    ]
    assert prints[0] == prints[1] != prints[2]
    fresh = [adopt("checkpoint:conv4", None, fresh=seed, **shape).fingerprint for seed in (0, 0, 1)]
    assert fresh[0] == fresh[1] != fresh[2]


def test_mistakes_are_told() -> None:
    for load, message in (
        ("keras:x", "load = 'keras', allowed: checkpoint, onnx, open_clip"),
        ("checkpoint", "write checkpoint:<name of the architecture>"),
    ):
        with pytest.raises(ConfigError, match=message):
            adopt(load, None, channels=3, image_size=32, fresh=0)
    with pytest.raises(ConfigError, match="defines its heads itself; leave heads out"):
        adopt("torchvision:resnet18", b"", channels=3, image_size=32, activations={"projection": "relu"})


def embedded(state: object, load: str = "checkpoint:dinov2-s/14", side: int = 28, **settings: Any) -> Adopted:
    return adopt(load, saved(state), channels=3, image_size=side, **settings)


def dinov2_state() -> State:
    state = seeded(lambda: transformer("vit_small_patch14_dinov2", img_size=28)).state_dict()
    return {**state, "mask_token": torch.zeros(1, 384)}


def below(start: str, state: State) -> State:
    return {f"{start}{key}": value for key, value in state.items()}


def chunked(state: State) -> State:
    def grouped(found: re.Match[str]) -> str:
        return f"blocks.{int(found[1]) // 3}.{found[1]}"

    return {re.sub(r"blocks\.(\d+)", grouped, key): one for key, one in state.items()}


@cache
def dinov2_embeddings() -> torch.Tensor:
    return embedded(STATE).encoder(images(28))["backbone"]


STATE = dinov2_state()
TEACHER = below("backbone.", STATE)
STUDENT = shapes_of(lambda: transformer("vit_small_patch14_dinov2", img_size=28), "backbone.")
HEADS = below("dino_head.mlp.", mlp([384, 16, 8]).state_dict()) | {
    "dino_head.last_layer.weight_v": torch.ones(4, 8),
    "ibot_head.mlp.0.weight": torch.ones(8, 384),
}


@torch.no_grad()
@pytest.mark.parametrize(
    ("content", "outputs"),
    [
        ({"teacher": {**TEACHER, **HEADS}}, 2),
        ({"teacher": TEACHER, "student": STUDENT}, 1),
        (below("backbone.", chunked(STATE)), 1),
        (chunked(STATE), 1),
        ({"model": below("teacher.", TEACHER | HEADS) | below("student.", STUDENT | HEADS), "iteration": 9}, 2),
        ({"model": below("student.", STUDENT) | below("teacher.", below("backbone.", chunked(STATE)))}, 1),
        (below("student.", STUDENT) | below("teacher.", TEACHER) | {"dino_loss.center": torch.ones(1, 8)}, 1),
    ],
    ids=["heads", "student beside", "chunks of a backbone", "chunks", "rank", "rank in chunks", "flat"],
)
def test_what_a_training_of_dinov2_writes(content: Any, outputs: int) -> None:
    """Teachers with heads, blocks in chunks, and files of a rank, whose student is never taken."""
    found = embedded(content)
    torch.testing.assert_close(found.encoder(images(28))["backbone"], dinov2_embeddings())
    assert found.assumed[0] == f"6 attention heads, as a {found.layout.removesuffix(' with timm names')} has"
    assert "(stands for hidden patches in training)" in " ".join(found.ignored)
    assert found.encoder.outputs == ("backbone", "projection")[:outputs]


def test_a_normalisation_that_no_file_tells_is_named() -> None:
    """timm's own transformers have a mean of .5, DeiT's those of ImageNet: their names and shapes are the same."""
    import timm

    small = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=0, img_size=32).state_dict()
    found = embedded(small, "checkpoint:deit-tiny/16", 32)
    assert found.assumed[-1].startswith("normalisation assumed: bilinear, mean 0.485, ")
    given = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    told = adopt("checkpoint:deit-tiny/16", saved(small), channels=3, image_size=32, preprocessing=given)
    assert not any("normalisation" in words for words in told.assumed)


SHUFFLENET, RESNET = "torchvision:shufflenet_v2_x0_5", "checkpoint:resnet18-imagenet"


@cache
def known(load: str, seed: int = 1) -> tuple[State, torch.Tensor]:
    """A state dict that this name loads, and the embeddings of the network."""
    state = seeded(models.shufflenet_v2_x0_5 if load == SHUFFLENET else models.resnet18, seed).state_dict()
    state = {key: one for key, one in state.items() if load == SHUFFLENET or not key.startswith("fc.")}
    with torch.no_grad():
        return state, embedded(state, load, 32).encoder(images())["backbone"]


def gives(content: Any, load: str, expected: torch.Tensor, **settings: Any) -> Adopted:
    found = embedded(content, load, 32, **settings)
    torch.testing.assert_close(found.encoder(images())["backbone"], expected)
    return found


@torch.no_grad()
@pytest.mark.parametrize(
    ("start", "load"),
    [
        ("net.encoder.", SHUFFLENET),
        ("_forward_module.model.", RESNET),
        ("encoder.", SHUFFLENET),
        ("encoder.", RESNET),
        ("embedding_model.wrapped_model._model.", SHUFFLENET),
    ],
)
def test_a_prefix_is_taken_off_where_that_makes_all_names_fit(start: str, load: str) -> None:
    state, expected = known(load)
    gives({"state_dict": below(start, state), "epoch": 3}, load, expected)
    content = below(start, state) | {"probe.weight": torch.ones(2, 2)}
    if start != "encoder." or load == SHUFFLENET:  # a layout of its own knows no probe
        assert "probe.*" in " ".join(embedded(content, load, 32).ignored)


@torch.no_grad()
@pytest.mark.parametrize("wrapper", ["_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"])
@pytest.mark.parametrize("load", [RESNET, SHUFFLENET])
def test_wrappers_within_names_are_taken_off(wrapper: str, load: str) -> None:
    """As layers that FSDP, activation checkpointing and torch.compile wrap one by one have them."""
    state, expected = known(load)
    wrapped = {re.sub(r"^(layer1|stage2)\.", rf"\1.{wrapper}.", key): one for key, one in state.items()}
    both = {re.sub(r"\.(conv|branch)", rf".{wrapper}.\1", f"_orig_mod.{key}"): one for key, one in wrapped.items()}
    assert len(wrapped.keys() & state.keys()) < len(state)
    for content in (wrapped, both, {"state_dict": wrapped}):
        gives(content, load, expected)


@torch.no_grad()
@pytest.mark.parametrize("load", [RESNET, SHUFFLENET])
def test_two_networks_below_prefixes_are_told_apart_by_a_key(load: str) -> None:
    state, expected = known(load)
    both = below("a.", {key: torch.ones(()).expand(one.shape) for key, one in state.items()}) | below("b.", state)
    for content in (both, {"state_dict": both, "epoch": 3}):
        with pytest.raises(ConfigError, match=r"the network 2 times, under a\., b\.; .* weights_key = 'a'"):
            embedded(content, load, 32)
        gives(content, load, expected, weights_key="b")


@torch.no_grad()
def test_equal_copies_in_a_checkpoint_of_lightly_train_are_one_network() -> None:
    """It keeps the network under the names of its training, and again as three modules that share the weights."""
    network = seeded(models.shufflenet_v2_x0_5)
    shared = {name: nn.ModuleDict({name: network}) for name in ("wrapped_model", "embedding_model")}
    trained = below("embedding_model.wrapped_model._model.", network.state_dict())
    trained |= below("projection_head.", mlp([8, 4]).state_dict())
    content = {"state_dict": trained, "lightly_train": {"models": {"model": network, **shared}}, "epoch": 3}
    assert "projection_head.*" in " ".join(gives(content, SHUFFLENET, known(SHUFFLENET)[1]).ignored)


@torch.no_grad()
def test_the_entry_of_a_file_is_chosen() -> None:
    (raw, first), (average, second) = (known(SHUFFLENET, seed) for seed in (1, 2))
    content = {"state_dict": raw, "state_dict_ema": below("module.", average), "extra": {"model_ema": average}}
    for key, wanted in (
        (None, first),
        ("state_dict", first),
        ("state_dict_ema", second),
        ("state_dict_ema.module", second),
        ("extra.model_ema", second),
    ):
        gives(content, SHUFFLENET, wanted, weights_key=key)
    for key in ("ema", "state_dict.ema"):
        with pytest.raises(ConfigError, match=f"weights_key = '(ema|{key})', but the file has "):
            embedded(content, SHUFFLENET, 32, weights_key=key)


@torch.no_grad()
def test_the_target_encoder_of_i_jepa_is_taken() -> None:
    def build() -> Any:
        return transformer(
            "vit_base_patch16_gap_224", class_token=False, global_pool="avg", img_size=224, fc_norm=False
        )

    own, other = (below("module.", seeded(build, seed).state_dict()) for seed in (1, 2))
    content = {"encoder": other, "predictor": {"module.a": torch.ones(1)}, "target_encoder": own, "opt": {}, "epoch": 3}
    state = unwrap(content).state
    assert state.pop("predictor.a") == 1
    assert all(torch.equal(one, own[f"module.{key}"]) for key, one in state.items())
    assert (
        "encoder (the network that trains; I-JEPA evaluates its average, the target encoder)" in unwrap(content).ignored
    )
    assert "without a class token, as I-JEPA's" in look_at(state).words


def test_dinov3_with_metas_names_is_named() -> None:
    state = shapes_of(lambda: transformer("vit_base_patch14_dinov2", img_size=28))
    look = look_at(state | {"rope_embed.periods": torch.ones(16), "storage_tokens": torch.ones(1, 4, 768)})
    assert look.load == "timm:vit_base_patch16_dinov3" and "DINOv3 with Meta's names (12 layers" in look.words


@torch.no_grad()
@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "vit_small_patch16_dinov3_qkvb"])
def test_dinov3_with_metas_names_is_read_as_timm_reads_it(name: str) -> None:
    timm = pytest.importorskip("timm")
    network = timm.create_model(name, num_classes=0).eval()
    torch.manual_seed(0)
    theirs: State = {"rope_embed.periods": torch.ones(16), "mask_token": torch.zeros(1, 384)}
    for key, value in network.state_dict().items():
        value.copy_(torch.randn_like(value) * 0.05)
        if not key.endswith(("q_bias", "k_bias", "v_bias")):
            named = re.sub(r"gamma_([12])$", r"ls\1.gamma", key).replace("reg_token", "storage_tokens")
            theirs[named] = value.clone()
    for block in range(12):
        zeros, own = torch.zeros(384), network.state_dict()
        parts = [zeros if part == "k" else own.get(f"blocks.{block}.attn.{part}_bias", zeros) for part in "qkv"]
        theirs[f"blocks.{block}.attn.qkv.bias"] = torch.cat(parts)
        theirs[f"blocks.{block}.attn.qkv.bias_mask"] = torch.ones(3 * 384)
    found = embedded(theirs, f"timm:{name}", 256)
    pixels = images(256)[:1]
    normalised = (pixels - found.encoder.mean) / found.encoder.std
    torch.testing.assert_close(found.encoder(pixels)["backbone"], network(normalised), rtol=1e-4, atol=1e-4)
    if not name.endswith("qkvb"):
        theirs["blocks.3.attn.qkv.bias"] += 1
        with pytest.raises(ConfigError, match=rf"{name} has no such biases; write load: timm:{name}_qkvb"):
            embedded(theirs, f"timm:{name}", 256)
