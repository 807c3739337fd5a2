"""Checkpoints as their projects write them: with negatives, without, of transformers, and of no known training."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision import models

State = dict[str, torch.Tensor]
LAYERS = 4  # of a short transformer, in place of 12
MEAN, STD = (torch.tensor(values).reshape(1, 3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def images(side: int = 32) -> torch.Tensor:
    return torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(0))


def seeded(build: Callable[[], nn.Module], seed: int = 1) -> Any:
    """A module as after some training: norms, positions and biases that differ, so that a swap would show.

    It is built without weights, which takes a tenth of the time of drawing them twice.
    """
    with torch.device("meta"):
        module = build()
    module = module.to_empty(device="cpu").eval()
    torch.manual_seed(seed)
    for name, tensor in module.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif name.endswith("num_batches_tracked"):
            tensor.fill_(7)
        elif tensor.ndim > 1 and not name.endswith(("pos_embed", "token")):
            tensor.uniform_(-1, 1).mul_((3 / tensor[0].numel()) ** 0.5)
        else:
            tensor.uniform_(0.2, 0.6) if name.endswith("weight") else tensor.uniform_(-0.3, 0.3)
    return module


def other(build: Callable[[], nn.Module]) -> Any:
    """The network beside, which nobody releases: one number for all weights, in a file and in memory."""
    with torch.device("meta"):
        return build()._apply(lambda one: torch.ones((), dtype=one.dtype, device="cpu").expand(one.shape))


def cifar_resnet(outputs: int = 16) -> nn.Module:
    network = models.resnet18(num_classes=outputs)
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return network


def without_fc(network: nn.Module) -> nn.Module:
    network.fc = nn.Identity()
    return network


def numbered(network: nn.Module, *without: str) -> nn.Sequential:
    """Layers of a network in a sequence, as ``nn.Sequential(*network.children())`` gives them."""
    return nn.Sequential(*(child for name, child in network.named_children() if name not in without))


def transformer(name: str = "vit_small_patch16_224", **settings: Any) -> Any:
    """timm's definition, whose names MoCo v3, DINO, MAE, DINOv2 and DeiT share; 32 px make it small."""
    timm = pytest.importorskip("timm")
    return timm.create_model(name, **{"num_classes": 0, "img_size": 32} | settings)


def mlp(
    widths: list[int],
    *,
    bias: bool = True,
    norm: bool = False,
    last_norm: bool = False,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(before, after, bias=bias))
        if index < len(widths) - 2:
            layers += [nn.BatchNorm1d(after), activation()] if norm else [activation()]
        elif last_norm:
            layers.append(nn.BatchNorm1d(after, affine=False))
    return nn.Sequential(*layers)


def moco_positions(side: int, width: int) -> torch.Tensor:
    """MoCo v3 (vits.py): sine and cosine of the row, then of the column, one token of zeros first."""
    result = torch.zeros(1, side * side + 1, width)
    quarter = width // 4
    for row in range(side):
        for column in range(side):
            for index in range(quarter):
                place = result[0, 1 + row * side + column]
                for part, value in enumerate((row, column)):
                    angle = torch.tensor(value / 10000 ** (index / quarter))
                    place[2 * part * quarter + index] = angle.sin()
                    place[(2 * part + 1) * quarter + index] = angle.cos()
    return result


def chained(backbone: nn.Module, projection: nn.Module, prediction: nn.Module | None = None) -> dict[str, nn.Module]:
    """Outputs of a backbone with one or two heads behind it."""
    outputs = {"projection": nn.Sequential(backbone, projection)}
    if prediction is not None:
        outputs["prediction"] = nn.Sequential(backbone, projection, prediction)
    return outputs


def activations(layout: str, *heads: str, activation: str = "relu") -> tuple[str, ...]:
    """Sentences that say which activation was assumed in each head."""
    return tuple(f"activation {activation} in the {head}, as the code behind a {layout} has it" for head in heads)


def saved(content: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **how)
    return buffer.getvalue()


def prefixed(module: nn.Module, prefix: str) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in module.state_dict().items()}


def random(**shapes: tuple[int, ...]) -> State:
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def sgd() -> dict[str, Any]:
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9).state_dict()


@dataclass
class Case:
    """A file, and what has to come out of it."""

    load: str
    content: dict[str, Any]
    layout: str
    expected: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    activations: dict[str, str] = field(default_factory=dict)
    side: int = 32


