"""Gradients of the loss of image and caption in the image tower: against plain autograd, for every kind of tower."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mi_core.adoption.foreign import adopt
from mi_core.adoption.weight_sources import read_local, read_weights_of
from mi_core.augmentations.frameworks import CLIPAugmentation
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import make_views
from mi_core.checks import ConfigError
from mi_core.encoders import build_backbone
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder, channelwise, seeded
from mi_core.features.loss_gradient import CaptionGradient
from mi_core.objectives.clip import CLIP, CLIPParameters
from mi_core.objectives.text import CaptionEncoder
from mi_core.querying.bank import Bank
from mi_core.querying.extractor import Extractor
from mi_core.querying.gradients import BankKeys, layer_groups, losses_and_gradients
from mi_core.querying.plan import QueryPlan
from mi_core.streams import stream_keys
from tests.mi_core.adoption.folders import save_open_clip, save_transformers

IMAGE = CaptionGradient(temperature=0.2, views=2, bank=5, layers=3)
CAPTIONS = ["a photo of a cat", "red car", "a dog"]
SMALL = CLIPParameters(projection_width=16, text_width=16, text_layers=2, text_heads=2, text_length=24)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trained_here(_: Path) -> Encoder:
    def build() -> Encoder:
        module = CLIP(build_backbone("conv4", 3, 12), SMALL)
        plain = channelwise((0.5,), 3)
        return Encoder(module.backbone, {"projection": module.projection}, plain, plain, text=module.text_tower())

    return for_queries(seeded(0, build).eval(), "cpu")


def behind_a_frozen_tower(folder: Path) -> Encoder:
    """A linear layer that learns, behind embeddings that stand still."""
    encoder = trained_here(folder)

    def frozen(captions: list[str]) -> torch.Tensor:
        return torch.stack([torch.randn(6, generator=generator(len(caption))) for caption in captions])

    encoder.text = CaptionEncoder(seeded(1, lambda: nn.Linear(6, 16, bias=False)), frozen)  # type: ignore[arg-type]
    return for_queries(encoder, "cpu")


def of_open_clip(folder: Path) -> Encoder:
    save_open_clip(folder)
    return adopted("open_clip:hf-hub:here", folder)


def of_transformers(folder: Path) -> Encoder:
    pytest.importorskip("transformers")
    save_transformers("CLIPModel", folder, images="SiglipImageProcessor", words=True)
    return adopted("transformers:here", folder)


def of_siglip(folder: Path) -> Encoder:
    pytest.importorskip("transformers")
    save_transformers("SiglipModel", folder, images="SiglipImageProcessor", words=True)
    return adopted("transformers:here", folder)


def adopted(load: str, folder: Path) -> Encoder:
    content = read_weights_of(load, str(folder), read_local).content
    return for_queries(adopt(load, content, channels=3, image_size=32).encoder, "cpu")


Made = Callable[[Path], Encoder]
KINDS = pytest.mark.parametrize(
    "made",
    [trained_here, behind_a_frozen_tower, of_open_clip, of_transformers, of_siglip],
    ids=lambda of: of.__name__,
)


def asked(encoder: Encoder) -> tuple[torch.Tensor, BankKeys, torch.Tensor]:
    """Views of three images, a bank, and the embeddings of three captions."""
    assert encoder.text is not None
    side = encoder.size or 12
    with torch.no_grad():
        texts: torch.Tensor = encoder.text(CAPTIONS)
    bank = BankKeys(*(torch.randn(5, texts.shape[1], generator=generator(seed)) for seed in (1, 2)))
    return torch.rand(3, 2, 3, side, side, generator=generator(3)), bank, texts


def loss_by_hand(images: torch.Tensor, text: torch.Tensor, bank: BankKeys) -> torch.Tensor:
    """Figure 3 of CLIP for one pair among the bank's: both cross-entropies, over the views, from scratch."""
    assert bank.texts is not None
    total = torch.zeros(())
    text = text / text.norm()
    for image in images:
        unit = image / image.norm()
        own = (unit @ text / 0.2).exp()
        texts = sum((unit @ (other / other.norm()) / 0.2).exp() for other in bank.texts)
        others = sum((text @ (other / other.norm()) / 0.2).exp() for other in bank.keys)
        total = total - (own / (own + texts)).log() / 2 - (own / (own + others)).log() / 2
    return total / len(images)


