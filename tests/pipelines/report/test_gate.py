"""The gate: what passes, fails or cannot be told, its exit codes and line, JUnit XML read back, and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mi_core.report.model.report import report_from_json
from mi_core.validity.power import detectable_auc
from pipelines.errors import UserError
from pipelines.report.gate import EXIT_CODES, LEAST_AUC, Gate, junit, line, outcome_of
from tests.mi_core.report.conftest import BOUNDED, LIMITS
from tests.pipelines.report.stating import called
from tests.pipelines.report.test_compare import rate, report, row

pytestmark = pytest.mark.ray

Write = Callable[..., str]
QUICK = {"blind_auc": rate(0.5), "by": "choice", "trained": False, "verdict": "no-evidence", "reason": "nothing-found"}


def judged(verdict: str, **more: Any) -> dict[str, Any]:
    checks = {"blind_auc": rate(0.5), "control_auc": rate(0.5), "trained": True, "by": "choice"}
    return {"attack_auc": rate(0.6), **checks, "verdict": verdict, "reason": "nothing-found"} | more


def seeing(auc: float | None) -> dict[str, Any]:
    """The part ``evidence`` of an audit that finds a leak of an AUC in four of five cases; None: of none."""
    power = [{"used": 1.0} | ({} if auc is None else {"auc": auc})]
    counts = {"n_candidate": 440, "n_control": 440, "fpr_floor": 0.02, "grouped": False}
    return {"exchangeable": True, "blind_auc": rate(0.5), "telling": [], "power": power, **counts}


def bounded(low: float, high: float) -> list[dict[str, Any]]:
    """The part ``bounds`` of two attacks, of which the second reaches more."""
    few = [LIMITS[0] | {"low": 0.48, "high": 0.50}, LIMITS[2] | {"low": low, "high": high}]
    return [BOUNDED | {"at_most": high, "attack": "encodermi-t", "attacks": 2, "planned": 2, "limits": few}]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a report into a run folder of some name."""

    def into(name: str = "run", **parts: Any) -> str:
        (tmp_path / name).mkdir(exist_ok=True)
        attacks = [row("lpla", parts.pop("auc", 0.6), parts.pop("reach", 0.05), primary=True), row("feature-mi", 0.5)]
        settings = {"name": "small", "queries": {"views": 10}, "attacks": [{"attack": "lpla"}]}
        given = {"attacks": attacks, "validity": judged("no-evidence"), "evidence": seeing(0.67), "config": settings}
        (tmp_path / name / "report.json").write_text(json.dumps(report(**given | parts)))
        return str(tmp_path / name)

    return into


def outcomes(run: str, fail_on: str | None = None, max_auc: float | None = None, worse_than: str | None = None) -> dict:
    conditions = Gate.from_options(fail_on, max_auc, worse_than).judge(run)
    return {condition.name: condition.outcome for condition in conditions}