MOMENTUM = "a momentum copy, which is not what is released"
STRIDES = "strides and pooling of the first layers as resnet18 has them"


def moco_v1() -> Case:
    query, key = seeded(lambda: models.resnet18(num_classes=16)), other(lambda: models.resnet18(num_classes=16))
    state = prefixed(query, "module.encoder_q.") | prefixed(key, "module.encoder_k.")
    state |= {"module.queue": torch.randn(16, 64), "module.queue_ptr": torch.zeros(1, dtype=torch.int64)}
    content = {"epoch": 200, "arch": "resnet18", "state_dict": state, "optimizer": sgd()}
    ignored = (
        f"encoder_k.*, 122 keys ({MOMENTUM})",
        "queue, queue_ptr (the queue of negatives)",
        "epoch, arch (no weights)",
        "optimizer (the state of its training)",
    )
    layout = "MoCo v1 checkpoint"
    return Case("resnet18-imagenet", content, layout, {"projection": query}, ignored)


def moco_v2() -> Case:
    def build() -> nn.Module:
        network = models.resnet18(num_classes=16)
        network.fc = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 16))
        return network

    query, key = seeded(build), other(build)
    state = prefixed(query, "module.encoder_q.") | prefixed(key, "module.encoder_k.") | random(queue=(16, 64))
    state["module.queue"] = state.pop("queue")
    assumed = activations("MoCo v2 checkpoint", "projection")
    backbone = without_fc(seeded(build))
    return Case(
        "resnet18-imagenet",
        {"state_dict": state},
        "MoCo v2 checkpoint",
        {"projection": query, "backbone": backbone},
        (f"encoder_k.*, 124 keys ({MOMENTUM})", "queue (the queue of negatives)"),
        assumed,
    )


def moco_demo() -> Case:
    """The CIFAR demo, EncoderMI's target: numbered layers, no max-pooling, then flatten and a linear layer at 9."""
    query, key = seeded(cifar_resnet), other(cifar_resnet)
    first, second = (
        nn.Sequential(*numbered(network, "maxpool", "fc"), nn.Flatten(1), network.fc) for network in (query, key)
    )
    state = prefixed(first, "encoder_q.net.") | prefixed(second, "encoder_k.net.") | random(queue=(16, 8))
    return Case(
        "resnet18",
        {"epoch": 1, "state_dict": state},
        "MoCo CIFAR demo checkpoint with numbered (no max-pooling) names",
        {"projection": query},
        (f"encoder_k.*, 122 keys ({MOMENTUM})", "queue (the queue of negatives)", "epoch (no weights)"),
        (STRIDES,),
    )


def moco_v3_resnet() -> Case:
    def build() -> nn.Module:
        network = models.resnet18()
        network.fc = mlp([512, 64, 24], bias=False, norm=True, last_norm=True)
        return network

    base, momentum = seeded(build), other(build)
    predictor = seeded(lambda: mlp([24, 64, 24], bias=False, norm=True), 3)
    state = (
        prefixed(base, "base_encoder.") | prefixed(momentum, "momentum_encoder.") | prefixed(predictor, "predictor.")
    )
    expected = {"projection": base, "prediction": nn.Sequential(base, predictor)}
    return Case(
        "resnet18-imagenet",
        {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}},
        "MoCo v3 checkpoint",
        expected,
        (f"momentum_encoder.*, 130 keys ({MOMENTUM})",),
        activations("MoCo v3 checkpoint", "projection", "prediction"),
    )


def moco_v3_vit() -> Case:
    def build() -> nn.Module:
        network = short(num_heads=12)
        network.head = mlp([384, 48, 48, 16], bias=False, norm=True, last_norm=True)
        return network  # type: ignore[no-any-return]

    base, momentum = seeded(build), other(build)
    base.pos_embed.data = momentum.pos_embed.data = moco_positions(2, 384)
    predictor = seeded(lambda: mlp([16, 48, 16], bias=False, norm=True, last_norm=True), 3)
    state = (
        prefixed(base, "base_encoder.") | prefixed(momentum, "momentum_encoder.") | prefixed(predictor, "predictor.")
    )
    said = "12 attention heads, as a file with the fixed positions of MoCo v3 has"
    return Case(
        "vit-s/16",
        {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}},
        "MoCo v3 checkpoint with timm names",
        {"projection": base, "prediction": nn.Sequential(base, predictor)},
        (f"momentum_encoder.*, 70 keys ({MOMENTUM})",),
        (said, *activations("MoCo v3 checkpoint", "projection", "prediction")),
    )


