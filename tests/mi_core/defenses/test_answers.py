"""What all defenses of answers keep to: off changes no bit, a file brings them back, the encoder stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.defenses import DEFENSES
from mi_core.defenses.base import Defense, ProviderData, answers, numbers, query_streams
from mi_core.encoders import build_backbone
from mi_core.encoders.averaging import averaged
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder, channelwise, fingerprint
from tests.mi_core.defenses import planted
from tests.raising import refused

MEMBERS, OUTSIDE = planted.attribute_images(90, 0), planted.attribute_images(40, 1)
SEEN, UNSEEN = planted.membership_images(60, 0, member=True), planted.membership_images(40, 1, member=False)
QUICK: dict[str, dict[str, Any]] = {
    "attriguard": {"rounds": 1, "steps": 20, "epochs": 20, "batch_size": 32, "learning_rate": 1e-2, "confidence": 1.0},
    "memguard": {"budget": 0.05, "epochs": 80, "learning_rate": 0.1, "batch_size": 16},
    "olympus": {"epochs": 2, "batch_size": 32},
    "output-noise": {},
}
OFF = {
    "attriguard": {"budget": 0.0},
    "memguard": {"budget": 0.0},
    "olympus": {"epochs": 0},
    "output-noise": {"scale": 0},
}


@pytest.fixture(scope="module", autouse=True)
def short_searches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mi_core.defenses.memguard.STEPS", 60)
        yield


def made(name: str, seed: int = 0, **changed: Any) -> Defense:
    method = DEFENSES[name]
    return method(method.Parameters(**{**QUICK[name], **changed}), seed=seed)


def given(name: str) -> tuple[Encoder, ProviderData, ProviderData]:
    """An encoder, its members and others, with what the defense is meant to hide."""
    if name == "memguard":
        return planted.encoder_of(nn.Flatten(), planted.Sharper()), SEEN, UNSEEN
    return planted.classifier(), MEMBERS, OUTSIDE


@cache
def fitted(name: str) -> tuple[Encoder, ProviderData, ProviderData, Any]:
    """An encoder, its members and others, and what the defense fitted on them."""
    encoder, members, outside = given(name)
    return encoder, members, outside, made(name).fit(encoder, members, outside)


@pytest.mark.parametrize("name", QUICK)
def test_off_changes_no_bit(name: str) -> None:
    (encoder, members, outside), defense = given(name), made(name, **OFF[name])
    served = defense.defended(encoder, defense.fit(encoder, members, outside))
    assert planted.same_answers(encoder, served, outside.images)


@pytest.mark.parametrize("name", QUICK)
def test_a_file_brings_the_same_answers_and_the_encoder_stays(name: str) -> None:
    (encoder, members, outside, state), before = fitted(name), torch.random.get_rng_state()
    identity, asked = fingerprint(encoder), outside.images[:12]
    plain, served = answers(encoder, asked, "logits"), made(name).defended(encoder, state)
    assert not planted.same_answers(encoder, served, asked)
    assert planted.same_answers(served, made(name).defended(encoder, planted.through_a_file(state)), asked)
    again = made(name).fit(encoder, members, outside)
    assert all(np.array_equal(state[key], again[key]) for key in state)
    large = 2**64 - 1  # as hashes are
    other = made(name, seed=large).fit(encoder, members, outside)
    assert not planted.same_answers(served, made(name, seed=large).defended(encoder, other), asked)
    assert all(np.isfinite(value) for value in numbers(state).values())
    assert numbers(state)
    assert not served.training
    assert fingerprint(encoder) == identity
    torch.testing.assert_close(answers(encoder, asked, "logits"), plain, rtol=0, atol=0)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("name", QUICK)
def test_the_same_query_gets_the_same_answer(name: str) -> None:
    """Whatever it is asked beside, and however often: otherwise noise would average away."""
    encoder, _, outside, state = fitted(name)
    served = made(name).defended(encoder, state)
    images = outside.images[:12].float() / 255
    with torch.inference_mode():
        whole = served(images)
        parts = [served(part) for part in (images[:1], images[1:5], images[5:])]
        backwards = served(images.flip(0).contiguous(memory_format=torch.channels_last))
    for output, found in whole.items():
        torch.testing.assert_close(torch.cat([part[output] for part in parts]), found, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(backwards[output].flip(0), found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", QUICK)
def test_answers_in_half_precision_and_with_gradients(name: str) -> None:
    encoder, _, outside, state = fitted(name)
    served = made(name).defended(encoder, state)
    images = outside.images[:5].float() / 255
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert all(found.isfinite().all() for found in served(images).values())
    asked = images.clone().requires_grad_(True)
    assert served(asked)["logits"].isfinite().all()


@pytest.mark.parametrize(
    ("name", "lacking", "message"),
    [
        ("memguard", "outside", "images that the encoder was not trained on"),
        ("memguard", "logits", "the output logits"),
        ("attriguard", "attributes", "an attribute"),
        ("olympus", "attributes", "an attribute"),
        ("olympus", "labels", "classes of the training images"),
        ("olympus", "logits", "the output logits"),
    ],
)
def test_what_is_missing_is_named(name: str, lacking: str, message: str) -> None:
    whole = planted.classifier()
    encoder = Encoder(whole.backbone, {}, whole.mean, whole.std) if lacking == "logits" else whole
    members = ProviderData(
        MEMBERS.images,
        None if lacking == "labels" else MEMBERS.labels,
        None if lacking == "attributes" else MEMBERS.attributes,
    )
    with pytest.raises(ConfigError, match=f"the defense {name} needs .*{message}"):
        made(name).fit(encoder, members, None if lacking == "outside" else OUTSIDE)


@pytest.mark.parametrize("name", ["attriguard", "olympus", "output-noise"])
def test_changed_embeddings_come_with_batch_norm_folded(name: str) -> None:
    backbone = build_backbone("conv4", channels=1, image_size=8)
    encoder = Encoder(backbone, {"logits": nn.Linear(128, 4)}, channelwise((0.5,), 1), channelwise((0.5,), 1)).eval()
    images = torch.randint(0, 256, (len(MEMBERS.images), 1, 8, 8), dtype=torch.uint8)
    members = ProviderData(images, MEMBERS.labels, MEMBERS.attributes)
    served = made(name).defended(encoder, made(name).fit(encoder, members))
    before = answers(served, members.images, "backbone")
    folded = for_queries(served, "cpu")
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    torch.testing.assert_close(answers(folded, members.images, "backbone"), before, rtol=1e-3, atol=1e-3)


def test_defenses_of_answers_are_not_put_on_top_of_each_other() -> None:
    encoder = planted.classifier()
    noise = made("output-noise")
    served = noise.defended(encoder, noise.fit(encoder, MEMBERS))
    for name in ("attriguard", "memguard", "output-noise", "olympus"):
        state = made(name).fit(encoder, MEMBERS, OUTSIDE)
        for changed in (served, averaged(served, 2)):
            refused(ConfigError, "defend it as it was trained", made(name).defended, changed, state)


def test_who_has_no_images_is_told() -> None:
    nothing = ProviderData(torch.empty(0, 1, 4, 4, dtype=torch.uint8))
    refused(ShapeError, "gives no images", made("output-noise").fit, planted.classifier(), nothing)


def test_a_query_is_its_eight_bit_pixels() -> None:
    image = torch.full((1, 1, 4, 4), 100 / 255)
    stream = query_streams(0, "a", image)
    assert torch.equal(query_streams(0, "a", image + 1e-6), stream)
    near = image.clone()
    near[0, 0, 3, 3] += 1 / 255
    others = [
        query_streams(0, "a", near),
        query_streams(1, "a", image),
        query_streams(0, "b", image),
        query_streams(0, "a", image.reshape(1, 1, 2, 8)),
    ]
    assert len({int(stream), *(int(other) for other in others)}) == 5
