"""Infer attributes from embeddings, for one seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mi_core.attacks.attribute_inference import infer
from mi_core.hashing import digest64
from mi_core.records import Features, among
from pipelines.attack.fit import names_of
from pipelines.config.sections.attacks import AttributeInferenceConfig
from pipelines.config.sections.parameters import told_apart
from pipelines.data.draw.parts import overlap_of
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned
from pipelines.errors import UserError
from pipelines.extract.features import read
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.plan.items import Inference, Plan, Reading
from pipelines.run.folder import SeedFolder

SHOWN = 600  # attacked samples whose embeddings are mapped to the plane


def _entry(chosen: AttributeInferenceConfig) -> tuple[str, str, str]:
    return chosen.attribute, chosen.target, chosen.output


def inference_path(item: Inference, folder: SeedFolder) -> str:
    """File of the result, named by a digest of all settings."""
    chosen = item.settings
    name = f"{'-'.join(_entry(chosen))}-{item.epoch:04d}-{digest(chosen.model_dump(mode='json'))[:8]}"
    return f"{folder.path}/attribute-inference/{name}.json"


def map_path(item: Inference, folder: SeedFolder) -> str:
    """File of the attacked samples' embeddings in the plane: one for each attribute, target, output and roles."""
    name = f"{'-'.join(_entry(item.settings))}-{item.epoch:04d}-{digest(item.settings.test)[:8]}"
    return f"{folder.path}/attribute-inference/map-{name}.parquet"


def planes(plan: Plan, folder: SeedFolder) -> list[Inference]:
    """The inferences of one seed whose embeddings are mapped: the first per map, at the last checkpoint."""
    first: dict[str, Inference] = {}
    for item in plan.inferences:
        if item.last:
            first.setdefault(map_path(item, folder), item)
    return list(first.values())


def run_plane(item: Inference, folder: SeedFolder) -> None:
    """Map embeddings to the plane and write the points with class and attribute."""
    from mi_core.report.figures.curves import plane  # what drawing needs takes seconds to import, in every process

    splits = Splits.load(folder.path)
    features, values = _embeddings(item, folder, splits, item.tested)
    shown = _first(features.ids.tolist(), min(1.0, SHOWN / max(1, len(features))), item.seed)
    kept = among(features.ids, shown)
    points = plane(features.values["embedding"][kept], item.seed)
    labels = splits.labels()
    classes = [labels[name] for name in features.ids[kept]]
    known = [-1 if label is None else label for label in classes]
    table = {"id": features.ids[kept].tolist(), "x": points[:, 0], "y": points[:, 1], "class": known}
    storage.write_table(map_path(item, folder), pa.table(table | {"value": values[kept]}))


def run_inference(item: Inference, folder: SeedFolder) -> None:
    """Infer an attribute and write its accuracy."""
    chosen, splits = item.settings, Splits.load(folder.path)
    known_ids = _first(splits.ids(names_of(item.known)), chosen.share, item.seed)
    known, known_values = _embeddings(item, folder, splits, item.known)
    kept = among(known.ids, known_ids)
    tested, values = _embeddings(item, folder, splits, item.tested)
    inferred = infer(
        known.values["embedding"][kept],
        known_values[kept],
        tested.values["embedding"],
        values,
        classes=item.values,
        parameters=chosen.parameters(),
        seed=item.seed,
    )
    storage.write_json(
        inference_path(item, folder),
        {
            **dict(zip(("attribute", "target", "output"), _entry(chosen), strict=True)),
            "epoch": item.epoch,
            "seed": item.seed,
            "values": item.values,
            "n_auxiliary": int(kept.sum()),
            "accuracy": inferred.accuracy.as_json(),
            "auxiliary_accuracy": inferred.auxiliary_accuracy.as_json(),
            "majority": inferred.majority.as_json(),
        },
    )


def inferred(
    planned: Planned, every: Sequence[AttributeInferenceConfig], seeds: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Results of one seed, for the report, with the shares of samples that recur in another seed.

    Args:
        planned: the plan of the seed.
        every: all inferences of the config: the settings in which they differ are named.
        seeds: of the run.

    Raises:
        UserError: an inference has not run.
    """
    plan, folder = planned
    for item in plan.inferences:
        path = inference_path(item, folder)
        if not storage.exists(path):
            raise UserError(f"{path} is missing; run the attack stage first")
        chosen = item.settings
        settings = told_apart(chosen, [other for other in every if _entry(other) == _entry(chosen)])
        again = {
            "overlap": overlap_of(plan.data, seeds, folder, names_of(item.tested)),
            "auxiliary_overlap": chosen.share * overlap_of(plan.data, seeds, folder, names_of(item.known)),
        }
        yield storage.read_json(path) | again | ({"settings": settings} if settings else {})


def _embeddings(item: Inference, folder: SeedFolder, splits: Splits, reading: Reading) -> tuple[Features, np.ndarray]:
    """Embeddings of some samples, and the attribute of each.

    Raises:
        UserError: a sample is from a source without the attribute.
    """
    attribute = item.settings.attribute
    features, values = read(folder, reading), splits.attribute(attribute)
    missing = [name for name in features.ids if values[name] is None]
    if missing:
        raise UserError(f"attribute_inference: {missing[0]} has no attribute {attribute}; its source has none")
    return features, np.array([values[name] for name in features.ids], dtype=np.int64)


def _first(ids: Sequence[str], share: float, seed: int) -> set[str]:
    """A share of some samples by rank of a seeded hash; a larger share contains each smaller one."""
    return set(sorted(ids, key=lambda name: digest64(seed, "auxiliary", name))[: max(1, round(share * len(ids)))])
