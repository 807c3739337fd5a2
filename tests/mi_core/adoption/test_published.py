"""Images reach an encoder as its publisher's own transform gives them: open_clip, timm and torchvision are asked."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mi_core.adoption.foreign import Adopted, adopt
from mi_core.adoption.published import Preprocessing, check_file, published
from mi_core.checks import ConfigError
from mi_core.images import Decoder, decode
from tests.mi_core.adoption.references import saved


def jpeg(width: int, height: int) -> bytes:
    """A JPEG with soft shapes, sharp edges and some noise, as photos have."""
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    waves = np.stack([np.sin(9 * across + 5 * down), np.cos(7 * across * down), np.sin(40 * across) * down], axis=2)
    edges = ((across * 6).astype(int) + (down * 4).astype(int))[..., None] % 2
    noise = np.random.default_rng(width).normal(0, 6, (height, width, 3))
    pixels = np.clip(128 + 70 * waves + 40 * edges + noise, 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def of_open_clip(load: str) -> Callable[[Image.Image], torch.Tensor]:
    open_clip = pytest.importorskip("open_clip")
    name = load.split(":")[1]
    tags = open_clip.list_pretrained_tags_by_model(name)
    config = open_clip.get_pretrained_cfg(name, load.split(":")[2] if load.count(":") == 2 else tags[0]) if tags else {}
    rule = open_clip.transform.PreprocessCfg(
        size=open_clip.get_model_config(name)["vision_cfg"]["image_size"],
        **{part: config[part] for part in ("mean", "std", "interpolation", "resize_mode") if part in config},
    )
    return open_clip.transform.image_transform_v2(rule, is_train=False)  # type: ignore[no-any-return]


def of_timm(load: str) -> Callable[[Image.Image], torch.Tensor]:
    timm = pytest.importorskip("timm")
    config = timm.get_pretrained_cfg(load.partition(":")[2]).to_dict()
    return timm.data.create_transform(**timm.data.resolve_data_config(pretrained_cfg=config))  # type: ignore[no-any-return]


def of_torchvision(load: str) -> Callable[[Image.Image], torch.Tensor]:
    from torchvision import models

    _, name, *tag = load.split(":")
    weights = models.get_model_weights(name)
    return (weights[tag[0]] if tag else weights.DEFAULT).transforms()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("load", "referee"),
    [
        ("open_clip:ViT-B-32", of_open_clip),
        ("open_clip:ViT-L-14:laion2b_s32b_b82k", of_open_clip),  # another mean
        ("open_clip:ViT-B-16-SigLIP", of_open_clip),  # squash
        ("open_clip:ViT-S-32-alt", of_open_clip),  # no published weights
        ("timm:resnet50.a1_in1k", of_timm),  # crop_pct .95
        ("timm:vit_base_patch16_clip_224.openai", of_timm),
        ("timm:convnext_base.clip_laion2b_augreg_ft_in12k_in1k_384", of_timm),  # squash
        ("timm:resnet10t", of_timm),
        ("torchvision:resnet50", of_torchvision),
        ("torchvision:resnet50:IMAGENET1K_V1", of_torchvision),
        ("torchvision:swin_t", of_torchvision),  # bicubic
    ],
)
def test_decoding_is_the_publisher_s_own_transform(load: str, referee: Callable[[str], Any]) -> None:
    found = published(load)
    own = found.preprocessing
    assert own.size is not None
    decoder = Decoder(own.size, 3, own.interpolation, own.fit, own.resize)
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (own.mean, own.std))
    transform = referee(load)
    for width, height in ((500, 333), (300, 451), (224, 224), (97, 64), (640, 256)):
        data = jpeg(width, height)
        ours = (torch.from_numpy(decode(data, decoder)).float() / 255 - mean) / std
        torch.testing.assert_close(ours, transform(Image.open(io.BytesIO(data))), rtol=0, atol=1e-5)


def test_a_choice_among_published_weights_is_told() -> None:
    pytest.importorskip("open_clip")
    known = published("torchvision:resnet50")
    assert known.note == "as for IMAGENET1K_V2; for other weights write torchvision:resnet50:IMAGENET1K_V1"
    clip = published("open_clip:ViT-L-14")
    assert clip.note == "as for most of its weights; for laion2b_s32b_b82k write open_clip:ViT-L-14:laion2b_s32b_b82k"
    assert published("checkpoint:conv4") is None
    for load, message in (
        ("torchvision:resnet50:V3", "torchvision has no weights 'V3' of resnet50, allowed: IMAGENET1K_V1"),
        ("open_clip:ViT-B-32:mine", "open_clip has no weights 'mine' of ViT-B-32, allowed: openai"),
        ("timm:resnet50.mine", "timm has no"),
    ):
        with pytest.raises(ConfigError, match=message):
            published(load)


def test_a_file_of_other_published_weights_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's files end with the first digits of their hash."""
    from torchvision.models import ResNet50_Weights

    class Hash:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def hexdigest(self) -> str:
            return self.data.decode()

    monkeypatch.setattr(hashlib, "sha256", Hash)
    first, second = (entry.url.rpartition("-")[2][:8].encode() for entry in ResNet50_Weights)
    check_file("torchvision:resnet50", second)
    with pytest.raises(ConfigError, match="the file is IMAGENET1K_V1: set load = 'torchvision:resnet50:IMAGENET1K_V1'"):
        check_file("torchvision:resnet50", first)
    check_file("torchvision:resnet50:IMAGENET1K_V1", first)
    check_file("open_clip:ViT-B-32", first)


