"""Attribute inference on the embeddings of encoders: its section of the config, and the results of one seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from mi_core.attribute_inference import AttributeInferenceParameters, infer
from mi_core.checks import check_choice
from mi_core.encoders.checkpoint import OUTPUTS
from mi_core.hashing import digest64
from pipelines import storage
from pipelines.artifacts import SeedFolder, digest
from pipelines.errors import UserError
from pipelines.methods import build
from pipelines.shard_jobs import load_features
from pipelines.splits import Splits

if TYPE_CHECKING:
    from pipelines.config import RunConfig

SHOWN = 600  # attacked samples whose embeddings are mapped to the plane


class _Inference(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    attribute: str = Field(description="attribute inferred, of data.attributes")
    target: str = Field(default="target", description="encoder whose embeddings are seen")
    output: str = Field(default="backbone", description="embedding seen")
    auxiliary: tuple[str, ...] = Field(
        default=(), description="roles whose attribute the attacker knows; default: what the encoder was trained on"
    )
    test: tuple[str, ...] = Field(default=("target-nonmember",), min_length=1, description="roles attacked")
    share: float = Field(default=1.0, gt=0, le=1, description="share of the auxiliary data that is used")

    @field_validator("output")
    @classmethod
    def _known_output(cls, value: str) -> str:
        return check_choice("output", value, OUTPUTS)

    @field_validator("auxiliary", "test", mode="before")
    @classmethod
    def _one_role(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> _Inference:
        self.parameters()
        return self

    def parameters(self) -> AttributeInferenceParameters:
        """The attack's own parameters."""
        own = {field.name: getattr(self, field.name) for field in fields(AttributeInferenceParameters)}
        found: AttributeInferenceParameters = build(AttributeInferenceParameters, own)
        return found


if TYPE_CHECKING:
    AttributeInferenceConfig = _Inference
else:
    AttributeInferenceConfig = create_model(
        "AttributeInferenceConfig",
        __base__=_Inference,
        __module__=__name__,
        **{field.name: (field.type, field.default) for field in fields(AttributeInferenceParameters)},
    )


def each_inference(entries: Sequence[Any]) -> list[Any]:
    """Inferences one by one: an entry with lists under attribute, target or output stands for all combinations."""
    spelled = []
    for entry in entries:
        lists = ("attribute", "target", "output")
        named = [name for name in lists if isinstance(entry, dict) and isinstance(entry.get(name), list | tuple)]
        for values in product(*(entry[name] for name in named)):
            spelled.append({**entry, **dict(zip(named, values, strict=True))} if named else entry)
    return spelled


@dataclass(frozen=True)
class Inference:
    """One inference on one checkpoint of one seed."""

    folder: SeedFolder
    config: _Inference
    epoch: int

    @property
    def place(self) -> str:
        """Folder of its results; a function of all that it is."""
        chosen = self.config
        name = f"{chosen.attribute}-{chosen.target}-{chosen.output}-{self.epoch:04d}"
        return f"{self.folder.path}/attribute-inference/{name}-{digest(chosen.model_dump(mode='json'))[:8]}"


def inferences(config: RunConfig, folder: SeedFolder) -> Iterator[Inference]:
    """All attribute inferences of one seed."""
    for chosen in config.attribute_inference:
        for epoch in config.attacked_epochs(chosen.target):
            yield Inference(folder, chosen, epoch)


def run_inference(config: RunConfig, task: Inference) -> None:
    """Infer an attribute and write down what was told right."""
    chosen = task.config
    splits = Splits.load(task.folder.path)
    auxiliary = config.auxiliary_roles(chosen)
    known_ids = _first(splits.ids(auxiliary), chosen.share, task.folder.seed)
    known, known_values = _embeddings(config, task, splits, auxiliary)
    kept = np.array([name in known_ids for name in known.ids])
    tested, values = _embeddings(config, task, splits, chosen.test)
    attribute = config.data.attributes[chosen.attribute]
    found = infer(
        known.values["embedding"][kept],
        known_values[kept],
        tested.values["embedding"],
        values,
        classes=len(attribute.names),
        parameters=chosen.parameters(),
        seed=task.folder.seed,
    )
    table = {"id": tested.ids.tolist(), "value": values, "right": found.right, "guessed": found.guessed}
    storage.write_table(f"{task.place}/inferred.parquet", pa.table(table))
    storage.write_json(
        f"{task.place}/result.json",
        {
            **{name: getattr(chosen, name) for name in ("attribute", "target", "output", "share")},
            "epoch": task.epoch,
            "seed": task.folder.seed,
            "parameters": asdict(chosen.parameters()),
            "values": len(attribute.names),
            "n_auxiliary": int(kept.sum()),
            "accuracy": found.accuracy.as_json(),
            "majority": found.majority.as_json(),
        },
    )


def _embeddings(config: RunConfig, task: Inference, splits: Splits, roles: Sequence[str]) -> tuple[Any, np.ndarray]:
    """Embeddings of some roles and the attribute of each sample.

    Raises:
        UserError: a sample is from a source without the attribute.
    """
    chosen = task.config
    features = load_features(config, task.folder, chosen.target, task.epoch, chosen.output, ["embedding"], roles)
    values = splits.attribute(chosen.attribute)
    missing = [name for name in features.ids if values[name] is None]
    if missing:
        raise UserError(f"attribute_inference: {missing[0]} has no attribute {chosen.attribute}; its source has none")
    return features, np.array([values[name] for name in features.ids], dtype=np.int64)


def _first(ids: Sequence[str], share: float, seed: int) -> set[str]:
    """A share of some samples by rank of a hash: a larger one holds the smaller."""
    ranked = sorted(ids, key=lambda name: digest64(seed, "auxiliary", name))
    return set(ranked[: max(1, round(share * len(ids)))])
