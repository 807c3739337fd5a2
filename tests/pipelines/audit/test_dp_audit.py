"""A planted truth through the whole chain: noise that was forgotten is refuted, honest noise is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mi_core.report.contents import schema
from pipelines.audit import run as audit
from pipelines.data.draw.splits import Splits
from pipelines.plan.load import load
from pipelines.run.registration import lines_of

SHIPPED = Path(__file__).parents[3] / "configs" / "dp-audit.yaml"


@pytest.mark.slow
def test_forgotten_noise_is_refuted_and_honest_noise_is_not(local_ray: None, tmp_path: Path) -> None:
    folder = audit.run(load(str(SHIPPED)), str(tmp_path))
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(report, schema())
    found = {entry["target"]: entry for entry in report["dp_audit"]}
    assert found["target+honest"]["verdict"] == "not-refuted"
    assert found["target+honest"]["epsilon"] <= 1.0
    assert found["target+noise-forgotten"]["verdict"] == "refuted"
    assert found["target+noise-forgotten"]["epsilon"] > 1.0 and found["target+noise-forgotten"]["p_value"] < 0.05
    assert found["target"]["verdict"] == "no-promise"
    splits = Splits.load(folder.seed(0).path)
    for entry in found.values():
        assert (entry["canaries"], entry["inside"]) == (300, splits.count(["canary-in"]))
    registered = next(line["dp_audit"] for line in lines_of(folder) if line["event"] == "plan")
    assert (registered["epsilon"], registered["attack"]) == (1.0, 0)
    assert "refuted" in (tmp_path / "report.html").read_text()