def test_another_size_keeps_the_share_that_is_cut() -> None:
    own = Preprocessing(224, "bicubic", (0.5,), (0.5,), 256, "shortest")
    assert own.changed({"size": 112}).resize == 128
    assert own.changed({"mean": (0.0,)}) == Preprocessing(224, "bicubic", (0.0,), (0.5,), 256, "shortest")
    assert own.words() == "224 px, bicubic, shorter side to 256, centre crop, mean 0.5, std 0.5"
    squash = Preprocessing(224, "bicubic", (0.5,), (0.5,), 224, "squash")
    assert squash.words() == "224 px, bicubic, both sides to 224, mean 0.5, std 0.5"


ALIKE = 0.9999


def pictures() -> list[Image.Image]:
    """Pictures of several shapes, dark, bright and coloured, so that networks of random weights tell them apart."""
    draw, made = np.random.default_rng(0), []
    for number, (width, height) in enumerate(((500, 375), (300, 400), (256, 256))):
        small = draw.integers(80 * number, 80 * number + 90, (6, 6, 3)).clip(0, 255).astype(np.uint8)
        small[..., number] //= 3
        made.append(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    return made


def least_cosine(found: Adopted, theirs: torch.Tensor, output: str) -> float:
    """The least cosine with (N, D) of the library, the mean over its pictures taken off both."""
    how = found.preprocessing.decoding()
    pixels = []
    for picture in pictures():
        file = io.BytesIO()
        picture.save(file, "PNG")
        pixels.append(torch.from_numpy(decode(file.getvalue(), Decoder(**how)).copy()).float() / 255)
    with torch.no_grad():
        ours = found.encoder(torch.stack(pixels))[output]
    centre = theirs.mean(dim=0)
    return float(torch.cosine_similarity(ours - centre, theirs - centre).min())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "resnet50.a1_in1k",
        "resnet18.tv_in1k",
        "efficientnet_b0.ra_in1k",
        "mobilenetv3_large_100.ra_in1k",
        "convnext_tiny.fb_in22k_ft_in1k",
        "vit_small_patch16_224.augreg_in21k_ft_in1k",
        "vit_tiny_patch16_384.augreg_in21k_ft_in1k",
        "deit_small_patch16_224.fb_in1k",
        "swin_tiny_patch4_window7_224.ms_in1k",
        "vit_base_patch32_clip_quickgelu_224.openai",
    ],
)
def test_timm(name: str) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=0).eval()
    rule = timm.data.create_transform(
        **timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    )
    with torch.no_grad():
        theirs = model(torch.stack([rule(one) for one in pictures()]))
    found = adopt(f"timm:{name}", saved(model.state_dict()), channels=3, image_size=224)
    assert least_cosine(found, theirs, "backbone") >= ALIKE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("ViT-B-32", "laion2b_s34b_b79k"),
        ("ViT-B-32-quickgelu", "openai"),
        ("RN50-quickgelu", "yfcc15m"),
        ("ViT-B-16-SigLIP", "webli"),
    ],
)
def test_open_clip(name: str, tag: str) -> None:
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    model = open_clip.create_model(name, pretrained=None).eval()
    settings = open_clip.get_pretrained_cfg(name, tag)
    known = {part: settings[part] for part in ("mean", "std", "interpolation", "resize_mode") if settings.get(part)}
    side = model.visual.image_size
    own = open_clip.transform.PreprocessCfg(size=side, **known)
    rule = open_clip.transform.image_transform_v2(own, is_train=False)
    with torch.no_grad():
        theirs = model.encode_image(torch.stack([rule(one) for one in pictures()]))
    found = adopt(f"open_clip:{name}:{tag}", saved(model.state_dict()), channels=3, image_size=224)
    assert least_cosine(found, theirs, "projection") >= ALIKE
