"""Files of inferred attributes: a result belongs to its settings, a map of embeddings to the samples that it shows."""

from __future__ import annotations

from typing import Any

from pipelines.attack.inference import inference_path, map_path
from pipelines.plan.items import Inference
from pipelines.plan.load import parse
from pipelines.run.folder import SeedFolder
from tests.conftest import small_config
from tests.pipelines.undrawn import plan_in

FOLDER = SeedFolder("run/seed-0", 0)


def inference(**settings: Any) -> Inference:
    chosen = {"attribute": "digit", "target": "target", "test": ["target-nonmember"]}
    raw = small_config(attribute_inference=[chosen | settings], checkpoints="last")
    raw["data"]["attributes"] = {"digit": {"from": "class", "values": list(range(10))}}
    (item,) = plan_in(parse(raw, "small.yaml")).inferences
    return item


def test_other_samples_have_another_map_and_other_settings_another_result() -> None:
    first, deeper, other = inference(), inference(layers=5), inference(test=["shadow-nonmember"])
    assert map_path(first, FOLDER) == map_path(deeper, FOLDER) != map_path(other, FOLDER)
    assert len({inference_path(item, FOLDER) for item in (first, deeper, other)}) == 3