@pytest.mark.parametrize(
    ("verdict", "fail_on", "outcome"),
    [
        ("leak", None, "fails"),
        ("no-evidence", None, "passes"),
        ("undecided", None, "cannot tell"),
        ("confounded", None, "cannot tell"),
        ("undecided", "leak,undecided", "fails"),
        ("confounded", "leak, confounded", "fails"),
        ("no-evidence", "no-evidence", "fails"),
        ("leak", "undecided", "passes"),  # whoever names others than leak only asks for the AUC
    ],
)
def test_a_verdict_decides(write: Write, verdict: str, fail_on: str | None, outcome: str) -> None:
    (found,) = outcomes(write(validity=judged(verdict)), fail_on).values()
    assert found == outcome


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"validity": judged("no-evidence", reason="not-robust")}, "the attack is above guessing"),
        ({"validity": judged("no-evidence", reason="not-beyond-checks")}, "the attack is above guessing"),
        ({"validity": judged("no-evidence", trained=False)}, "a trained reference, as with --quick"),
        ({"validity": {"attack_auc": rate(0.5)} | QUICK}, "a trained reference, as with --quick"),
        ({"config": {"queries": {"views": 2}}}, "each image was shown in 2 views, and fewer than 10 hide a leak"),
        ({"config": {"queries": {"views": 10}, "attacks": [{"views": 4}]}}, "in 4 views"),
        ({"evidence": seeing(0.78)}, "so few images show a leak from an AUC of .78 on, and .7 is wanted (--least-auc)"),
        ({"evidence": seeing(None)}, "so few images show a leak at no AUC, and .7"),
        ({"validity": judged("no-evidence", by="lot"), "evidence": seeing(0.75)}, "(--least-auc)"),
    ],
)
def test_an_audit_that_could_not_have_seen_a_leak_passes_none(write: Write, parts: dict[str, Any], said: str) -> None:
    """A leaky encoder passed with 150 + 150 images, 2 views and no references."""
    (condition,) = Gate().judge(write(**parts))
    assert condition.outcome == "cannot tell"
    assert condition.reason.startswith("verdict no-evidence (") and said in condition.reason
    assert outcomes(write(**parts), "undecided") == {"the verdict is not undecided": "passes"}  # asks for no leak


def test_the_least_auc_is_a_setting(write: Write) -> None:
    for seen, least, outcome in ((0.67, None, "passes"), (0.67, 0.65, "cannot tell"), (0.78, 0.8, "passes")):
        (condition,) = Gate.from_options(None, None, None, least).judge(write(evidence=seeing(seen)))
        assert condition.outcome == outcome
    lot = judged("no-evidence", by="lot", trained=False)
    assert outcomes(write(validity=lot)) == {"the verdict is not leak": "passes"}
    sizes = {n: detectable_auc(n, n) or 1.0 for n in (150, 440)}
    assert sizes[440] <= LEAST_AUC < sizes[150]


def test_without_a_verdict_nothing_can_be_told(write: Write) -> None:
    run = Path(write())
    whole = json.loads((run / "report.json").read_text())
    del whole["validity"]
    (run / "report.json").write_text(json.dumps(whole))
    (condition,) = Gate().judge(str(run))
    assert condition.outcome == "cannot tell"
    assert condition.reason == "verdict undecided (no attack that a verdict could rest on applies)"


@pytest.mark.parametrize(
    ("limits", "most", "outcome"),
    [((0.50, 0.54), 0.55, "passes"), ((0.50, 0.56), 0.55, "cannot tell"), ((0.58, 0.62), 0.55, "fails")],
)
def test_the_upper_limit_decides_without_a_bound_in_the_config(
    write: Write, limits: tuple[float, float], most: float, outcome: str
) -> None:
    run = write(bounds=bounded(*limits))
    assert outcomes(run, max_auc=most)["all attacks stay under AUC .55"] == outcome
    assert outcomes(f"{run}/report.json", max_auc=most) == outcomes(run, max_auc=most)


def test_where_no_limit_counts_nothing_passes(write: Write) -> None:
    for reason in ("encoder-broken", "after-looking"):
        conditions = Gate.from_options(None, 0.55, None).judge(
            write(bounds=bounded(0.5, 0.54), validity=judged("undecided", reason=reason))
        )
        assert outcome_of(conditions) == "cannot tell" and line(conditions).endswith(f"verdict undecided ({reason})")
    assert outcomes(write(), max_auc=0.55)["all attacks stay under AUC .55"] == "cannot tell"  # no limits in the report


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ({"auc": 0.8}, "fails"),
        ({"auc": 0.66}, "passes"),  # by .06, give or take .071
        ({"auc": 0.5}, "passes"),
        ({"attacks": [row("lpla", 0.9, primary=True, settings="p = 1")]}, "cannot tell"),
        ({"auc": 0.8, "membership": "asked", "drop": "accuracy"}, "cannot tell"),
    ],
)
def test_a_leak_is_compared_with_the_baseline(write: Write, parts: dict[str, Any], outcome: str) -> None:
    if parts.pop("drop", None):
        attack = row("lpla", 0.8, 0.05, primary=True)
        del attack["accuracy"]
        parts["attacks"] = [attack]
    base, run = write("base"), write("run", **parts)
    assert outcomes(run, worse_than=base)[f"the leak is not larger than that of {base}"] == outcome
    assert outcomes(run, worse_than=f"{base}/report.json") != {}