@KINDS
def test_norms_of_the_image_tower_are_those_of_plain_autograd(made: Made, tmp_path: Path) -> None:
    encoder = made(tmp_path)
    views, bank, texts = asked(encoder)
    found = losses_and_gradients(encoder, "projection", views, bank, IMAGE, texts)
    plain = copy.deepcopy(encoder).requires_grad_(True)
    groups = layer_groups(plain, "projection", 3)
    for row, text in enumerate(texts):
        plain.zero_grad()
        loss = loss_by_hand(plain(views[row])["projection"], text, bank)
        loss.backward()
        held = dict(plain.named_parameters())
        norms = [sum(float(held[name].grad.square().sum()) for name in group) ** 0.5 for group in groups]
        assert min(norms) > 0
        np.testing.assert_allclose(found[row], [float(loss.detach()), *norms], rtol=1e-3)


@KINDS
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_pairs_together_are_pairs_one_by_one(made: Made, tmp_path: Path) -> None:
    encoder = made(tmp_path)
    views, bank, texts = asked(encoder)
    alone, many = (
        losses_and_gradients(encoder, "projection", views, bank, IMAGE, texts, together=together)
        for together in (False, True)
    )
    torch.testing.assert_close(alone, many, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("made", [trained_here, behind_a_frozen_tower])
def test_the_extractor_gives_the_captions_of_the_images(made: Made, tmp_path: Path) -> None:
    """In batches of two, in inference mode, whose tensors cannot be differentiated."""
    encoder = made(tmp_path)
    assert encoder.text is not None
    images = torch.randint(0, 256, (8, 3, 12, 12), dtype=torch.uint8, generator=generator(4))
    streams = stream_keys(0, "train", "pool", [str(row) for row in range(8)])
    bank, needs = Bank(images[3:], streams[3:], tuple("abcde")), (IMAGE,)
    plan = QueryPlan(needs, ("backbone", "projection"), batch_views=8)
    ask = Extractor({"e": encoder}, plan, SimCLRAugmentation(), torch.device("cpu"), bank=bank)
    found = ask(images[:3], streams[:3], ["x/0", "x/1", "x/2"], captions=CAPTIONS)["e"]
    views, keys = (make_views(images, streams, SimCLRAugmentation(), views=count) for count in (2, 1))
    with torch.no_grad():
        asked = BankKeys(encoder(keys[3:, 0])["projection"], encoder.text(list("abcde")))
        texts = encoder.text(CAPTIONS)
    expected = losses_and_gradients(encoder, "projection", views[:3], asked, IMAGE, texts)
    np.testing.assert_allclose(found[f"projection.{IMAGE}"], expected, rtol=1e-3)
    assert found[f"projection.{IMAGE}"].shape[1] == 1 + 3
    assert plan.queries_per_image == 2


def test_pairs_that_were_learned_by_heart_have_low_losses_and_small_gradients() -> None:
    """The planted truth: a CLIP over-fitted on 8 pairs, and 8 other pairs of the same kind."""
    pixels = torch.randint(0, 256, (24, 3, 12, 12), dtype=torch.uint8, generator=generator(5))
    captions = [f"picture {number}" for number in torch.randperm(1000, generator=generator(6))[:24].tolist()]
    module = seeded(0, lambda: CLIP(build_backbone("conv4", 3, 12), SMALL))
    targets = CLIP.encode_targets(SMALL, [None] * 8, captions[:8])
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        module((pixels[:8, None].float() / 255 - 0.5) / 0.5, targets).backward()
        optimizer.step()
        module.after_step(0)
    plain = channelwise((0.5,), 3)
    encoder = Encoder(module.backbone, {"projection": module.projection}, plain, plain, text=module.text_tower())
    ask = Extractor(
        {"e": for_queries(encoder, "cpu")},
        QueryPlan((CaptionGradient(0.07, 1, 8, 3),), ("projection",)),
        CLIPAugmentation(crop_scale=(1.0, 1.0)),
        torch.device("cpu"),
        bank=Bank(pixels[16:], torch.arange(8), tuple(captions[16:])),
    )
    found = ask(pixels[:16], torch.arange(16), [f"pool/{row}" for row in range(16)], captions=captions[:16])["e"]
    (rows,) = found.values()
    assert rows.shape == (16, 1 + 3)
    assert (np.median(rows[:8], axis=0) < 0.25 * np.median(rows[8:], axis=0)).all()


def test_an_encoder_without_text_tower_is_refused() -> None:
    encoder, images = trained_here(Path()), torch.zeros(1, 3, 12, 12, dtype=torch.uint8)
    encoder.text = None
    ask = Extractor({"e": encoder}, QueryPlan((IMAGE,), ("projection",)), SimCLRAugmentation(), torch.device("cpu"))
    with pytest.raises(ConfigError, match="the encoder e has no text tower, which an attack on captions needs"):
        ask(images, torch.arange(1), ["a"], captions=["a"])
