"""Measure the utility of an encoder: kNN and a linear probe; for classifiers trained here, the overfitting level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mi_core.features.embedding import Embedding
from mi_core.metrics.utility import classifier_accuracy, knn_accuracy, linear_probe, overfitting_level
from mi_core.records import among
from pipelines.config.demands import Asking
from pipelines.config.run_config import RunConfig
from pipelines.data.draw.splits import Splits
from pipelines.extract.features import load_features
from pipelines.files import storage
from pipelines.run.folder import SeedFolder

PROBED = 200_000  # samples that a probe is trained on, and as many that it is tested on; of shards drawn at random


def utility_path(folder: SeedFolder, encoder: str, epoch: int) -> str:
    """The file of a checkpoint's utility."""
    return f"{folder.path}/utility/{encoder}-{epoch:04d}.json"


def measure(config: RunConfig, folder: SeedFolder, encoder: str, epoch: int) -> None:
    """Measure the utility of one checkpoint and write the result."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    splits = Splits.load(folder.path)

    def labelled(output: str, roles: Sequence[str], fold: str = "all") -> tuple[np.ndarray, np.ndarray]:
        some = splits.sampled(roles, PROBED, folder.seed) if fold == "all" else splits
        features = load_features(config, folder, Asking(encoder), epoch, output, [Embedding()], roles, some)
        labels, chosen = some.labels(), some.fold(roles, fold, folder.seed)
        kept = features.take(among(features.ids, {name for name in chosen if labels[name] is not None}))
        return kept[Embedding()], np.array([labels[name] for name in kept.ids], dtype=np.int64)

    result: dict[str, Any] = {"probes": {}}
    bank_roles, test_roles = config.utility_roles(encoder)
    if bank_roles and test_roles:
        bank, test = labelled("backbone", bank_roles), labelled("backbone", test_roles, config.fold)
        if len(test[1]):
            for position, k in enumerate(config.utility.k):
                if len(bank[1]) > k:
                    name = f"knn_{k}" if position else "knn"
                    result["probes"][name] = knn_accuracy(*bank, *test, k=k, device=device).as_json()
            if len(np.unique(bank[1])) > 1:
                result["probes"]["linear"] = linear_probe(*bank, *test, device=device).as_json()
    roles = config.classifier_roles(encoder)
    if all(roles) and roles:
        folds = ("all", config.fold)  # of what it was trained on, and of what it is tested on
        train, unseen = (
            classifier_accuracy(*labelled("logits", group, fold)) for group, fold in zip(roles, folds, strict=True)
        )
        result["classifier"] = {
            "train_accuracy": train.as_json(),
            "test_accuracy": unseen.as_json(),
            "overfitting": overfitting_level(train, unseen).as_json(),
        }
    storage.write_json(utility_path(folder, encoder, epoch), result)