def test_a_failure_goes_before_what_cannot_be_told(write: Write) -> None:
    run = write(validity=judged("undecided"), bounds=bounded(0.58, 0.62))
    conditions = Gate.from_options(None, 0.55, None).judge(run)
    assert [each.outcome for each in conditions] == ["cannot tell", "fails"]
    assert outcome_of(conditions) == "fails"
    assert line(conditions) == (
        "gate fails: AUC at most .620 (95 %, the highest of 2: encodermi-t). "
        "The bound .55 is not met: encodermi-t has at least .580 (95 %)"
    )


def test_the_line_of_a_pass_says_everything(write: Write) -> None:
    base, run = write("base"), write("run", bounds=bounded(0.5, 0.54))
    assert line(Gate.from_options(None, 0.55, base).judge(run)) == (
        "gate passes: verdict no-evidence (nothing-found); AUC at most .540 (95 %, the highest of 2: encodermi-t). The "
        "bound .55 is met; AUC of the primary attack minus that of the baseline .000 [−.071, .071]: not larger by more "
        "than chance explains"
    )


def test_junit_is_read_back_as_github_and_gitlab_do(write: Write) -> None:
    """Both read testsuite/testcase with name and classname, and failure, error and skipped with a message."""
    base = write("base <&\x07>")
    run = write("run", auc=0.9, validity=judged("undecided"), bounds=bounded(0.5, 0.54))
    conditions = Gate.from_options(None, 0.55, base).judge(run)
    text = junit(conditions, run)
    assert text.startswith(b"<?xml version='1.0' encoding='utf-8'?>")
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites"
    (suite,) = root
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "3", "failures": "1", "errors": "1", "skipped": "0"}
    assert {name: root.get(name) for name in counts} == counts
    about, *suite = suite  # type: ignore[assignment]
    told = {one.get("name"): one.get("value") for one in about}
    assert told["report"] == f"{run}/report.json" and told["verdict"] == "undecided"
    assert told["auc"].startswith("0.9000 [") and told["name"]
    assert [case.tag for case in suite] == ["testcase"] * 3
    assert [case.get("name") for case in suite] == [each.name for each in conditions]
    assert len({(case.get("classname"), case.get("name")) for case in suite}) == 3  # GitLab tells cases apart by these
    assert all(float(case.get("time", "")) == 0 for case in suite)
    assert [[child.tag for child in case] for case in suite] == [["error"], ["system-out"], ["failure"]]
    for case, condition in zip(suite, conditions, strict=True):
        assert case[0].text == condition.reason
        assert case[0].get("message") == (None if condition.outcome == "passes" else condition.reason)


