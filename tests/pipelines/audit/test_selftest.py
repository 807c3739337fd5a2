"""The self-test: the record of a case leads to its report."""

from __future__ import annotations

import json
from pathlib import Path

from pipelines.audit.selftest import outcome
from pipelines.run.folder import RunFolder


def test_a_case_names_its_report_and_is_right_where_the_verdict_is_as_planted(tmp_path: Path) -> None:
    validity = {"verdict": "leak", "attack_auc": {"value": 0.9}}
    (tmp_path / "report.json").write_text(json.dumps({"validity": validity}))
    assert outcome("leak", RunFolder(str(tmp_path))).as_json() == {
        "name": "leak",
        "planted": "an encoder trained on the members",
        "expected": "leak",
        "verdict": "leak",
        "right": True,
        "report": f"{tmp_path}/report.html",
        "attack_auc": {"value": 0.9},
    }
    assert not outcome("size", RunFolder(str(tmp_path))).right
