"""Names of timm, open_clip and transformers: the embedding of a picture is the library's own, from file to vector.

Weights are random; preprocessing is the library's own, of those weights that the name stands for.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mi_core.adoption.foreign import Adopted, adopt
from mi_core.images import Decoder, decode

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


def weights(model: Any) -> bytes:
    """The file of a network's weights."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.getvalue()


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
    found = adopt(f"timm:{name}", weights(model), channels=3, image_size=224)
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
    found = adopt(f"open_clip:{name}:{tag}", weights(model), channels=3, image_size=224)
    assert least_cosine(found, theirs, "projection") >= ALIKE
