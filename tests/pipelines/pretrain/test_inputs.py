"""What a trained encoder is made from: two points of a sweep share it only if they would train the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.config.run_config import RunConfig
from pipelines.data.draw.draw import draw
from pipelines.data.plans import plan_of
from pipelines.data.scan.scan import scan
from pipelines.plan.load import parse
from pipelines.pretrain.run import training_jobs
from pipelines.run.folder import RunFolder
from tests.conftest import small_config


def labelled(label: str, **attributes: Any) -> RunConfig:
    """A supervised target that learns an attribute, Talos, which hides one, and SimCLR, which reads none."""
    raw = small_config()
    plain = raw["encoders"]["target"]
    raw["data"] |= {"attributes": {"kind": {"from": "class", "values": halves(5)}} | attributes, "label": label}
    raw["encoders"] |= {
        "supervised": {**plain, "objective": "supervised", "parameters": {"classes": 2}},
        "hiding": {**plain, "objective": "talos", "attribute": "kind"},
    }
    return parse(raw, "x")


def halves(first: int) -> dict[str, list[int]]:
    return {"low": list(range(first)), "high": list(range(first, 10))}


@pytest.fixture
def inputs(tmp_path: Path) -> Any:
    """Inputs by encoder name, for roles that are the same whatever the attributes."""
    config = labelled("kind")
    draw(config.data, scan(config.data, f"{tmp_path}/scan"), 0, f"{tmp_path}/seed-0")

    def of(config: RunConfig) -> dict[str, str]:
        return {job.name: job.inputs for job in training_jobs(plan_of(config, RunFolder(str(tmp_path)).seed(0)), 0)}

    return of


def test_encoders_that_learn_or_hide_other_classes_are_others(inputs: Any) -> None:
    kind, other = {"from": "class", "values": halves(5)}, {"from": "class", "values": halves(3)}
    first = inputs(labelled("kind", second=other))
    assert first == inputs(labelled("kind", second=kind))  # nothing reads the second attribute
    changed = {
        "another label": inputs(labelled("second", second=other)),
        "another meaning": inputs(labelled("kind", kind=other, second=other)),
    }
    differ = {how: {name for name in first if made[name] != first[name]} for how, made in changed.items()}
    assert differ == {"another label": {"supervised"}, "another meaning": {"supervised", "hiding"}}
