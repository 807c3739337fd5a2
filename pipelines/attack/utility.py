"""Measure the utility of an encoder: kNN and a linear probe; for classifiers trained here, the overfitting level."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mi_core.metrics.pooled import difference
from mi_core.metrics.utility import classifier_accuracy, knn_accuracy, linear_probe
from pipelines.attack.fit import names_of
from pipelines.data.draw.splits import Splits
from pipelines.extract.features import read
from pipelines.files import storage
from pipelines.plan.items import Reading, Utility
from pipelines.run.folder import SeedFolder

PROBED = 200_000  # samples that a probe is trained on, and as many that it is tested on; of shards drawn at random


def utility_path(folder: SeedFolder, encoder: str, epoch: int) -> str:
    """The file of a checkpoint's utility."""
    return f"{folder.path}/utility/{encoder}-{epoch:04d}.json"


def measure(utility: Utility, folder: SeedFolder) -> None:
    """Measure the utility of one checkpoint and write the result."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    whole = Splits.load(folder.path)

    def labelled(reading: Reading) -> tuple[np.ndarray, np.ndarray]:
        some = whole.sampled(names_of(reading), PROBED, folder.seed) if reading.samples.fold == "all" else whole
        features, labels = read(folder, reading, some), some.labels()
        kept = features.take(np.array([labels[name] is not None for name in features.ids], dtype=bool))
        return kept.values["embedding"], np.array([labels[name] for name in kept.ids], dtype=np.int64)

    result: dict[str, Any] = {"probes": {}}
    if utility.bank is not None and utility.test is not None:
        bank, test = labelled(utility.bank), labelled(utility.test)
        if len(test[1]):
            for position, k in enumerate(utility.neighbours):
                if len(bank[1]) > k:
                    name = f"knn_{k}" if position else "knn"
                    result["probes"][name] = knn_accuracy(*bank, *test, k=k, device=device).as_json()
            if len(np.unique(bank[1])) > 1:
                result["probes"]["linear"] = linear_probe(*bank, *test, device=device).as_json()
    if utility.trained is not None and utility.unseen is not None:
        train, unseen = (classifier_accuracy(*labelled(reading)) for reading in (utility.trained, utility.unseen))
        result["classifier"] = {
            "train_accuracy": train.as_json(),
            "test_accuracy": unseen.as_json(),
            "overfitting": difference(unseen, train).as_json(),  # as ContrastiveLeaks (CCS 2021), section 3.4
        }
    storage.write_json(utility_path(folder, utility.encoder.name, utility.epoch), result)
