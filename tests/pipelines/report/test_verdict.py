"""The verdict of a run heeds every attack that was planned, from the scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mi_core.metrics.delong import auc
from mi_core.registration import is_after_looking
from mi_core.report.build import verdict_part
from mi_core.validity.verdict import CHOICE, Validity, judge
from pipelines.audit.run import register
from pipelines.plan.load import parse
from pipelines.report.gate import Gate
from pipelines.report.statement import FAILS, verify, write
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run
from pipelines.run.registration import lines_of
from tests.conftest import small_config
from tests.mi_core.validity.test_verdict import MEMBER, QUIET, scores
from tests.pipelines.report.made import made_run

pytestmark = pytest.mark.ray


def told(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "report.json").read_text())["validity"]
    return found


def test_no_evidence_is_not_said_where_a_planned_attack_finds_something(tmp_path: Path) -> None:
    """The first attack has an AUC of about .5, the second a high one; the gate cannot tell."""
    run = made_run(tmp_path / "run", others=1.5)
    found = told(run)
    assert (found["verdict"], found["reason"]) == ("undecided", "another-attack")
    assert found["attack_auc"]["ci95"][0] < 0.5 and found["p_value"] > 0.01 >= found["other_p"]
    assert found["other_attack"] == "encodermi-t, fitted on shadow, on the backbone output"
    (condition,) = Gate().judge(str(run))
    assert (condition.outcome, condition.reason) == ("cannot tell", "verdict undecided (another-attack)")
    write(str(run))
    assert FAILS not in {check.outcome for check in verify(str(run / "statement.json"), str(run))}
    statement = json.loads((run / "statement.json").read_text())
    statement["predicate"]["verdict"] |= {"verdict": "no-evidence", "reason": "nothing-found"}
    (run / "statement.json").write_text(json.dumps(statement))
    faults = [one.text for one in verify(str(run / "statement.json"), str(run)) if one.outcome == FAILS]
    assert any("by the rule its numbers give undecided (another-attack)" in fault for fault in faults)


def test_a_leak_rests_on_the_first_attack_alone(tmp_path: Path) -> None:
    for number, (leak, others) in enumerate(((True, 1.5), (True, 0.0), (False, 0.0))):
        found = told(made_run(tmp_path / str(number), leak=leak, others=others))
        assert found["verdict"] == ("leak" if leak else "no-evidence") and "other_p" not in found


def test_a_planned_attack_that_is_left_out_later_was_chosen_after_looking(tmp_path: Path) -> None:
    run = RunFolder(str(made_run(tmp_path / "run", others=1.5)))
    assert not is_after_looking(lines_of(run))
    fewer = small_config()
    fewer["attacks"] = fewer["attacks"][:1]
    register([Run(parse(fewer, "small.yaml"), run)])
    assert is_after_looking(lines_of(run))
    register([Run(parse(small_config(), "small.yaml"), run)])
    assert is_after_looking(lines_of(run))


def test_by_choice_attacks_that_succeed_on_references_do_not_count() -> None:
    def judged(gap: float, control: float = 0.0, planned: int = 2) -> tuple[str, str | None, str | None]:
        quiet = Validity(auc(scores(0, 9), MEMBER), QUIET.blind_auc, QUIET.control_auc, by=CHOICE, trained=True)
        other = judge(scores(gap, 1), None, scores(control, 2), MEMBER)
        part = verdict_part({0: quiet}, others=lambda: {"lpla": [other]}, planned=planned)
        return part.verdict, part.reason, part.other_attack

    assert judged(1.0) == ("undecided", "another-attack", "lpla")
    assert judged(1.0, 1.0) == ("no-evidence", "nothing-found", None)
    assert judged(0.0) == ("no-evidence", "nothing-found", None)
    assert judged(0.4)[1] == "another-attack"
    assert judged(0.4, planned=10**6)[1] == "nothing-found"  # corrected for all that were ever planned
