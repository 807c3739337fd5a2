"""bfloat16 is taken where the CPU has instructions for it and answers stay alike, and nowhere else."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mi_core.adoption.code import CodeBackbone, GivenNetwork
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import Encoder
from mi_core.features.embedding import Embedding
from mi_core.querying import precision_trial
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.querying.precision_trial import has_bfloat16, rounded, tried_precision


class Flat(nn.Module):
    """Answers with the image, or in bfloat16 with another answer."""

    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        self.turned, self.calls = turned, 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return images.flatten(1) * (-1 if torch.is_autocast_enabled("cpu") and self.turned else 1)


def encoder(*arguments: Any) -> Encoder:
    return Encoder(Flat(*arguments), {}, torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1)).eval()


class Mixed(Flat):
    """Takes weights for more than products, in an operation whose numbers must have one type."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.lerp(images.flatten(1), self.layer.weight, 0.0)


class Wrapped(Encoder):
    """As one behind an API."""


@pytest.mark.parametrize(
    ("told", "has"),
    [
        ("flags\t\t: fpu avx512f avx512_vnni\n", False),
        ("flags\t\t: fpu avx512f avx512_bf16 amx_tile\n", True),
        ("flags\t\t: fpu amx_bf16\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("Features\t: fp asimd\nmodel name\t: with bf16\n", False),
        ("", False),
    ],
)
def test_instructions_are_those_that_the_kernel_names(told: str, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_trial, "Path", lambda _: Path("/no/such/file"))
    assert not has_bfloat16()
    monkeypatch.undo()
    monkeypatch.setattr(Path, "read_text", lambda _: told)
    assert has_bfloat16() is has


@pytest.mark.parametrize(
    ("turned", "precision"), [([False], "bfloat16"), ([True], "float32"), ([False, False, True], "float32")]
)
def test_bfloat16_is_taken_if_the_answers_stay(
    turned: list[bool], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision_trial, "has_bfloat16", lambda: True)
    assert tried_precision((encoder(one) for one in turned), 3, 8) == precision
    (mixed := encoder()).backbone = Mixed()
    assert tried_precision([mixed], 3, 8) == "float32"


def test_an_old_cpu_tries_nothing_and_what_is_no_network_here_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Wrapped(Flat(), {}, torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1))
    for one, has in ((encoder(), False), (far, True)):
        monkeypatch.setattr(precision_trial, "has_bfloat16", lambda has=has: has)
        assert tried_precision([one], 3, 8) == "float32"
        assert one.backbone.calls == 0


def network(name: str) -> Encoder:
    torch.manual_seed(0)
    return Encoder(build_backbone(name, 3, 32), {}, torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1)).eval()


@pytest.mark.parametrize(
    ("name", "alike"),
    [("resnet8", True), ("vit-tiny/8", True), ("mobilenetv2", False)],  # fresh, the last gives all images one answer
)
def test_networks_like_those_in_use_stay_alike(name: str, alike: bool) -> None:
    """The bound on cosines is one that real networks keep; where images are not told apart, it is not kept."""
    assert precision_trial._is_alike(own := network(name), 3, 32) is alike and own not in precision_trial._ROUNDED


@pytest.mark.parametrize("given", [False, True])
def test_weights_that_were_rounded_once_give_the_answers_of_autocast(given: bool) -> None:
    plain, images = network("resnet8"), torch.rand(4, 3, 32, 32)
    plain.text = nn.Linear(3, 3)
    if given:  # the user's own network, of which ours must not make a module
        plain.backbone = CodeBackbone(GivenNetwork(plain.backbone, torch.device("cpu"), torch.float32))

    def state(one: Any) -> dict[str, torch.Tensor]:
        held: dict[str, torch.Tensor] = (one.backbone.function.network if given else one).state_dict()
        return held

    before = {name: weights.clone() for name, weights in state(plain).items()}
    copied = rounded(plain)
    assert rounded(plain) is copied
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(plain(images)["backbone"], copied(images)["backbone"])
    assert all(torch.equal(weights, before[name]) for name, weights in state(plain).items())
    halved = {name for name, weights in state(copied).items() if weights.dtype == torch.bfloat16}
    assert halved == {name for name, weights in before.items() if weights.dim() == 4 and name not in ("mean", "std")}
    shared = {weights.data_ptr() for weights in state(plain).values()}
    assert all(one.data_ptr() in shared for name, one in state(copied).items() if name not in halved)


def test_an_extractor_asks_in_bfloat16_with_such_weights_and_leaves_codes_that_cannot_be_copied() -> None:
    locked = encoder()
    locked.backbone.lock = threading.Lock()
    assert rounded(locked) is locked
    own = network("resnet8")
    for precision, kept in (("bfloat16", rounded(own)), ("float32", own)):
        plan = QueryPlan((Embedding(),), ("backbone",), 1, precision=precision)
        made = Extractor({"own": own, "locked": locked}, plan, SimCLRAugmentation(), torch.device("cpu"))
        assert made.encoders["own"] is kept and made.encoders["locked"] is locked