def simclr_leftthomas() -> Case:
    """main.py of leftthomas/SimCLR: thop, which counts operations, leaves its counters in the state dict."""
    network = seeded(cifar_resnet)
    head = seeded(
        lambda: nn.Sequential(nn.Linear(512, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))
    )
    state = prefixed(numbered(network, "maxpool", "fc"), "f.") | prefixed(head, "g.")
    state = {f"module.{name}": tensor for name, tensor in state.items()}
    for place in ("", "module.f.", "module.f.0.", "module.f.3.0.conv1.", "module.g.", "module.g.0."):
        for counter in ("total_ops", "total_params"):
            state[f"{place}{counter}"] = torch.zeros(1, dtype=torch.float64)
    backbone = without_fc(seeded(cifar_resnet))
    layout = "SimCLR state dict of leftthomas/SimCLR"
    return Case(
        "resnet18",
        state,
        f"{layout} with numbered (no max-pooling) names",
        {"backbone": backbone} | chained(backbone, head),
        ("total_ops, total_params, 12 keys (counters of thop)",),
        (*activations(layout, "projection"), STRIDES),
    )


def simclr_sthalles() -> Case:
    network = seeded(cifar_resnet)
    network.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), network.fc)
    layout = "SimCLR checkpoint of sthalles/SimCLR"
    content = {"epoch": 100, "arch": "resnet18", "state_dict": prefixed(network, "backbone."), "optimizer": sgd()}
    ignored = ("epoch, arch (no weights)", "optimizer (the state of its training)")
    return Case(
        "resnet18", content, layout, {"projection": network}, ignored, (*activations(layout, "projection"), STRIDES)
    )


def compiled() -> Case:
    """torch.compile around DistributedDataParallel around the model."""
    network = seeded(cifar_resnet)
    state = prefixed(network, "_orig_mod.module.")
    return Case("resnet18", {"model": state}, "plain state dict", {"logits": network}, (), (STRIDES,))


def lightly_byol() -> Case:
    """BYOL with lightly's modules, as its examples name them."""
    heads = pytest.importorskip("lightly.models.modules.heads")
    network = seeded(models.resnet18)
    projection = seeded(lambda: heads.BYOLProjectionHead(512, 64, 16))
    prediction = seeded(lambda: heads.BYOLPredictionHead(16, 64, 16))
    state = prefixed(numbered(network, "fc"), "backbone.") | prefixed(projection, "projection_head.")
    state |= prefixed(prediction, "prediction_head.")
    copied = without_fc(other(models.resnet18))
    copied_projection = other(lambda: heads.BYOLProjectionHead(512, 64, 16))
    state |= prefixed(numbered(copied, "fc"), "backbone_momentum.")
    state |= prefixed(copied_projection, "projection_head_momentum.")
    backbone = without_fc(seeded(models.resnet18))
    return Case(
        "resnet18-imagenet",
        state,
        "lightly state dict with numbered names",
        chained(backbone, projection, prediction),
        (f"backbone_momentum.*, projection_head_momentum.*, 128 keys ({MOMENTUM})",),
        activations("lightly state dict", "projection", "prediction"),
    )


def lightly_swav() -> Case:
    heads = pytest.importorskip("lightly.models.modules.heads")
    backbone = without_fc(seeded(models.resnet18))
    projection = seeded(lambda: heads.SwaVProjectionHead(512, 64, 16))
    prototypes = heads.SwaVPrototypes(16, 24)
    state = prefixed(numbered(backbone, "fc"), "backbone.") | prefixed(projection, "projection_head.")
    return Case(
        "resnet18-imagenet",
        state | prefixed(prototypes, "prototypes."),
        "lightly state dict with numbered names",
        chained(backbone, projection),
        ("prototypes.*, 2 keys (prototypes, with which the loss compares)",),
        activations("lightly state dict", "projection"),
    )


