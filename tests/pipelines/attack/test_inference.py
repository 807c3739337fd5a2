"""Files of inferred attributes: a result belongs to its settings, a map of embeddings to the samples that it shows."""

from __future__ import annotations

from typing import Any

from pipelines.attack.inference import Inference
from pipelines.config.sections.attacks import AttributeInferenceConfig
from pipelines.run.folder import SeedFolder


def inference(**settings: Any) -> Inference:
    chosen = {"attribute": "kind", "target": "target", "test": ["target-nonmember"]}
    return Inference(SeedFolder("run/seed-0", 0), AttributeInferenceConfig.model_validate(chosen | settings), 3)


def test_other_samples_have_another_map_and_other_settings_another_result() -> None:
    first, deeper, other = inference(), inference(layers=5), inference(test=["shadow-nonmember"])
    assert first.map_path == deeper.map_path != other.map_path
    assert len({first.path, deeper.path, other.path}) == 3
