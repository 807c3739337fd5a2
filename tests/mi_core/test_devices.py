"""Everything that runs on a GPU, on a GPU without numbers: encoder x recipe x need, and a training step per objective.

PyTorch's FakeTensorMode raises where tensors of two devices meet, in the package's own code: `Extractor`, `Pretrainer`.
Encoders are built on the CPU and moved, as the package does, so a tensor that is no parameter and no buffer stays
behind and is found. Indices on the host for rows on the device, which PyTorch copies without a word, are refused.

Not covered, since it needs numbers or a driver: values; PyTorch's own backward passes (gradients are zeros for the
weights that a loss was computed from); memory and time; kernels that exist on one device only, those of the package
too; events, pinned memory and cuDNN (stand-ins); which branch a number read by the host would take (each is 1, each
condition holds, each mask chooses all rows); the random numbers of HopSkipJump, whose generator is the driver's; the
compiled CPU paths of views and streams, which CUDA does not take; encoders behind a defense, which hash pixels on the
host; several GPUs; `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from mi_core.augmentations import AUGMENTATIONS
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.encoders import ENCODERS, build_backbone
from mi_core.encoders.averaging import averaged
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder, channelwise
from mi_core.encoders.heads import Prototypes, projection_head
from mi_core.features import MEASURES, Measure, boundary_distance
from mi_core.features.adversarial import AdversarialLogits
from mi_core.features.boundary_distance import BoundaryDistance
from mi_core.features.caption_similarity import CaptionEmbedding, CaptionSimilarity
from mi_core.features.embedding import Embedding, LpNorm, NeighbourDensity, ViewEmbeddings
from mi_core.features.pairwise_similarity import METRICS, PairwiseSimilarity
from mi_core.features.patch_similarity import CenterSimilarity
from mi_core.objectives import OBJECTIVES
from mi_core.objectives.clip import CaptionEncoder, TextTransformer, byte_tokens
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, PretrainingParameters
from mi_core.training.optimizers import OPTIMIZERS, OptimizerParameters
from tests.mi_core.fake_cuda import CUDA, HostDetourError, fake_cuda

pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11), reason="FakeTensorMode of older PyTorch asks a driver"
)
IMAGES, VIEWS, CLASSES = 4, 3, 2
OUTPUTS = "backbone", "projection"
TWO_DEVICES = "cuda:0 and cpu|cpu and cuda:0|two different devices cuda:0, cpu|two different devices cpu, cuda:0"
NEEDS: dict[str, tuple[Measure, ...]] = {  # per kind of measure, its settings
    "pairwise": tuple(map(PairwiseSimilarity, METRICS)),
    "view-embeddings": (ViewEmbeddings(),),
    "norm": (LpNorm(),),
    "embedding": (Embedding(),),
    "patches": (CenterSimilarity(),),
    "caption:cosine": (CaptionSimilarity(),),
    "caption:embedding": (CaptionEmbedding(),),
    "boundary": (BoundaryDistance(1, 300),),
    "adversarial": (AdversarialLogits(0.03, 2, CLASSES),),
    "neighbours": (NeighbourDensity(2, 4),),
}
READING = ("boundary",)
"""Needs for which the host waits for numbers: whether to go on."""
RECIPES: dict[str, dict[str, Any]] = {name: {} for name in AUGMENTATIONS} | {
    "all of SimCLR": {"rotation": 10.0, "blur": 0.5, "solarize": 0.2}
}
WAITS = {"all of SimCLR": (0, 12)}
"""Per batch: numbers that the host waits for, and tensors that it sends (images, streams, and constants of a few
numbers). A new one means a way over the host."""
STEP_WAITS = {"clip": (1, 0), "siglip": (1, 0), "moco-v2": (0, 1)}
"""The same per training step: of captions their longest, of MoCo with parts its order of keys."""


def recipe(name: str) -> SimCLRAugmentation:
    return AUGMENTATIONS.get(name, SimCLRAugmentation)(**RECIPES[name])


def encoder(name: str, device: torch.device = CUDA) -> Encoder:
    """An encoder with all outputs and a text tower, as an actor has it."""
    side, patch = (224, 32) if name.startswith("clip") else (32, 8)
    backbone = build_backbone(f"{name}/{patch}" if ENCODERS[name].patches else name, 3, side)
    heads = {
        "projection": projection_head((int(backbone.width), 32, 16), batch_norm=True),  # type: ignore[arg-type]
        "prediction": projection_head((16, 32, 16), batch_norm=True, last_norm=True),
        "prototypes": Prototypes(16, 8),
        "logits": nn.Linear(8, CLASSES),
    }
    tower = TextTransformer(32, 16, layers=1, heads=2, length=16)
    made = Encoder(
        backbone,
        heads,
        channelwise((0.5,), 3),
        channelwise((0.2, 0.3, 0.4), 3),
        size=side,
        text=CaptionEncoder(tower, lambda texts: byte_tokens(texts, 16)),
    )
    return for_queries(made, device)


def query_plan(needs: tuple[Measure, ...], precision: str, outputs: tuple[str, ...] = OUTPUTS) -> QueryPlan:
    """The plan of some needs: the outputs that they name, else those given."""
    only = tuple(dict.fromkeys(measure.output for measure in needs if measure.output is not None))
    return QueryPlan(needs, only or outputs, views=VIEWS, precision=precision)


def ask(
    asked: Encoder,
    augmentation: Any,
    needs: tuple[Measure, ...],
    precision: str = "bfloat16",
    *,
    side: int = 48,
    outputs: tuple[str, ...] = OUTPUTS,
) -> dict[str, Any]:
    """Features of a few images by the extractor's own way, before the host waits for them."""
    plan = query_plan(needs, precision, outputs)
    bank = torch.zeros(IMAGES, 3, side, side, dtype=torch.uint8)
    answers = Extractor({"e": asked}, plan, augmentation, CUDA, crafter=asked, bank=bank).begin(
        torch.zeros(IMAGES, 3, side, side, dtype=torch.uint8),
        torch.arange(IMAGES),
        [f"pool/{row}" for row in range(IMAGES)],
        ["a picture"] * IMAGES if plan.captioned else None,
        [0] * IMAGES if plan.labelled else None,
    )
    (work,) = answers.work
    assert work.checks  # embeddings are looked at, later
    return work.columns["e"]