def lightly_dino() -> Case:
    heads = pytest.importorskip("lightly.models.modules.heads")

    def head() -> nn.Module:
        return heads.DINOProjectionHead(512, 64, 16, 24, batch_norm=True)  # type: ignore[no-any-return]

    student, teacher = without_fc(other(models.resnet18)), without_fc(seeded(models.resnet18))
    teacher_head = seeded(head)
    state = prefixed(numbered(student, "fc"), "student_backbone.") | prefixed(other(head), "student_head.")
    state |= prefixed(numbered(teacher, "fc"), "teacher_backbone.") | prefixed(teacher_head, "teacher_head.")
    return Case(
        "resnet18-imagenet",
        state,
        "lightly DINO state dict with numbered names",
        chained(teacher, teacher_head.layers) | {"prototypes": nn.Sequential(teacher, teacher_head)},
        ("student_backbone.*, student_head.*, 136 keys (the other network; DINO releases the teacher)",),
        activations("lightly DINO state dict", "projection", activation="gelu"),
    )


def solo_learn() -> Case:
    """A checkpoint of solo-learn's BYOL: online and momentum networks, and a classifier that learns beside them."""
    backbone = without_fc(seeded(cifar_resnet))
    projector, predictor = (
        seeded(lambda: mlp([512, 64, 16], norm=True)),
        seeded(lambda: mlp([16, 64, 16], norm=True), 3),
    )
    state = prefixed(backbone, "backbone.") | prefixed(nn.Linear(512, 10), "classifier.")
    state |= prefixed(projector, "projector.") | prefixed(predictor, "predictor.")
    copied, copied_projector = without_fc(other(cifar_resnet)), other(lambda: mlp([512, 64, 16], norm=True))
    state |= prefixed(copied, "momentum_backbone.") | prefixed(copied_projector, "momentum_projector.")
    state |= prefixed(nn.Linear(512, 10), "momentum_classifier.")
    content = {"epoch": 3, "state_dict": state, "loops": {"fit_loop": {}}, "hyper_parameters": {"lr": 0.1}}
    layout = "solo-learn state dict"
    return Case(
        "resnet18",
        content,
        layout,
        chained(backbone, projector, predictor),
        (
            "classifier.*, 2 keys (a classifier trained beside the encoder)",
            f"momentum_backbone.*, momentum_projector.*, momentum_classifier.*, 131 keys ({MOMENTUM})",
            "epoch, hyper_parameters (no weights)",
            "loops (the state of its training)",
        ),
        (*activations(layout, "projection", "prediction"), STRIDES),
    )


def simsiam() -> Case:
    """facebookresearch/simsiam: the projector in place of ``encoder.fc``, the predictor beside it."""

    def build() -> nn.Module:
        network = models.resnet18()
        network.fc = nn.Sequential(
            nn.Linear(512, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 32),
            nn.BatchNorm1d(32, affine=False),
        )
        return network

    encoder = seeded(build)
    predictor = seeded(
        lambda: nn.Sequential(nn.Linear(32, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 32)), 3
    )
    state = prefixed(encoder, "module.encoder.") | prefixed(predictor, "module.predictor.")
    return Case(
        "resnet18-imagenet",
        {"epoch": 100, "arch": "resnet18", "state_dict": state, "optimizer": sgd()},
        "SimSiam checkpoint",
        {"projection": encoder, "prediction": nn.Sequential(encoder, predictor)},
        ("epoch, arch (no weights)", "optimizer (the state of its training)"),
        activations("SimSiam checkpoint", "projection", "prediction"),
    )


def byol_pytorch() -> Case:
    """lucidrains/byol-pytorch: the network stands in the file twice, its classifier is never trained."""
    network, target = seeded(models.resnet18), other(models.resnet18)
    backbone = without_fc(seeded(models.resnet18))
    projector, copied_projector = (make(lambda: mlp([512, 64, 16], norm=True)) for make in (seeded, other))
    predictor = seeded(lambda: mlp([16, 64, 16], norm=True), 3)
    state = prefixed(network, "net.") | prefixed(network, "online_encoder.net.")
    state |= prefixed(projector, "online_encoder.projector.") | prefixed(predictor, "online_predictor.")
    state |= prefixed(target, "target_encoder.net.") | prefixed(copied_projector, "target_encoder.projector.")
    layout = "BYOL checkpoint of byol-pytorch"
    return Case(
        "resnet18-imagenet",
        state,
        layout,
        chained(backbone, projector, predictor),
        (
            "net.*, 122 keys (the same network once more)",
            "online_encoder.*, 2 keys (the network's own classifier, which BYOL does not train)",
            f"target_encoder.*, 131 keys ({MOMENTUM})",
        ),
        activations(layout, "projection", "prediction"),
    )


