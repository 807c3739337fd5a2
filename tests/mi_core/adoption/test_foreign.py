"""Models of torchvision, timm and open_clip from their weight files, TorchScript, ONNX, Python; text towers."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torchvision import models, transforms

from mi_core.adoption.builders import USUAL_SIDE, usual_settings
from mi_core.adoption.foreign import Adopted, adopt, rebuild, saved_mark, untrained
from mi_core.adoption.weight_sources import read_local
from mi_core.augmentations import AUGMENTATIONS
from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import fingerprint, load_weights, weights_bytes
from mi_core.objectives import OBJECTIVES
from mi_core.objectives.clip import CLIPParameters
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, PretrainingParameters, audited_encoder
from tests.mi_core.adoption.references import saved
from tests.raising import refused

SHAPE: Any = {"channels": 3, "image_size": 32}


def images(size: int) -> torch.Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def normalised(pixels: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    result: torch.Tensor = transforms.functional.normalize(pixels, list(mean), list(std))
    return result


def rebuilt(adopted: Adopted, load: str) -> None:
    again = rebuild(load, weights_bytes(adopted.encoder), adopted.preprocessing, **SHAPE, mark=adopted.fingerprint)
    assert fingerprint(again) == adopted.fingerprint
    assert (again.text is None) == (adopted.encoder.text is None)
    kept = weights_bytes(adopted.encoder)
    assert saved_mark(load, kept, adopted.activations) == adopted.fingerprint
    changed = kept[:-1] + bytes([kept[-1] ^ 1])
    assert saved_mark(load, changed, adopted.activations) != adopted.fingerprint


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_torchvision_weights(name: str) -> None:
    torch.manual_seed(0)
    network = models.get_model(name, weights=None).eval()
    load = f"torchvision:{name}"
    adopted = adopt(load, saved(network.state_dict()), **SHAPE)
    assert adopted.preprocessing.size == 224
    pixels = images(224)
    expected = normalised(pixels, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    with torch.no_grad():
        found = adopted.encoder(pixels)
        torch.testing.assert_close(found["logits"], network(expected))
    assert found["backbone"].shape == (2, {"resnet18": 512, "mobilenet_v2": 1280}[name])
    rebuilt(adopted, load)


def test_fresh_weights_depend_on_the_seed_alone() -> None:
    """The classifier, whose size the file tells, is drawn from the seed too."""
    data = saved(models.shufflenet_v2_x0_5(weights=None, num_classes=7).state_dict())
    marks = [adopt("torchvision:shufflenet_v2_x0_5", data, **SHAPE, fresh=seed).fingerprint for seed in (3, 3, 4)]
    assert marks[0] == marks[1] != marks[2]


def test_images_of_another_size_reach_the_encoder_at_its_own() -> None:
    adopted = adopt("torchvision:resnet18", None, **SHAPE, fresh=0)
    small = images(32)
    large = nn.functional.interpolate(small, (224, 224), mode="bilinear", antialias=True).clamp(0, 1)
    with torch.no_grad():
        torch.testing.assert_close(adopted.encoder(small)["backbone"], adopted.encoder(large)["backbone"])
    assert adopted.preprocessing.words() == (
        "224 px, bilinear, shorter side to 256, centre crop, mean 0.485, 0.456, 0.406, std 0.229, 0.224, 0.225"
    )


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
def test_timm_weights(name: str) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=1000).eval()
    load = f"timm:{name}"
    adopted = adopt(load, saved(network.state_dict()), **SHAPE)
    known = timm.data.resolve_model_data_config(network)
    assert adopted.preprocessing.mean == known["mean"]
    pixels = images(known["input_size"][1])
    with torch.no_grad():
        features = network.forward_head(
            network.forward_features(normalised(pixels, known["mean"], known["std"])), pre_logits=True
        )
        torch.testing.assert_close(adopted.encoder(pixels)["backbone"], features)
    rebuilt(adopted, load)
    with pytest.raises(ConfigError, match="timm has no model 'resnet19'"):
        adopt("timm:resnet19", None, **SHAPE, fresh=0)


def test_open_clip_weights() -> None:
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    model = open_clip.create_model("ViT-S-32-alt", pretrained=None).eval()
    load = "open_clip:ViT-S-32-alt"
    adopted = adopt(load, saved(model.state_dict()), **SHAPE)
    assert (adopted.preprocessing.size, adopted.preprocessing.interpolation) == (224, "bicubic")
    pixels = images(224)
    with torch.no_grad():
        found = adopted.encoder(pixels)
        expected = model.encode_image(normalised(pixels, adopted.preprocessing.mean, adopted.preprocessing.std))
        torch.testing.assert_close(found["projection"], expected, rtol=1e-4, atol=1e-5)
        captions = ["a photo of a cat", "dogs"]
        words = model.encode_text(open_clip.get_tokenizer("ViT-S-32-alt")(captions))
        torch.testing.assert_close(adopted.encoder.text(captions), words, rtol=1e-4, atol=1e-5)
    assert found["backbone"].shape == (2, 384)
    rebuilt(adopted, load)
    images_alone = {key: value for key, value in model.state_dict().items() if key.startswith("visual.")}
    assert adopt(load, saved(images_alone), **SHAPE).encoder.text is None
    with pytest.raises(ConfigError, match="open_clip has no model 'ViT-Z'"):
        adopt("open_clip:ViT-Z", None, **SHAPE, fresh=0)
    with pytest.raises(ConfigError, match=r"asked for open_clip:ViT-S-32-alt; the file looks like .* of a ResNet-18"):
        adopt(load, saved(models.resnet18().state_dict()), **SHAPE)


def test_a_network_without_a_linear_classifier_has_its_pooled_features() -> None:
    torch.manual_seed(0)
    network = models.squeezenet1_0(weights=None).eval()
    load = "torchvision:squeezenet1_0"
    adopted = adopt(load, saved(network.state_dict()), **SHAPE)
    assert adopted.layout == "torchvision state dict; no logits: its classifier convolves"
    pixels = images(224)
    with torch.no_grad():
        expected = network.features(normalised(pixels, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))).mean(dim=(2, 3))
        torch.testing.assert_close(adopted.encoder(pixels)["backbone"], expected)
    rebuilt(adopted, load)


def test_a_classifier_with_classes_of_its_own() -> None:
    network = models.shufflenet_v2_x0_5(weights=None, num_classes=7)
    adopted = adopt("torchvision:shufflenet_v2_x0_5", saved(network.state_dict()), **SHAPE)
    assert adopted.encoder(images(224))["logits"].shape == (2, 7)
    rebuilt(adopted, "torchvision:shufflenet_v2_x0_5")


def test_what_cannot_be_used_is_one_line() -> None:
    state = models.shufflenet_v2_x0_5(weights=None).state_dict()
    state["conv1.0.weight"][0] = torch.nan
    load = "torchvision:shufflenet_v2_x0_5"
    with pytest.raises(ConfigError, match="backbone.conv1.0.weight holds 27 values that are NaN or infinite, of 648"):
        adopt(load, saved(state), **SHAPE)
    with pytest.raises(ConfigError, match="takes colour images; set data.channels=3, not 1"):
        adopt(load, None, channels=1, image_size=32, fresh=0)
    timm = pytest.importorskip("timm")
    with pytest.raises(ConfigError, match="it does not answer an image of 3 x 208 x 208: Input height"):
        adopt("timm:vit_tiny_patch16_224", None, **SHAPE, fresh=0, preprocessing={"size": 208})
    whole = timm.create_model("efficientvit_m0")  # its head has a batch norm of its own, which goes with the classifier
    found = adopt("timm:efficientvit_m0", saved(whole.state_dict()), **SHAPE)
    assert found.encoder.outputs == ("backbone",)


def test_torchvision_names_are_checked() -> None:
    with pytest.raises(ConfigError, match="torchvision has no classification model 'resnet19'"):
        adopt("torchvision:resnet19", None, **SHAPE, fresh=0)
    with pytest.raises(
        ConfigError, match=r"missing \['backbone.conv1.*torchvision:resnet18; the file looks like .* of a MobileNetV2"
    ):
        adopt("torchvision:resnet18", saved(models.mobilenet_v2().state_dict()), **SHAPE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torchscript() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 5)).eval()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(network, images(4)), buffer)
    settings = {"mean": (0.5,), "std": (0.25,), "size": 4}
    adopted = adopt("torchscript", buffer.getvalue(), **SHAPE, preprocessing=settings)
    with pytest.raises(ConfigError, match="it does not answer an image of 3 x 32 x 32"):
        adopt("torchscript", buffer.getvalue(), **SHAPE)
    again = rebuild("torchscript", buffer.getvalue(), adopted.preprocessing, **SHAPE, mark=adopted.fingerprint)
    assert saved_mark("torchscript", buffer.getvalue(), {}) == adopted.fingerprint
    assert saved_mark("python:json:loads", b"", {}) is None  # nothing of a function is saved
    for encoder in (adopted.encoder, again):
        torch.testing.assert_close(encoder(images(4))["backbone"], network((images(4) - 0.5) / 0.25))
    with pytest.raises(
        ConfigError, match=r"are a TorchScript file, which is code \(OpenAI publishes CLIP so\); .*torch.save\("
    ):
        adopt("torchvision:shufflenet_v2_x0_5", buffer.getvalue(), **SHAPE)
    refused(ConfigError, "not a TorchScript file", adopt, "torchscript", b"nothing", **SHAPE)
    refused(ConfigError, "needs weights", adopt, "torchscript", None, **SHAPE)


WEIGHT = torch.randn(5, 48, generator=torch.Generator().manual_seed(3))
TINY: Any = {"channels": 3, "image_size": 4}
NORMALISED = {"mean": (0.5,), "std": (0.25,)}


def onnx_file(shape: str, outputs: str = "float[N,5] embedding", *, external: bool = False) -> bytes:
    """A graph that flattens images of a shape, channels first, and multiplies them with `WEIGHT`."""
    first = "Transpose<perm=[0,3,1,2]>" if shape.endswith(",3") else "Identity"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{shape}] images) => ({outputs}) {{ first = {first}(images) '
        "flat = Flatten(first) embedding = Gemm<transB=1>(flat, weight) other = Neg(embedding) }"
    )
    weight = onnx.numpy_helper.from_array(WEIGHT.numpy(), "weight")
    if external:
        onnx.external_data_helper.set_external_data(weight, "weight.bin")
        weight.ClearField("raw_data")
    model.graph.initializer.append(weight)
    return model.SerializeToString()


TWO = "float[N,5] other, float[N,5] embedding"


@pytest.mark.parametrize("shape", ["B,3,4,4", "1,3,4,4", "3,3,4,4", "B,4,4,3", "B,3,S,S"])
def test_onnx(shape: str, tmp_path: Path) -> None:
    """Channels first or last, any batch, a batch of one or one that two images do not fill."""
    data, expected = onnx_file(shape), ((images(4) - 0.5) / 0.25).flatten(1) @ WEIGHT.T
    adopted = adopt("onnx", data, **TINY, preprocessing=NORMALISED)
    assert adopted.preprocessing.size == (None if "S" in shape else 4)
    assert untrained("onnx", adopted, **TINY, preprocessing={}) is None
    again = rebuild("onnx", data, adopted.preprocessing, **TINY, mark=adopted.fingerprint)
    for encoder in (adopted.encoder, again):
        torch.testing.assert_close(encoder(images(4))["backbone"], expected, rtol=0, atol=1e-5)
    named = adopt("onnx:other", onnx_file(shape, TWO), **TINY, preprocessing=NORMALISED)
    torch.testing.assert_close(named.encoder(images(4))["backbone"], -expected, rtol=0, atol=1e-5)
    marks = {saved_mark(load, one, {}) for load in ("onnx", "onnx:other") for one in (data, data[:-1] + b"0")}
    assert len(marks) == 4 and adopted.fingerprint in marks
    (tmp_path / "model.onnx").write_bytes(data)
    _, usual = usual_settings("onnx", str(tmp_path / "model.onnx"), None, read_local)
    assert usual == {"image_size": USUAL_SIDE if "S" in shape else 4}


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        (onnx_file("B,3,4,4"), {"std": (0.5,)}, "does not tell how images are normalised; set mean"),
        (onnx_file("B,3,4,4"), NORMALISED | {"size": 8}, "size = 8, but the graph takes images of 4 px; leave"),
        (onnx_file("B,1,S,S"), NORMALISED, "the graph takes 1 channels, and images have 3; set channels"),
        (onnx_file("B,3,2,8"), NORMALISED, r"\['B', 3, 2, 8\], and images here are square; export it"),
        (onnx_file("B,48"), NORMALISED, r"takes images tensor.float. \['B', 48\], not images \(B, C, H, W\)"),
        (onnx_file("B,3,4,4", TWO), NORMALISED, "outputs other, embedding; choose .* onnx:other"),
        (onnx_file("B,3,4,4", external=True), NORMALISED, "keeps its weights in another file; join them: python"),
        (b"nothing", NORMALISED, "onnxruntime takes no such file: .*"),
        (None, NORMALISED, "load = 'onnx' needs weights, the file of the graph"),
    ],
)  # fmt: skip
def test_an_onnx_file_that_is_refused(
    data: bytes | None, settings: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """External data that lie in the current folder too: they are in no fingerprint."""
    (tmp_path / "weight.bin").write_bytes(WEIGHT.numpy().tobytes())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        adopt("onnx", data, **TINY, preprocessing=settings)
    assert "\n" not in str(caught.value)


def test_python_callables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "import numpy as np\n"
        "def encode(images):\n    return np.asarray(images).mean(axis=(2, 3))\n"
        "def broken(images):\n    return 'embedding'\n"
        "number = 3\n"
    )
    (tmp_path / "foreign_encoder.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    adopted = adopt("python:foreign_encoder:encode", None, **SHAPE)
    np.testing.assert_allclose(adopted.encoder(images(8))["backbone"], images(8).mean(dim=(2, 3)), rtol=1e-6)
    (tmp_path / "foreign_encoder.py").write_text(source + "# changed\n")
    monkeypatch.delitem(sys.modules, "foreign_encoder")
    changed = adopt("python:foreign_encoder:encode", None, **SHAPE)
    assert changed.fingerprint != adopted.fingerprint
    refused(ShapeError, "returned a str", adopt, "python:foreign_encoder:broken", None, **SHAPE)
    for name, message in (
        ("foreign_encoder", "write python:module:function"),
        ("no_such_module:encode", "No module named 'no_such_module'; the module must be importable on every node"),
        ("foreign_encoder:absent", "has no attribute 'absent'"),
        ("foreign_encoder:number", "is a int, not callable"),
    ):
        refused(ConfigError, message, adopt, f"python:{name}", None, **SHAPE)


@pytest.mark.parametrize(
    ("file", "load", "told"),
    [
        ("vit_tiny_patch16_384", "timm:vit_tiny_patch16_224", "write load: timm:vit_tiny_patch16_384$"),
        ("vit_tiny_patch16_384", "timm:vit_tiny_patch16_224.augreg_in21k", "write load: timm:vit_tiny_patch16_384$"),
        ("deit_tiny_patch16_224", "timm:vit_tiny_patch16_384", "write load: timm:vit_tiny_patch16_224$"),
    ],
)
def test_weights_of_another_side_are_told_timm_s_own_name(file: str, load: str, told: str) -> None:
    timm = pytest.importorskip("timm")
    refused(ConfigError, told, adopt, load, saved(timm.create_model(file, pretrained=False).state_dict()), **SHAPE)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        (
            "vit_base_patch32_clip_224",
            r"have GELU, .* QuickGELU \(.*openai\) need timm:vit_base_patch32_clip_quickgelu_224$",
        ),
        ("vit_base_patch32_clip_224.laion2b_e16", "have GELU, .* need timm:vit_base_patch32_clip_quickgelu_224$"),
        (
            "vit_base_patch32_clip_quickgelu_224",
            "have QuickGELU, .* GELU .all others. need timm:vit_base_patch32_clip_224$",
        ),
        ("vit_base_patch32_224", "^$"),
        ("vit_medium_patch16_clip_224", "^$"),
    ],
)
def test_the_activation_of_timm_s_clip_is_noted_as_open_clip_s_is(name: str, note: str) -> None:
    from mi_core.adoption.builders import timm_activation_note

    pytest.importorskip("timm")
    assert re.search(note, timm_activation_note(name))


CAPTIONS = ["a photo of a cat", "dogs", "the sea, seen from above", "a red car"]
SMALL = CLIPParameters(projection_width=16, text_width=16, text_layers=1, text_heads=2, text_length=24)


def parameters(**changes: Any) -> PretrainingParameters:
    settings: dict[str, Any] = {"backbone": "conv4", "objective": "clip", "objective_parameters": SMALL, "epochs": 30}
    return PretrainingParameters(**(settings | {"batch_size": 4} | changes))


def trained() -> tuple[Pretrainer, torch.Tensor]:
    images = torch.randint(0, 256, (4, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    targets = OBJECTIVES["clip"].encode_targets(SMALL, [None] * 4, CAPTIONS)
    names = [("pool", str(row)) for row in range(4)]
    data = ResidentImages(images, names, targets, batch_size=4, seed=0, device="cpu")
    trainer = Pretrainer(data, AUGMENTATIONS["clip"](), parameters(), seed=0, device=torch.device("cpu"))
    while trainer.epoch < 30:
        trainer.train_epoch()
    return trainer, images


def test_the_audited_encoder_matches_captions_to_images() -> None:
    trainer, images = trained()
    encoder = trainer.encoder().eval()
    with torch.inference_mode():
        texts = encoder.text(CAPTIONS)
        images_embedded = encoder(images.float() / 255)["projection"]
    cosines = torch.nn.functional.normalize(images_embedded, dim=1) @ torch.nn.functional.normalize(texts, dim=1).T
    assert cosines.argmax(dim=1).tolist() == [0, 1, 2, 3]
    again = audited_encoder(parameters(), 3, 12).eval()
    assert again.text is not None
    load_weights(again, weights_bytes(encoder))
    assert fingerprint(again) == fingerprint(encoder)
    with torch.inference_mode():
        torch.testing.assert_close(again.text(CAPTIONS), texts)


def test_others_have_none() -> None:
    simclr = PretrainingParameters(backbone="conv4", objective="simclr", epochs=1, batch_size=2)
    assert audited_encoder(simclr, 3, 12).text is None
