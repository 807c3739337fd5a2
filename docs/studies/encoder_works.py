"""Error rates of the check that an encoder works, on small networks trained here and on broken ones.

``python -m docs.studies.encoder_works RESULT.json CACHE`` trains encoders on CIFAR-10, breaks as many, asks of each
whether it works, and writes the answers and both error rates. CACHE is a folder that keeps the trained networks. The
views, the test and its level were chosen on other networks: own ones of other seeds, and the two published ones.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from docs.studies.shared import CLASSES, MILD, SMALL_TEXT, cifar10, published, scrambled, untrained, with_state
from mi_core.augmentations import AUGMENTATIONS
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.encoders.checkpoint import Encoder
from mi_core.metrics.intervals import rate
from mi_core.metrics.utility import knn_accuracy
from mi_core.objectives import OBJECTIVES
from mi_core.querying.sanity import view_consistency
from mi_core.records import Estimate
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters

SHIFTED = SimCLRAugmentation(crop_scale=(0.7, 1.0), jitter_probability=0, grayscale=0)
KINDS = (  # objective, backbone, views (None: its own), epochs
    ("supervised", "resnet8", None, 4),
    ("supervised", "resnet8-wide", SHIFTED, 4),
    ("supervised", "vit-tiny/8", SHIFTED, 10),
    ("clip", "resnet8-narrow", None, 5),
    ("clip", "vit-tiny/8", SHIFTED, 10),
    ("simclr", "resnet8", None, 6),
    ("simclr", "resnet8", MILD, 6),
    ("others", "resnet8", None, 5),
)
OTHERS = ("moco-v1", "vicreg", "siglip", "moco-v2")
SETTINGS = {
    "clip": SMALL_TEXT,
    "siglip": SMALL_TEXT,
    "moco-v1": {"queue": 1000},
    "moco-v2": {"queue": 1000},
    "vicreg": {"projection_hidden": 512, "projection_width": 512},
}


def pretrainer(seed: int, images: torch.Tensor, classes: torch.Tensor) -> Pretrainer:
    """What trains the encoder of a seed: kind, epochs, images and weights differ from seed to seed."""
    objective, backbone, views, epochs = KINDS[seed % len(KINDS)]
    if objective == "others":
        objective = OTHERS[seed // len(KINDS) % len(OTHERS)]
    framework = OBJECTIVES[objective]
    settings = framework.Parameters(**SETTINGS.get(objective, {}))
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(25, 36, (), generator=generator)) * 100
    rows = torch.randperm(len(images), generator=generator)[:count]
    labels = classes[rows].tolist()
    captions = [f"a photo of a {CLASSES[label]}" for label in labels]
    targets = framework.encode_targets(settings, labels, captions) if framework.target else None
    names = [("train", str(int(row))) for row in rows]
    data = ResidentImages(images[rows], names, targets, batch_size=100, seed=seed)
    rate = OptimizerParameters(learning_rate=1e-3 if "vit" in backbone else 2e-3, schedule="cosine", warmup=0.1)
    how = PretrainingParameters(backbone, objective, settings, rate, epochs=epochs, batch_size=100)
    return Pretrainer(data, views or AUGMENTATIONS[objective](), how, seed=seed)


def trained(seed: int, images: torch.Tensor, classes: torch.Tensor, cache: Path) -> list[Encoder]:
    """The encoders of a seed two epochs before the end and at the end, from the cache if they are there."""
    made = []
    for early in (2, 0):
        worker = pretrainer(seed, images, classes)
        file = cache / f"{seed}-{early}.pt"
        if not file.exists():
            before = cache / f"{seed}-2.state"
            if not early:
                worker.load_state_bytes(before.read_bytes())
            while worker.epoch < worker.parameters.epochs - early:
                worker.train_epoch()
            if early:
                before.write_bytes(worker.state_bytes())
            torch.save(worker.module.state_dict(), file)
        worker.module.load_state_dict(torch.load(file))
        made.append(worker.encoder().eval())
    return made


def half_loaded(encoder: Encoder, seed: int) -> Encoder:
    """Half of the tensors, drawn one by one, are those of an untrained network."""
    generator, fresh = torch.Generator().manual_seed(seed), untrained(encoder, seed + 500).backbone.state_dict()
    state = encoder.backbone.state_dict()
    lost = [name for name in state if float(torch.rand((), generator=generator)) < 0.5]
    return with_state(encoder, state | {name: fresh[name] for name in lost})


def of_bytes(encoder: Encoder, seed: int) -> Encoder:
    """It gets pixels from 0 to 255, and no normalisation."""
    return _normalised(encoder, 1 / 255)


def unnormalised(encoder: Encoder, seed: int) -> Encoder:
    """It gets pixels from 0 to 1, and no normalisation."""
    return _normalised(encoder, 1.0)


def _normalised(encoder: Encoder, std: float) -> Encoder:
    changed = copy.deepcopy(encoder)
    changed.mean.zero_()
    changed.std.fill_(std)
    return changed


class _Swapped(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = self.network(images.flip(1))
        return embeddings


def blue_first(encoder: Encoder, seed: int) -> Encoder:
    """It gets the colours in the wrong order, each normalised as the one whose place it takes."""
    return Encoder(_Swapped(encoder.backbone), {}, encoder.mean.flip(1), encoder.std.flip(1)).eval()


BROKEN = {
    "random weights": untrained,
    "scrambled": scrambled,
    "half loaded": half_loaded,
    "pixels 0 to 255": of_bytes,
    "no normalisation": unnormalised,
    "BGR": blue_first,
}
NEVER_USEFUL = ("random weights", "scrambled")  # kNN is measured of the others alone


class Judge:
    """Asks of encoders whether they work, and how useful they are: kNN of the ten classes."""

    def __init__(self) -> None:
        self.bank, self.test = cifar10("train", 2), cifar10("test", 0)
        self.shown = cifar10("test", 1)[0]
        self.rows: list[dict[str, Any]] = []

    @torch.inference_mode()
    def accuracy(self, encoder: Encoder) -> Estimate:
        """kNN with k = 20 on 2,000 labelled and 1,000 test images."""
        sides = []
        for (images, classes), count in ((self.bank, 2000), (self.test, 1000)):
            parts = [encoder(part.float() / 255)["backbone"].numpy() for part in images[:count].split(250)]
            sides += [np.concatenate(parts), classes[:count].numpy()]
        return knn_accuracy(*sides, k=20)

    def works(self, encoder: Encoder, fresh: Encoder | None, recipe: str, seed: int) -> dict[str, Any]:
        """Whether it works by 256 test images, other ones for other seeds, in an audit with a recipe."""
        start = seed * 97 % (len(self.shown) - 256)
        keys = torch.arange(256) + 1000 * seed
        return view_consistency(encoder, fresh, self.shown[start : start + 256], keys, AUGMENTATIONS[recipe]())

    def ask(self, name: str, kind: str, encoder: Encoder, fresh: Encoder, base: Estimate, seed: int) -> None:
        """Judge one encoder beside untrained weights, and beside raw pixels alone."""
        recipe = sorted(AUGMENTATIONS)[seed % len(AUGMENTATIONS)]
        shown = self.works(encoder, fresh, recipe, seed)
        knn = None if kind in NEVER_USEFUL else self.accuracy(encoder)
        row = {"name": name, "kind": kind, "views": recipe, "works": shown["works"]}
        row["works_beside_pixels"] = any(
            way["baselines"]["raw pixels"]["p"] <= 0.0125 and way["baselines"]["raw pixels"]["mean"]["value"] < 0.95
            for way in shown["ranking"]
        )
        hard = shown["ranking"][0]
        row["rank"] = {"encoder": hard["encoder"]["value"]}
        row["rank"] |= {of: entry["mean"]["value"] for of, entry in hard["baselines"].items()}
        row |= {"knn": knn and knn.as_json(), "knn_fresh": base.as_json()}
        row["useful"] = knn is not None and knn.low > base.high
        self.rows.append(row)
        told = ", ".join(f"{of} {value:.3f}" for of, value in row["rank"].items())
        sys.stderr.write(f"{name}, {kind}, {recipe}: {shown['works']}, {told}, kNN {knn and round(knn.value, 3)}\n")


def summary(rows: list[dict[str, Any]], wanted: bool, key: str = "works") -> dict[str, Any]:
    """How often the answer was wrong, with the Clopper-Pearson interval, by kind and of all."""
    by_kind: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        by_kind[row["kind"]].append(row[key] is not wanted)
    every = [one for some in by_kind.values() for one in some]
    kinds = {kind: {"wrong": sum(some), "n": len(some)} for kind, some in by_kind.items()}
    return {"error": rate(sum(every), len(every)).as_json(), "kinds": kinds} if every else {"kinds": {}}


def main(result: Path, cache: Path, runs: int = 24) -> dict[str, Any]:
    """Train, break, ask, and write both error rates; also returns what it writes."""
    torch.set_num_threads(1)
    started = time.monotonic()
    cache.mkdir(parents=True, exist_ok=True)
    images, classes = cifar10("train", 0, 1)
    judge = Judge()
    for depth, logits in ((20, False), (20, True), (56, False), (56, True)):
        name = f"ResNet-{depth}{', logits' if logits else ''}"
        encoder = published(depth, logits=logits)
        fresh = untrained(encoder, 77)
        base = judge.accuracy(fresh)
        judge.ask(name, "published", encoder, fresh, base, depth)
        if depth == 20 and not logits:
            for number, (kind, change) in enumerate(BROKEN.items()):
                judge.ask(name, kind, change(encoder, depth + number), fresh, base, depth + number)
    written: dict[str, Any] = {}
    for seed in range(runs):
        early, final = trained(seed, images, classes, cache)
        objective, backbone, _, _ = KINDS[seed % len(KINDS)]
        name = f"{seed}: {objective} {backbone}"
        fresh = untrained(final, 900 + seed)
        base = judge.accuracy(fresh)
        judge.ask(f"{name}, two epochs before", f"trained: {objective}", early, fresh, base, 2 * seed)
        judge.ask(name, f"trained: {objective}", final, fresh, base, 2 * seed + 1)
        kinds = list(BROKEN)
        for kind in ("random weights", kinds[1 + seed % 2], kinds[3 + seed % 3]):
            judge.ask(name, kind, BROKEN[kind](final, seed), fresh, base, 3 * seed)
        written = table(judge.rows) | {"seconds": round(time.monotonic() - started), "networks": judge.rows}
        result.write_text(json.dumps(written, indent=1) + "\n")
    return written


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Both error rates; what was changed but stays useful counts as neither trained nor broken."""
    working = [row for row in rows if row["kind"] not in BROKEN and row["useful"]]
    wrecked = [row for row in rows if row["kind"] in BROKEN and not row["useful"]]
    changed = [row for row in rows if row["kind"] in BROKEN and row["useful"]]
    return {
        "trained_called_broken": summary(working, True),
        "broken_called_working": summary(wrecked, False),
        "changed_but_useful_called_broken": summary(changed, True),
        "trained_but_not_useful": [row["name"] for row in rows if row["kind"] not in BROKEN and not row["useful"]],
        "beside_pixels_alone": {
            "trained_called_broken": summary(working, True, "works_beside_pixels"),
            "broken_called_working": summary(wrecked, False, "works_beside_pixels"),
        },
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
