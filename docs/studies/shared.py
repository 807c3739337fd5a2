"""What studies share: images and networks of ``shared``, training a small encoder, and a result that grows."""

from __future__ import annotations

import copy
import io
import json
import tarfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from mi_core.auditing.models import reinitialised
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import clean, make_views
from mi_core.encoders.checkpoint import Encoder, channelwise, seeded
from mi_core.metrics.intervals import clopper_pearson
from mi_core.objectives import OBJECTIVES
from mi_core.records import Estimate
from mi_core.streams import pixel_streams
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, PretrainingParameters

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
CIFAR10 = SHARED / "data" / "cifar10"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
WIDE = SimCLRAugmentation()
MILD = SimCLRAugmentation(crop_scale=(0.6, 1.0), jitter_probability=0.3, grayscale=0)
SMALL_TEXT = {"text_layers": 1, "text_width": 64, "text_heads": 2, "text_length": 32}
Scores = npt.NDArray[np.float64]


class Result:
    """A file of rows, written anew with every row; what else it tells stands beside them.

    Args:
        path: the file.
        told: said of all rows.
    """

    def __init__(self, path: str, **told: Any) -> None:
        self.path, self.told, self.rows = Path(path), told, list[dict[str, Any]]()
        self.began = time.perf_counter()

    def keep(self, row: dict[str, Any]) -> None:
        """One more row."""
        self.rows.append(row)
        print(row, f"{time.perf_counter() - self.began:.0f} s", flush=True)  # noqa: T201
        self.write()

    def write(self, **more: Any) -> None:
        """All so far, one row a line."""
        spent = {"seconds": round(time.perf_counter() - self.began), "core_seconds": round(time.process_time())}
        head = json.dumps(spent | self.told | more)[:-1]
        rows = ",\n".join(json.dumps(row) for row in self.rows)
        self.path.write_text(f'{head}, "rows": [\n{rows}\n]}}\n')


def counted(count: int, of: int) -> list[float]:
    """The Clopper-Pearson interval of a share."""
    return [round(end, 4) for end in clopper_pearson(count, of)]


def rounded_ends(estimate: Estimate, digits: int = 3) -> list[float]:
    """Value and ends of an estimate."""
    return [round(each, digits) for each in (estimate.value, estimate.low, estimate.high)]


def cifar10(split: str, *shards: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N, 3, 32, 32) uint8 and classes (N,) of some shards."""
    images, classes = [], []
    for shard in shards:
        with tarfile.open(CIFAR10 / f"{split}-{shard:06d}.tar") as members:
            for member in members:
                content = members.extractfile(member)
                assert content is not None
                if member.name.endswith(".jpg"):
                    images.append(np.asarray(Image.open(io.BytesIO(content.read()))))
                else:
                    classes.append(int(content.read()))
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(classes)


def trained(
    how: PretrainingParameters,
    images: torch.Tensor,
    recipe: SimCLRAugmentation,
    *,
    classes: Sequence[int] | None = None,
    captions: Sequence[str] | None = None,
    names: Iterable[tuple[str, str]] | None = None,
    seed: int = 0,
    epochs: Sequence[int] = (),
    start: Encoder | None = None,
) -> dict[int, Encoder]:
    """Encoders of some images by epoch, the last and those that are named; ``start``: what goes on."""
    framework, count = OBJECTIVES[how.objective], len(images)
    targets = None
    if framework.target:
        settings = how.objective_parameters or framework.Parameters()
        targets = framework.encode_targets(settings, classes or [0] * count, captions or [""] * count)
    known = list(names or (("train", str(row)) for row in range(count)))
    data = ResidentImages(images, known, targets, batch_size=how.batch_size, seed=seed)
    worker, found = Pretrainer(data, recipe, how, seed=seed), {}
    if start is not None:
        worker.start_from(start)
    for epoch in range(1, how.epochs + 1):
        worker.train_epoch()
        if epoch in (*epochs, how.epochs):
            found[epoch] = copy.deepcopy(worker.encoder()).eval()
    return found


@torch.inference_mode()
def consistency(
    encoder: Encoder,
    images: torch.Tensor,
    recipe: SimCLRAugmentation = WIDE,
    nonce: str = "audit",
    output: str = "backbone",
) -> Scores:
    """The mean cosine (N,) of ten views of each image."""
    found = []
    for some in images.split(250):
        views = make_views(some, pixel_streams(nonce, 0, "query", some), recipe, views=10)
        unit = F.normalize(encoder(views.flatten(0, 1))[output].float(), dim=1).unflatten(0, (-1, 10))
        found.append(((unit @ unit.transpose(1, 2)).sum(dim=(1, 2)) - 10) / 90)
    return np.asarray(torch.cat(found).double())


@torch.inference_mode()
def embedded(encoder: Encoder, images: torch.Tensor) -> npt.NDArray[np.float32]:
    """The embeddings (N, D) of whole images."""
    return np.asarray(torch.cat([encoder(clean(some))["backbone"].float() for some in images.split(500)]))


class _Block(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, 1 if before == after else 2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.more = after - before

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        inside = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(maps)))))
        if self.more:
            maps = F.pad(maps[:, :, ::2, ::2], (0, 0, 0, 0, self.more // 2, self.more // 2))
        return F.relu(inside + maps)


class CifarResNet(nn.Module):
    """The residual network for CIFAR-10 of He et al. (CVPR 2016, section 4.2): images to logits, or to 64 values."""

    def __init__(self, blocks: int, *, logits: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for stage, (before, after) in enumerate(((16, 16), (16, 32), (32, 64)), start=1):
            rest = [_Block(after, after) for _ in range(blocks - 1)]
            setattr(self, f"layer{stage}", nn.Sequential(_Block(before, after), *rest))
        self.linear = nn.Linear(64, 10)
        self.logits = logits

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = F.relu(self.bn1(self.conv1(images)))
        pooled = self.layer3(self.layer2(self.layer1(maps))).mean(dim=(2, 3))
        embeddings: torch.Tensor = self.linear(pooled) if self.logits else pooled
        return embeddings


def published(depth: int, *, logits: bool = False) -> Encoder:
    """ResNet-20 or ResNet-56 as others trained it for CIFAR-10."""
    (file,) = (SHARED / "weights").glob(f"resnet{depth}-*.th")
    state = torch.load(file, map_location="cpu", weights_only=True)["state_dict"]
    network = CifarResNet((depth - 2) // 6, logits=logits)
    network.load_state_dict({name.removeprefix("module."): tensor for name, tensor in state.items()})
    mean, std = channelwise((0.485, 0.456, 0.406), 3), channelwise((0.229, 0.224, 0.225), 3)
    return Encoder(network, {}, mean, std).eval()


def untrained(encoder: Encoder, seed: int) -> Encoder:
    """The same architecture with fresh weights."""
    fresh: Encoder = seeded(seed, lambda: reinitialised(encoder))
    return fresh


def scrambled(encoder: Encoder, seed: int) -> Encoder:
    """All values in the right tensors, but not at their places."""
    generator, state = torch.Generator().manual_seed(seed), encoder.backbone.state_dict()
    mixed = {
        name: tensor.flatten()[torch.randperm(tensor.numel(), generator=generator)].reshape(tensor.shape)
        for name, tensor in state.items()
    }
    return with_state(encoder, mixed)


def with_state(encoder: Encoder, state: dict[str, torch.Tensor]) -> Encoder:
    """A copy with other weights."""
    changed = copy.deepcopy(encoder)
    changed.backbone.load_state_dict(state)
    return changed.eval()
