"""Infer attributes from embeddings, for one seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mi_core.attacks.attribute_inference import infer
from mi_core.features.embedding import Embedding
from mi_core.hashing import digest64
from mi_core.records import Features, among
from pipelines.attack.tasks import of_fold
from pipelines.config.demands import Asking
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import AttributeInferenceConfig
from pipelines.config.sections.parameters import told_apart
from pipelines.data.draw.overlap import overlap_of
from pipelines.data.draw.splits import Splits
from pipelines.errors import UserError
from pipelines.extract.features import load_features
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.folder import SeedFolder

SHOWN = 600  # attacked samples whose embeddings are mapped to the plane


def settings_of(config: RunConfig, chosen: AttributeInferenceConfig) -> str:
    """The settings that distinguish an inference from others of its attribute, target and output; else empty."""
    return told_apart(chosen, [other for other in config.attribute_inference if _entry(other) == _entry(chosen)])


def _entry(chosen: AttributeInferenceConfig) -> tuple[str, str, str]:
    return chosen.attribute, chosen.target, chosen.output


@dataclass(frozen=True)
class Inference:
    """One inference on one checkpoint of one seed."""

    folder: SeedFolder
    config: AttributeInferenceConfig
    epoch: int

    @property
    def path(self) -> str:
        """File of the result, named by a digest of all settings."""
        chosen = self.config
        name = f"{'-'.join(_entry(chosen))}-{self.epoch:04d}-{digest(chosen.model_dump(mode='json'))[:8]}"
        return f"{self.folder.path}/attribute-inference/{name}.json"

    @property
    def map_path(self) -> str:
        """File of the attacked samples' embeddings in the plane: one for each attribute, target, output and roles."""
        name = f"{'-'.join(_entry(self.config))}-{self.epoch:04d}-{digest(self.config.test)[:8]}"
        return f"{self.folder.path}/attribute-inference/map-{name}.parquet"


def inferences(config: RunConfig, folder: SeedFolder) -> Iterator[Inference]:
    """All attribute inferences of one seed."""
    for chosen in config.attribute_inference:
        for epoch in config.attacked_epochs(chosen.target):
            yield Inference(folder, chosen, epoch)


def planes(config: RunConfig, folder: SeedFolder) -> list[Inference]:
    """The inferences of one seed whose embeddings are mapped: the first per map, at the last checkpoint."""
    first: dict[str, Inference] = {}
    for task in inferences(config, folder):
        if task.epoch == config.attacked_epochs(task.config.target)[-1]:
            first.setdefault(task.map_path, task)
    return list(first.values())


def run_plane(config: RunConfig, task: Inference) -> None:
    """Map embeddings to the plane and write the points with class and attribute."""
    from mi_core.report.attributes import plane  # what drawing needs takes seconds to import, in every process

    splits = Splits.load(task.folder.path)
    features, values = _embeddings(config, task, splits, task.config.test)
    shown = _first(features.ids.tolist(), min(1.0, SHOWN / max(1, len(features))), task.folder.seed)
    kept = among(features.ids, shown)
    points = plane(features[Embedding()][kept], task.folder.seed)
    labels = splits.labels()
    classes = [labels[name] for name in features.ids[kept]]
    table = {
        "id": features.ids[kept].tolist(),
        "x": points[:, 0],
        "y": points[:, 1],
        "class": [-1 if label is None else label for label in classes],
        "value": values[kept],
    }
    storage.write_table(task.map_path, pa.table(table))


def run_inference(config: RunConfig, task: Inference) -> None:
    """Infer an attribute and write its accuracy."""
    chosen = task.config
    splits = Splits.load(task.folder.path)
    auxiliary = config.auxiliary_roles(chosen)
    known_ids = _first(splits.ids(auxiliary), chosen.share, task.folder.seed)
    known, known_values = _embeddings(config, task, splits, auxiliary)
    kept = among(known.ids, known_ids)
    tested, values = _embeddings(config, task, splits, chosen.test, judged=True)
    attribute = config.data.attributes[chosen.attribute]
    inferred = infer(
        known[Embedding()][kept],
        known_values[kept],
        tested[Embedding()],
        values,
        classes=len(attribute.names),
        parameters=chosen.parameters(),
        seed=task.folder.seed,
    )
    storage.write_json(
        task.path,
        {
            **dict(zip(("attribute", "target", "output"), _entry(chosen), strict=True)),
            "epoch": task.epoch,
            "seed": task.folder.seed,
            "values": len(attribute.names),
            "n_auxiliary": int(kept.sum()),
            "accuracy": inferred.accuracy.as_json(),
            "auxiliary_accuracy": inferred.auxiliary_accuracy.as_json(),
            "majority": inferred.majority.as_json(),
        },
    )


def inferred(config: RunConfig, folder: SeedFolder) -> Iterator[dict[str, Any]]:
    """Results of one seed, for the report, with the shares of samples that recur in another seed.

    Raises:
        UserError: an inference has not run.
    """
    for task in inferences(config, folder):
        if not storage.exists(task.path):
            raise UserError(f"{task.path} is missing; run the attack stage first")
        settings = settings_of(config, task.config)
        chosen = task.config
        again = {
            "overlap": overlap_of(config, folder, chosen.test),
            "auxiliary_overlap": chosen.share * overlap_of(config, folder, config.auxiliary_roles(chosen)),
        }
        yield storage.read_json(task.path) | again | ({"settings": settings} if settings else {})


def _embeddings(
    config: RunConfig, task: Inference, splits: Splits, roles: Sequence[str], *, judged: bool = False
) -> tuple[Features, np.ndarray]:
    """Embeddings of some roles and the attribute of each sample; those that are judged of the fold alone.

    Raises:
        UserError: a sample is from a source without the attribute.
    """
    chosen = task.config
    features = load_features(
        config, task.folder, Asking(chosen.target), task.epoch, chosen.output, [Embedding()], roles
    )
    if judged:
        features = of_fold(config, task.folder, splits, features, roles)
    values = splits.attribute(chosen.attribute)
    missing = [name for name in features.ids if values[name] is None]
    if missing:
        raise UserError(f"attribute_inference: {missing[0]} has no attribute {chosen.attribute}; its source has none")
    return features, np.array([values[name] for name in features.ids], dtype=np.int64)


def _first(ids: Sequence[str], share: float, seed: int) -> set[str]:
    """A share of some samples by rank of a seeded hash; a larger share contains each smaller one."""
    ranked = sorted(ids, key=lambda name: digest64(seed, "auxiliary", name))
    return set(ranked[: max(1, round(share * len(ids)))])