def check(columns: Mapping[str, torch.Tensor], needs: tuple[Measure, ...]) -> None:
    assert {column.partition(".")[2] for column in columns} == {measure.name for measure in needs}
    for column, values in columns.items():
        assert len(values) == IMAGES, column
        assert values.dtype == torch.float32, column
        assert values.device.type == "cpu", column


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """HopSkipJump without its generators, and with few steps: no mask ever ends a loop here."""
    monkeypatch.setattr(boundary_distance, "STARTS", 2)
    monkeypatch.setattr(boundary_distance, "_HALVINGS", 2)
    monkeypatch.setattr(boundary_distance.torch, "Generator", _Generator)
    monkeypatch.setattr(
        boundary_distance._Search,
        "random",
        lambda search, rows, kind, *shape: torch.rand(len(rows), *shape, device=rows.device),
    )


_REAL = torch.Generator


class _Generator:
    def __new__(cls, device: Any = "cpu") -> Any:
        return _REAL() if torch.device(device).type == "cpu" else object.__new__(cls)

    def manual_seed(self, seed: int) -> _Generator:
        return self


def mostly(kept: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """All values of a parameter, of which only some are tried by default."""
    chosen = list(kept)
    return [pytest.param(one, marks=[] if one in chosen else pytest.mark.slow) for one in every]


FAMILIES = ("conv4", "keras-conv4", "resnet18", "vgg11-bn", "vit-tiny", "clip-vit-b")
"""An encoder per kind of backbone; the others have more layers, another stem, other blocks or registers."""


def test_every_feature_and_objective_is_here() -> None:
    assert set(NEEDS) == set(MEASURES)
    assert set(OBJECTIVES) <= set(STEPS)
    assert set(FAMILIES) <= set(ENCODERS)
    assert all(measure.kind == name for name, needs in NEEDS.items() for measure in needs)


@pytest.mark.parametrize("name", mostly(FAMILIES, ENCODERS))
def test_every_encoder_answers_on_the_device(name: str) -> None:
    needs = (PairwiseSimilarity(), LpNorm(), CenterSimilarity(3, 1))
    with fake_cuda():
        check(ask(encoder(name), recipe("supervised"), needs), needs)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("precision", mostly(["bfloat16"], ["bfloat16", "tf32"]))
def test_every_recipe_draws_on_the_device(name: str, precision: str) -> None:
    with fake_cuda() as numbers:
        asked = averaged(encoder("conv4"), 2)
        numbers.read = numbers.sent = 0
        check(ask(asked, recipe(name), (PairwiseSimilarity(),), precision), (PairwiseSimilarity(),))
        reads, sent = WAITS.get(name, (0, 10))
        assert numbers.read <= reads
        assert numbers.sent <= sent


@pytest.mark.parametrize("feature", NEEDS)
@pytest.mark.parametrize("name", mostly(["resnet8"], ["resnet8", "vit-tiny"]))
def test_every_need_is_computed_on_the_device(name: str, feature: str) -> None:
    with fake_cuda() as numbers:
        asked = encoder(name)
        for need in NEEDS[feature]:
            numbers.read = 0
            check(ask(asked, recipe("supervised"), (need,)), (need,))
            assert not numbers.read or feature in READING


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_with_every_recipe_and_need(name: str) -> None:
    with fake_cuda():
        asked = encoder(name)
        for drawn in RECIPES:
            for needs in NEEDS.values():
                for need in needs:
                    check(ask(asked, recipe(drawn), (need,)), (need,))


@dataclass(frozen=True)
class Step:
    """A training step: parameters of an objective beside its defaults, and the epochs that differ."""

    parameters: dict[str, Any]
    backbone: str = "resnet8"
    epochs: int = 1


STEPS = {
    "simclr": Step({}),
    "moco-v1": Step({"queue": 16}),
    "moco-v2": Step({"queue": 16, "batch_norm_splits": 2}),
    "moco-v3": Step({"projection_hidden": 32}),
    "moco-v3 of a ViT": Step({"projection_hidden": 32, "freeze_patches": True}, "vit-tiny/8"),
    "vicreg": Step({"projection_hidden": 32, "projection_width": 16}),
    "clip": Step({"text_layers": 1}),
    "siglip": Step({"text_layers": 1}),
    "dino": Step({"projection_hidden": 32, "projection_width": 16, "prototypes": 8}),
    "supervised": Step({"classes": CLASSES}),
    "talos": Step({"values": 2}, epochs=2),
}


def new_trainer(case: str, pixels: torch.Tensor, device: torch.device, optimizer: str, **settings: Any) -> Pretrainer:
    """A run of two epochs of an objective on an even number of images, four a step."""
    step, name = STEPS[case], case.partition(" ")[0]
    kind, count = OBJECTIVES[name], len(pixels)
    own = kind.Parameters(**step.parameters)
    targets = kind.encode_targets(own, [0, 1] * (count // 2), [f"picture {row}" for row in range(count)])
    names = [("pool", str(row)) for row in range(count)]
    data = ResidentImages(pixels, names, targets, batch_size=IMAGES, seed=0, device=device)
    data.count = 64  # a queue may not exceed the images
    parameters = PretrainingParameters(step.backbone, name, own, OptimizerParameters(optimizer), 2, IMAGES, **settings)
    trainer = Pretrainer(data, AUGMENTATIONS[name](), parameters, seed=0, device=device)
    data.count = count
    return trainer


def trained(case: str, precision: str = "bfloat16", optimizer: str = "adamw") -> Pretrainer:
    """Two steps of an objective on four images per step."""
    step, pixels = STEPS[case], torch.zeros(2 * IMAGES, 3, 32, 32, dtype=torch.uint8)
    trainer = new_trainer(case, pixels, CUDA, optimizer, precision=precision)
    for epoch in range(step.epochs):
        trainer.epoch = epoch
        trainer.module.start_epoch(epoch)
        trainer.trained.train()
        for index, drawn in enumerate(trainer.view_batches()):
            loss = trainer.train_views(*drawn, index)
            assert (loss.shape, loss.dtype, loss.device.type) == ((), torch.float32, "cuda")
    return trainer


def kept(trainer: Pretrainer) -> list[torch.Tensor]:
    """Weights, buffers and what the optimiser remembers."""
    states = [value for state in trainer.optimizer.state.values() for value in state.values()]
    own = [*trainer.module.parameters(), *trainer.module.buffers()]
    return own + [value for value in states if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("precision", mostly(["bfloat16"], ["bfloat16", "float32"]))
@pytest.mark.parametrize("name", STEPS)
def test_every_objective_trains_on_the_device_and_keeps_it_busy(name: str, precision: str) -> None:
    """The host that waits for a number leaves the device without work until the next launches."""
    with fake_cuda() as numbers:
        trainer = trained(name, precision)
        assert {tensor.device.type for tensor in kept(trainer)} == {"cuda"}
        assert trainer.optimizer.state
        views, targets = next(trainer.view_batches())
        numbers.read = numbers.sent = 0
        trainer.train_views(views, targets, 0)
        assert (numbers.read, numbers.sent) == STEP_WAITS.get(name, (0, 0))
        asked = for_queries(trainer.encoder(), CUDA)
        needs = (Embedding(),)
        check(ask(asked, recipe("supervised"), needs, side=32, outputs=asked.outputs), needs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_steps_on_the_device(name: str) -> None:
    with fake_cuda():
        assert {tensor.device.type for tensor in kept(trained("simclr", optimizer=name))} == {"cuda"}


class _Left(nn.Module):
    """A backbone with a tensor that no ``.to`` moves."""

    width = 3

    def __init__(self) -> None:
        super().__init__()
        self.left = torch.ones(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3)) * self.left


class _OnTheHost(SimCLRAugmentation):
    """Views in an order that the host has drawn."""

    def __call__(self, images: torch.Tensor, stream_keys: torch.Tensor, **settings: Any) -> torch.Tensor:
        return super().__call__(images[torch.arange(len(images))], stream_keys, **settings)


def test_a_tensor_of_the_host_is_found() -> None:
    with fake_cuda():
        left = Encoder(_Left(), {}, channelwise((0.5,), 3), channelwise((0.5,), 3)).to(CUDA)
        with pytest.raises(RuntimeError, match=TWO_DEVICES):
            ask(left, recipe("supervised"), (LpNorm(),))
        with pytest.raises(HostDetourError, match="indices on cpu for a tensor on cuda"):
            ask(encoder("conv4"), _OnTheHost(), (PairwiseSimilarity(),))
        trainer = trained("supervised")
        (batch, *_) = trainer.data.epoch(0)
        assert batch.targets is not None
        with pytest.raises(RuntimeError, match=TWO_DEVICES):
            trainer.train_views(trainer.views(batch, 0), batch.targets.cpu(), 0)