def test_the_command_ends_with_its_code(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "below" / "gate.xml"
    for verdict, code in (("no-evidence", 0), ("leak", 3), ("undecided", 4)):
        run = write(validity=judged(verdict))
        assert called(monkeypatch, "gate", run, "--fail-on", "leak", "--junit", file) == code
        said = capsys.readouterr()
        assert said.err == "" and len(said.out.splitlines()) == 1
        assert said.out.startswith(f"gate {dict(map(reversed, EXIT_CODES.items()))[code]}: verdict {verdict}")
        assert ElementTree.parse(file).getroot()[0].get("tests") == "1"


def test_mistakes_are_one_line_with_code_2(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, old = write(), write("old")
    (tmp_path / "empty").mkdir()
    Path(old, "report.json").write_text(
        json.dumps(json.loads(Path(old, "report.json").read_text()) | {"schema_version": 0})
    )
    for arguments, problem in [
        ([run, "--fail-on", "leek"], "--fail-on 'leek' is no verdict; allowed, with commas between: leak, no-evidence"),
        ([run, "--fail-on", ""], "--fail-on '' is no verdict"),
        ([run, "--max-auc", "1.2"], "--max-auc 1.2 is out of range; give an AUC above .5, up to 1"),
        ([run, "--max-auc", ".5"], "--max-auc 0.5 is out of range"),
        ([run, "--least-auc", "1.2"], "--least-auc 1.2 is out of range; give an AUC above .5, up to 1"),
        ([run, "--max-auc", "nan"], "--max-auc nan is out of range"),
        ([tmp_path / "empty"], "report.json is not there; run encoder-audit report"),
        ([tmp_path / "gone"], "is no folder; give the folder of a run"),
        ([tmp_path / "gone.json"], "gone.json is not there"),
        ([old], "has schema_version 0, expected 1; run encoder-audit report"),
        ([run, "--worse-than", old], "has schema_version 0, expected 1"),
        ([run, "--worse-than", f"{run}/report.json"], "are one run; give two"),
    ]:
        assert called(monkeypatch, "gate", *arguments) == 2
        said = capsys.readouterr()
        assert said.out == "" and len(said.err.splitlines()) == 1
        assert problem in said.err


def test_options_of_an_audit_are_checked_before_it_starts(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    base = write("base")
    for options, problem in [
        (["--fail-on", "leek"], "is no verdict"),
        (["--max-auc", "2"], "is out of range"),
        (["--worse-than", "gone"], "gone is no folder"),
        (["--worse-than", base, "--out", base], "are one run; give two"),
    ]:
        assert called(monkeypatch, "audit", "quickstart", *options) == 2
        assert problem in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_baseline_that_is_read_stays_what_it_was(write: Write) -> None:
    base, run = write("base"), write("run", auc=0.8)
    gate = Gate.from_options(None, None, base)
    assert gate.baseline == report_from_json(json.loads(Path(base, "report.json").read_text()))
    write("base", auc=0.8)
    assert gate.judge(run)[1].outcome == "fails"


def test_an_audit_ends_as_its_gate(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished run goes through its stages, and the gate takes the report."""
    import shutil

    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    file = tmp_path / "gate.xml"
    code = called(monkeypatch, "audit", run, "--fail-on", "leak,undecided", "--max-auc", "1", "--junit", file)
    said = capsys.readouterr().out.splitlines()[-1]
    whole = json.loads((run / "report.json").read_text())
    verdict = whole["validity"]["verdict"]
    outcome = {"leak": "fails", "no-evidence": "cannot tell"}[verdict]  # of 60 + 60 images
    assert code == EXIT_CODES[outcome]
    assert said.startswith(f"gate {outcome}: verdict {verdict}")
    (bounds,) = whole["bounds"]
    assert bounds["at_most"] == max(each["high"] for each in bounds["limits"])
    assert [each["attack"] for each in bounds["limits"]] == ["encodermi-t", "lpla"]
    rows = {
        each["attack"]: each["auc"]
        for each in whole["pooled"]
        if each["output"] == bounds["output"] and each["epoch"] == bounds["epoch"]
    }
    for each in bounds["limits"]:  # the same AUC as in the table, between limits that are closer than its interval
        low, high = rows[each["attack"]]["ci95"]
        assert each["auc"] == rows[each["attack"]]["value"]
        assert low < each["low"] < each["auc"] < each["high"] < high
    assert [case.get("name") for case in ElementTree.parse(file).iter("testcase")] == [
        "the verdict is not leak or undecided",
        "all attacks stay under AUC 1",
    ]


def test_a_gate_without_options_asks_for_a_leak() -> None:
    assert Gate.from_options(None, None, None) == Gate()
    with pytest.raises(UserError, match="no verdict"):
        Gate.from_options("leak,,undecided", None, None)
