"""Losses and gradients of each image: against plain autograd, a small step, and the losses that encoders train on."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import make_views
from mi_core.checks import ConfigError
from mi_core.encoders import build_backbone
from mi_core.encoders.averaging import averaged
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder, channelwise, seeded
from mi_core.encoders.heads import projection_head
from mi_core.features.embedding import LpNorm
from mi_core.features.loss_gradient import CaptionGradient, ViewsGradient
from mi_core.objectives.clip import image_text_info_nce
from mi_core.objectives.image_losses import CAPTION_LOSSES, VIEW_LOSSES, caption_info_nce, views_info_nce
from mi_core.objectives.moco import queue_info_nce
from mi_core.querying.bank import Bank
from mi_core.querying.extractor import Extractor
from mi_core.querying.gradients import BankKeys, layer_groups, losses_and_gradients
from mi_core.querying.plan import QueryPlan
from mi_core.streams import stream_keys

OF_VIEWS = ViewsGradient(temperature=0.5, views=3, bank=5, layers=4)
OF_COPY = replace(OF_VIEWS, momentum=True)
OF_CAPTION = CaptionGradient(temperature=0.5, views=3, bank=5, layers=4)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def encoder(*, text: bool = False) -> Encoder:
    def build() -> Encoder:
        heads = {
            "projection": projection_head((128, 32, 16), batch_norm=True),
            "prediction": projection_head((16, 32, 16), batch_norm=True),
        }
        tower = Letters() if text else None
        return Encoder(
            build_backbone("conv4", 3, 12), heads, channelwise((0.5,), 3), channelwise((0.5,), 3), text=tower
        )

    return for_queries(seeded(0, build).eval(), "cpu")


class Letters(nn.Module):
    """A text tower: each text to a direction of its own."""

    def forward(self, texts: list[str]) -> torch.Tensor:
        return torch.stack([torch.randn(16, generator=generator(sum(map(ord, text)))) for text in texts])


def test_the_loss_on_views_is_moco_s_for_every_ordered_pair() -> None:
    queries, keys, bank = (torch.randn(rows, 6, generator=generator(rows)) for rows in (3, 3, 7))
    keys = keys + 1
    unit = [F.normalize(one, dim=1) for one in (queries, keys, bank)]
    pairs = [queue_info_nce(unit[0][[i]], unit[1][[j]], unit[2], temperature=0.3) for i, j in permutations(range(3), 2)]
    torch.testing.assert_close(views_info_nce(queries, keys, bank, 0.3), torch.stack(pairs).mean())


def test_the_loss_on_a_caption_is_clip_s_for_that_pair() -> None:
    images, texts = torch.randn(6, 8, generator=generator(1)), torch.randn(6, 8, generator=generator(2))
    every = [  # CLIP's loss of a batch is the mean over its pairs
        caption_info_nce(
            images[[row]],
            texts[row],
            torch.cat([images[:row], images[row + 1 :]]),
            torch.cat([texts[:row], texts[row + 1 :]]),
            0.2,
        )
        for row in range(6)
    ]
    torch.testing.assert_close(
        torch.stack(every).mean(), image_text_info_nce(images, texts, torch.tensor(1 / 0.2)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("output", ["backbone", "projection", "prediction"])
def test_norms_are_those_of_plain_autograd_by_group(output: str) -> None:
    model = encoder()
    views = torch.rand(4, 3, 3, 12, 12, generator=generator(3))
    width = 128 if output == "backbone" else 16
    bank = BankKeys(torch.randn(5, width, generator=generator(4)))
    found = losses_and_gradients(model, output, views, bank, OF_VIEWS)
    plain = copy.deepcopy(model).requires_grad_(True)
    groups = layer_groups(model, output, OF_VIEWS.layers)
    for row in range(4):
        plain.zero_grad()
        answers = plain(views[row])
        keys = answers["projection"].detach() if output == "prediction" else answers[output]
        loss = views_info_nce(answers[output], keys, bank.keys, OF_VIEWS.temperature)
        loss.backward()
        held = dict(plain.named_parameters())
        norms = [sum(float(held[name].grad.square().sum()) for name in group) ** 0.5 for group in groups]
        np.testing.assert_allclose(found[row], [float(loss.detach()), *norms], rtol=1e-4)


def test_a_small_step_against_the_gradient_lowers_the_loss_by_its_square() -> None:
    """loss(w - t g) = loss(w) - t |g|^2 + O(t^2), with |g|^2 from the norms that are kept."""
    model = encoder()
    views = torch.rand(1, 3, 3, 12, 12, generator=generator(5))
    bank = BankKeys(torch.randn(5, 16, generator=generator(6)))
    loss, *norms = losses_and_gradients(model, "projection", views, bank, OF_VIEWS)[0].tolist()
    plain = copy.deepcopy(model).requires_grad_(True)
    value = views_info_nce(*2 * (plain(views[0])["projection"],), bank.keys, OF_VIEWS.temperature)
    value.backward()
    step = 1e-3 / sum(norm**2 for norm in norms)
    with torch.no_grad():
        for weight in plain.parameters():
            if weight.grad is not None:
                weight.sub_(step * weight.grad)
        after = views_info_nce(*2 * (plain(views[0])["projection"],), bank.keys, OF_VIEWS.temperature)
    assert loss - float(after) == pytest.approx(1e-3, rel=0.05)


def test_images_together_are_images_one_by_one() -> None:
    model, texts = encoder(), torch.randn(4, 16, generator=generator(9))
    views = torch.rand(4, 3, 3, 12, 12, generator=generator(7))
    bank = BankKeys(torch.randn(5, 16, generator=generator(8)), torch.randn(5, 16, generator=generator(10)))
    of_views = (ViewsGradient(views=3, bank=5, layers=4, loss=loss) for loss in VIEW_LOSSES)
    of_captions = (CaptionGradient(views=3, bank=5, layers=4, loss=loss) for loss in CAPTION_LOSSES)
    for measure in (*of_views, *of_captions):
        given = texts if measure.captions else None
        alone, many = (
            losses_and_gradients(model, "projection", views, bank, measure, given, together=together)
            for together in (False, True)
        )
        torch.testing.assert_close(alone, many, rtol=1e-4, atol=1e-6)


def test_groups_follow_the_layers_and_end_at_the_output() -> None:
    model = encoder()
    whole = [name for group in layer_groups(model, "backbone", 99) for name in group]
    assert whole == [f"backbone.{name}" for name, _ in model.backbone.named_parameters()]
    few = layer_groups(model, "projection", 3)
    assert len(few) == 3
    assert few[0][0].startswith("backbone.")
    assert few[-1][-1].startswith("projection.")
    assert not any(name.startswith("prediction.") for group in few for name in group)


def test_the_extractor_takes_the_views_and_the_bank_that_it_says() -> None:
    images = torch.randint(0, 256, (11, 3, 12, 12), dtype=torch.uint8, generator=generator(11))
    streams = stream_keys(0, "train", "pool", [str(row) for row in range(11)])
    ids = [f"pool/{row}" for row in range(6)]
    bank = Bank(images[6:], streams[6:], tuple("abcde"))
    augmentation = SimCLRAugmentation(crop_scale=(0.3, 1.0))
    model = encoder(text=True)
    needs = (OF_VIEWS, LpNorm(), OF_CAPTION)
    plan = QueryPlan(needs, ("backbone", "projection"), batch_views=12)
    ask = Extractor({"e": model}, plan, augmentation, torch.device("cpu"), bank=bank)
    found = ask(images[:6], streams[:6], ids, captions=list("uvwxyz"))["e"]
    views = make_views(images[:6], streams[:6], augmentation, views=3)
    with torch.no_grad():
        answers = model(make_views(images[6:], streams[6:], augmentation, views=1)[:, 0])
        texts, bank_texts = model.text(list("uvwxyz")), model.text(list("abcde"))
    for output in ("backbone", "projection"):
        expected = losses_and_gradients(model, output, views, BankKeys(answers[output]), OF_VIEWS)
        np.testing.assert_allclose(found[f"{output}.{OF_VIEWS}"], expected, rtol=1e-4)
    keys = BankKeys(answers["projection"], bank_texts)
    expected = losses_and_gradients(model, "projection", views, keys, OF_CAPTION, texts)
    np.testing.assert_allclose(found[f"projection.{OF_CAPTION}"], expected, rtol=1e-4)
    assert f"backbone.{OF_CAPTION}" not in found
    assert plan.queries_per_image == 3 + 1 + 3
    assert not plan.searches


@pytest.mark.parametrize("output", ["projection", "prediction"])
def test_keys_of_the_momentum_copy_stand_still_and_make_the_loss_that_moco_trains_on(output: str) -> None:
    """Against MoCo v3's and v2's own way: queries of one network, keys and bank of the other."""
    model, copied = encoder(), encoder()
    with torch.no_grad():
        for weight in copied.parameters():
            weight.mul_(0.9)
    model.momentum = copied
    images = torch.randint(0, 256, (8, 3, 12, 12), dtype=torch.uint8, generator=generator(12))
    streams = stream_keys(0, "train", "pool", [str(row) for row in range(8)])
    augmentation = SimCLRAugmentation(crop_scale=(0.3, 1.0))
    plan = QueryPlan((OF_COPY,), (output,))
    ask = Extractor({"e": model}, plan, augmentation, torch.device("cpu"), bank=Bank(images[3:], streams[3:]))
    found = ask(images[:3], streams[:3], ["pool/0", "pool/1", "pool/2"])["e"][f"{output}.{OF_COPY}"]
    views = make_views(images[:3], streams[:3], augmentation, views=3)
    plain = copy.deepcopy(model).requires_grad_(True)
    groups = layer_groups(plain, output, OF_VIEWS.layers)
    with torch.no_grad():
        bank = F.normalize(
            copied(make_views(images[3:], streams[3:], augmentation, views=1)[:, 0])["projection"], dim=1
        )
        keys = [F.normalize(copied(one)["projection"], dim=1) for one in views]
    for row in range(3):
        plain.zero_grad()
        queries = F.normalize(plain(views[row])[output], dim=1)
        pairs = permutations(range(3), 2)
        losses = [queue_info_nce(queries[[i]], keys[row][[j]], bank, OF_VIEWS.temperature) for i, j in pairs]
        loss = torch.stack(losses).mean()
        loss.backward()
        held = dict(plain.named_parameters())
        norms = [sum(float(held[name].grad.square().sum()) for name in group) ** 0.5 for group in groups]
        np.testing.assert_allclose(found[row], [float(loss.detach()), *norms], rtol=1e-4)
    together = losses_and_gradients(model, output, views, BankKeys(bank), OF_COPY, together=True)
    np.testing.assert_allclose(together, found, rtol=1e-4)


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="the encoder e has no momentum copy, which keys: momentum needs"):
        Extractor({"e": encoder()}, QueryPlan((OF_COPY,), ("backbone",)), SimCLRAugmentation(), torch.device("cpu"))(
            torch.zeros(1, 3, 12, 12, dtype=torch.uint8), torch.arange(1), ["a"]
        )
    with pytest.raises(ConfigError, match="views = 1"):
        ViewsGradient(views=1)
    with pytest.raises(ConfigError, match="bank = 0"):
        CaptionGradient(views=1, bank=0)
    images, streams = torch.zeros(2, 3, 12, 12, dtype=torch.uint8), torch.arange(2)
    plan = QueryPlan((OF_VIEWS,), ("backbone",))
    for model, bank, reason in (
        (encoder(), None, "compared with 5 further images"),
        (averaged(encoder(), 2), Bank(images, streams), "gives no gradients of its weights"),
    ):
        with pytest.raises(ConfigError, match=reason):
            Extractor({"e": model}, plan, SimCLRAugmentation(), torch.device("cpu"), bank=bank)(
                images, streams, ["a", "b"]
            )