class SwAVResNet(nn.Module):
    """facebookresearch/swav: a padding of one pixel of its own before a first convolution that pads by two."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.network.conv1.padding = (2, 2)  # type: ignore[union-attr]
        self.padding = nn.ConstantPad2d(1, 0.0)

    def forward(self, pixels: torch.Tensor) -> Any:
        return self.network(self.padding(pixels))


def swav() -> Case:
    projection = seeded(lambda: mlp([512, 64, 16], norm=True))
    network = without_fc(seeded(models.resnet18))
    state = prefixed(network, "module.") | prefixed(projection, "module.projection_head.")
    state |= prefixed(nn.Linear(16, 24, bias=False), "module.prototypes.")
    reference = SwAVResNet(network)
    return Case(
        "resnet18-imagenet",
        state,
        "SwAV checkpoint",
        chained(reference, projection),
        ("prototypes.* (prototypes, with which the loss compares)",),
        activations("SwAV checkpoint", "projection"),
    )


def barlow_twins() -> Case:
    network = without_fc(seeded(models.resnet18))
    projector = seeded(lambda: mlp([512, 64, 64, 32], bias=False, norm=True))
    state = prefixed(network, "module.backbone.") | prefixed(projector, "module.projector.")
    state |= prefixed(nn.BatchNorm1d(32, affine=False), "module.bn.")
    return Case(
        "resnet18-imagenet",
        {"epoch": 3, "model": state, "optimizer": sgd()},
        "Barlow Twins checkpoint",
        chained(network, projector),
        ("bn.*, 3 keys (the norm before the loss)", "epoch (no weights)", "optimizer (the state of its training)"),
        activations("Barlow Twins checkpoint", "projection"),
    )


def vicreg() -> Case:
    network = without_fc(seeded(models.resnet18))
    projector = seeded(lambda: mlp([512, 64, 64, 32], norm=True))
    projector[6] = nn.Linear(64, 32, bias=False)
    state = prefixed(network, "module.backbone.") | prefixed(projector, "module.projector.")
    return Case(
        "resnet18-imagenet",
        {"epoch": 3, "model": state, "optimizer": sgd()},
        "VICReg checkpoint",
        chained(network, projector),
        ("epoch (no weights)", "optimizer (the state of its training)"),
        activations("VICReg checkpoint", "projection"),
    )


def dino_head(width: int) -> nn.Module:
    """Its names: an MLP with GELU called ``mlp``, then ``last_layer``, a linear layer with normed weights."""
    head = nn.Module()
    head.mlp = mlp([width, 64, 64, 16], activation=nn.GELU)
    head.last_layer = nn.Module()
    head.last_layer.weight_g = nn.Parameter(torch.ones(24, 1))
    head.last_layer.weight_v = nn.Parameter(torch.randn(24, 16))
    return head


def dino(load: str, build: Callable[[], nn.Module], naming: str, assumed: tuple[str, ...]) -> Case:
    """main_dino.py, without ``args``: student and teacher beside each other."""
    student, teacher = other(build), seeded(build)
    head = seeded(lambda: dino_head(384 if "deit" in load else 512), 3)
    directions = head.last_layer.weight_v

    def scored(images: torch.Tensor) -> torch.Tensor:
        """Cosines with the prototypes, times their lengths."""
        cosines = F.cosine_similarity(head.mlp(teacher(images))[:, None], directions[None], dim=2)
        return cosines * head.last_layer.weight_g[:, 0]

    content = {
        "student": prefixed(student, "module.backbone.") | prefixed(head, "module.head."),
        "teacher": prefixed(teacher, "backbone.") | prefixed(head, "head."),
        "optimizer": sgd(),
        "epoch": 100,
        "dino_loss": {"center": torch.zeros(1, 24)},
    }
    return Case(
        load,
        content,
        f"DINO checkpoint{naming}",
        {"backbone": teacher} | chained(teacher, head.mlp) | {"prototypes": scored},
        (
            "student (the other network; DINO releases the teacher)",
            "optimizer (the state of its training)",
            "epoch (no weights)",
            "dino_loss (values of the loss)",
        ),
        (*assumed, *activations("DINO checkpoint", "projection", activation="gelu")),
    )


def dino_resnet() -> Case:
    return dino("resnet18-imagenet", lambda: without_fc(models.resnet18()), "", ())


def dino_vit() -> Case:
    return dino("deit-s/16", short, " with timm names", ("6 attention heads, as a DINO checkpoint has",))


def mae_decoder() -> dict[str, torch.Tensor]:
    """The decoder of models_mae.py: blocks of timm of width 512, and fixed positions."""
    shapes = {"norm1": 512, "attn.qkv": (1536, 512), "attn.proj": (512, 512), "norm2": 512}
    shapes |= {"mlp.fc1": (2048, 512), "mlp.fc2": (512, 2048)}
    weights: dict[str, Any] = {"decoder_embed.weight": (512, 768), "decoder_embed.bias": (512,)}
    weights |= {"decoder_norm.weight": (512,), "decoder_norm.bias": (512,)}
    weights |= {"decoder_pred.weight": (768, 512), "decoder_pred.bias": (768,)}
    for layer, shape in shapes.items():
        whole = shape if isinstance(shape, tuple) else (shape,)
        weights |= {f"decoder_blocks.0.{layer}.weight": whole, f"decoder_blocks.0.{layer}.bias": whole[:1]}
    return random(mask_token=(1, 1, 512), decoder_pos_embed=(1, 5, 512)) | random(**weights)


def mae() -> Case:
    network = seeded(lambda: short("vit_base_patch16_224"))
    return Case(
        "vit-b/16",
        {"model": network.state_dict() | mae_decoder()},
        "MAE checkpoint with timm names",
        {"backbone": network},
        (
            "mask_token, decoder_pos_embed, decoder_embed.*, ..., 20 keys "
            "(the decoder, which is no part of the encoder)",
        ),
        ("12 attention heads, as a MAE checkpoint has",),
    )


def official_dinov2(load: str, state: dict[str, torch.Tensor], network: nn.Module) -> Case:
    """A file as it is published: with the token that hides patches, for images of 28 pixels."""
    return Case(
        load,
        state | random(mask_token=(1, 384)),
        "DINOv2 state dict with timm names",
        {"backbone": network},
        ("mask_token (stands for hidden patches in training)",),
        ("6 attention heads, as a DINOv2 state dict has",),
        side=28,
    )


def dinov2() -> Case:
    """It has layer scale in each block."""
    network = seeded(lambda: short("vit_small_patch14_dinov2", img_size=28))
    return official_dinov2("dinov2-s/14", network.state_dict(), network)


def dinov2_registers() -> Case:
    """It keeps a position for the class token, which timm adds to the token, and calls registers so."""
    network = seeded(lambda: short("vit_small_patch14_reg4_dinov2", img_size=28))
    state, first = network.state_dict(), torch.randn(1, 1, 384)
    state["register_tokens"] = state.pop("reg_token")
    state["pos_embed"] = torch.cat([first, state["pos_embed"]], dim=1)
    state["cls_token"] = state["cls_token"] - first
    return official_dinov2("dinov2-s-reg/14", state, network)


def deit() -> Case:
    network = seeded(lambda: short(num_classes=10))
    said = "6 attention heads, as deit-s/16 has"
    return Case(
        "deit-s/16",
        {"model": network.state_dict()},
        "plain state dict with timm names",
        {"logits": network},
        (),
        (said,),
    )


def torchvision_names() -> Case:
    network = seeded(models.mobilenet_v2)
    said = "strides and pooling of the first layers as mobilenetv2-imagenet has them"
    return Case("mobilenetv2-imagenet", network.state_dict(), "plain state dict", {"logits": network}, (), (said,))


def separate_dictionaries() -> Case:
    """Backbone and head saved under names of their own; the code is not known, so its activation is asked."""
    backbone, head = without_fc(seeded(cifar_resnet)), seeded(lambda: mlp([512, 32, 8], activation=nn.GELU))
    content = {"backbone": backbone.state_dict(), "projector": head.state_dict(), "optimizer": sgd()}
    return Case(
        "resnet18",
        content,
        "backbone.* state dict",
        chained(backbone, head),
        ("optimizer (the state of its training)",),
        ("activation gelu in the projection, as the config says", STRIDES),
        activations={"projection": "gelu"},
    )


short = partial(transformer, depth=LAYERS)
CASES = (
    *(moco_v1, moco_v2, moco_demo, moco_v3_resnet, moco_v3_vit, simclr_leftthomas, simclr_sthalles, compiled),
    *(lightly_byol, lightly_swav, lightly_dino, solo_learn, simsiam, byol_pytorch, swav, barlow_twins, vicreg),
    *(dino_resnet, dino_vit, mae, dinov2, dinov2_registers, deit, torchvision_names, separate_dictionaries),
)
