"""A gate: whether a report passes some conditions, as an exit code, as a line and as JUnit XML.

A condition fails if what it excludes is shown, and passes if the report speaks against it. If the report says neither,
it cannot tell: an undecided verdict is no reason to pass. Nor is a confounded one, because whoever chooses unlike
groups would pass every gate. Nor is no evidence from an audit that could not have seen a leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree import ElementTree

from mi_core.report.contents import plain, pooled_rows, primary_row
from mi_core.report.model.report import Report
from mi_core.report.words.numbers import estimate, rate, upward, wanted
from mi_core.report.words.sentences import say
from mi_core.report.words.wording import TITLES
from mi_core.validity.bound import MET, NOT_MET
from mi_core.validity.verdict import LOT
from pipelines.config.sections.queries import QueriesConfig
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.report.compare import check_two, leak_difference, path_of_report, read_report

PASSES, FAILS, CANNOT_TELL = "passes", "fails", "cannot tell"
EXIT_CODES = {PASSES: 0, FAILS: 3, CANNOT_TELL: 4}
VERDICTS = tuple(TITLES)
DEFAULT = "leak"
"""The verdict on which a gate fails where none is named."""
LEAST_AUC = 0.7
"""AUC that an audit has to find in four of five cases. That takes some 330 images a side by choice, 40 by lot. Encoders
that overfit their training images exceed it; attacks on encoders of web scale stay far below."""
_VIEWS = QueriesConfig.model_fields["views"].default
_OPEN = ("undecided", "confounded")  # verdicts that neither show a leak nor speak against one
_LONGEST = 1000  # characters of a reason
_ELEMENTS = {FAILS: "failure", CANNOT_TELL: "error"}


class Condition(NamedTuple):
    """One condition of a gate.

    Args:
        name: what has to hold, the same in every run.
        outcome: `PASSES`, `FAILS` or `CANNOT_TELL`.
        reason: what the report says of it.
    """

    name: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class Gate:
    """The conditions that a report has to pass.

    Args:
        fail_on: verdicts that fail.
        max_auc: AUC that all attacks are to stay under, in (.5, 1]; None: any.
        least_auc: of a leak that the audit has to find in four of five cases, in (.5, 1].
        worse_than: a run whose leak is not to be exceeded; None: there is none.
        baseline: its report.
    """

    fail_on: tuple[str, ...] = (DEFAULT,)
    max_auc: float | None = None
    least_auc: float = LEAST_AUC
    worse_than: str | None = None
    baseline: Report | None = None

    @classmethod
    def from_options(
        cls, fail_on: str | None, max_auc: float | None, worse_than: str | None, least_auc: float | None = None
    ) -> Gate:
        """The gate that options of a command describe, with the report of the baseline.

        Args:
            fail_on: verdicts between commas; None: `DEFAULT`.
            max_auc, worse_than: as the fields; so is least_auc, None: `LEAST_AUC`.

        Raises:
            UserError: an option is wrong, or the baseline has no report.
        """
        named = tuple(name.strip() for name in (DEFAULT if fail_on is None else fail_on).split(","))
        for name in named:
            if name not in VERDICTS:
                raise UserError(
                    f"--fail-on {name!r} is no verdict; allowed, with commas between: {', '.join(VERDICTS)}"
                )
        for name, auc in (("--max-auc", max_auc), ("--least-auc", least_auc)):
            if auc is not None and not 0.5 < auc <= 1:
                raise UserError(f"{name} {auc:g} is out of range; give an AUC above .5, up to 1")
        baseline = None if worse_than is None else read_report(worse_than)
        return cls(named, max_auc, least_auc or LEAST_AUC, worse_than, baseline)

    def judge(self, run: str) -> list[Condition]:
        """Judge each condition by the report of a run.

        Args:
            run: its folder, or its report.json.

        Raises:
            UserError: it has no report that this version reads, or it is the baseline.
        """
        if self.worse_than is not None:
            check_two(self.worse_than, run)
        report = read_report(run)
        judged = {f"the verdict is not {' or '.join(self.fail_on)}": self._verdict(report)}
        if self.max_auc is not None:
            judged[f"all attacks stay under AUC {wanted(self.max_auc)}"] = _below(report, self.max_auc)
        if self.baseline is not None:
            judged[f"the leak is not larger than that of {plain(self.worse_than)}"] = _not_larger(report, self.baseline)
        return [Condition(name, outcome, plain(reason, _LONGEST)) for name, (outcome, reason) in judged.items()]

    def _verdict(self, report: Report) -> tuple[str, str]:
        verdict, judged = report.judged.verdict, report.validity
        why = "no attack that a verdict could rest on applies" if judged is None else judged.reason
        outcome = FAILS if verdict in self.fail_on else CANNOT_TELL if verdict in _OPEN else PASSES
        said = f"verdict {verdict}" + (f" ({why})" if why else "")
        blind = _blindness(report, self.least_auc) if outcome == PASSES and DEFAULT in self.fail_on else ""
        return (CANNOT_TELL, f"{said}, but {blind}") if blind else (outcome, said)


def _blindness(report: Report, least: float) -> str:
    """The reason why an audit without evidence could not have seen a leak of an AUC; empty: it could."""
    judged = report.judged
    if judged.validity is None or judged.reason != "nothing-found":
        return "the attack is above guessing, and nothing says that this is no leak"
    if judged.by != LOT and not (judged.blind_auc and judged.control_auc and judged.trained):
        return "no leak could be found without the blind classifier and a trained reference, as with --quick"
    settings = report.config
    views = min(one.get("views") or _VIEWS for one in (settings.get("queries", {}), *settings.get("attacks", ())))
    if views < _VIEWS:
        return f"each image was shown in {views} views, and fewer than {_VIEWS} hide a leak (queries.views)"
    power = () if report.evidence is None else report.evidence.power
    seen = next((one.auc for one in power if one.used == 1), None)
    shown = "at no AUC" if seen is None else f"from an AUC of {rate(seen, 2)} on"
    said = f"so few images show a leak {shown}, and {wanted(least)} is wanted (--least-auc)"
    return "" if seen and seen <= least else said


def _below(report: Report, most: float) -> tuple[str, str]:
    if not report.bounds:
        return CANNOT_TELL, (
            "the report has no upper limits: no attack applies, or an older version wrote it; then run encoder-audit "
            "report on its folder"
        )
    audited = report.bounds[0]
    outcome = audited.outcome_of(most)
    at_most = f"AUC at most {upward(audited.at_most)} (95 %, the highest of {audited.attacks}: {audited.attack})"
    said = f"{at_most}. {say('outcome', audited, most, outcome)}"
    return {MET: PASSES, NOT_MET: FAILS}.get(outcome, CANNOT_TELL), said


def _not_larger(report: Report, baseline: Report) -> tuple[str, str]:
    change = leak_difference(baseline, report)
    if change is None:
        return CANNOT_TELL, "the baseline has no such attack on the same target and output, so there is no comparison"
    said = f"AUC of the primary attack minus that of the baseline {estimate(change, 3)}"
    if change.low > 0:
        return FAILS, f"{said}: larger by more than chance explains"
    return PASSES, f"{said}: not larger by more than chance explains"


def outcome_of(conditions: Sequence[Condition]) -> str:
    """The outcome of all: one that fails decides, then one that cannot tell."""
    outcomes = {condition.outcome for condition in conditions}
    return next(outcome for outcome in (FAILS, CANNOT_TELL, PASSES) if outcome in outcomes)


def line(conditions: Sequence[Condition]) -> str:
    """The outcome and its reasons in one line: those of what decides, or of all where all pass."""
    outcome = outcome_of(conditions)
    reasons = "; ".join(condition.reason.rstrip(".") for condition in conditions if condition.outcome == outcome)
    return f"gate {outcome}: {reasons}"


def junit(conditions: Sequence[Condition], run: str) -> bytes:
    """The conditions as JUnit XML, a test case each, as GitHub's and GitLab's readers take it.

    A condition that cannot be told is an ``error``, which is JUnit's word for a test that could not be carried out.
    Readers show errors beside failures. Skipped tests they show as fine, while exit code 4 stops the pipeline: nobody
    would see why.

    Args:
        conditions: at least one.
        run: its folder or report.json; the suite has its name, and as properties its AUC and where it stands.
    """
    report = read_report(run)
    row = primary_row(pooled_rows(report))
    about = {"name": report.name, "verdict": report.judged.verdict, "report": storage.absolute(path_of_report(run))}
    about |= {} if row is None else {"auc": f"{row.auc.value:.4f} [{row.auc.low:.4f}, {row.auc.high:.4f}]"}
    counts = {f"{kind}s": sum(each.outcome == outcome for each in conditions) for outcome, kind in _ELEMENTS.items()}
    counts = {"tests": len(conditions), **counts, "skipped": 0, "time": 0}
    told = {name: str(number) for name, number in counts.items()}
    root = ElementTree.Element("testsuites", {"name": "encoder-audit gate", **told})
    suite = ElementTree.SubElement(root, "testsuite", {"name": plain(report.name), **told})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in about.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": plain(value, _LONGEST)})
    for condition in conditions:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "encoder-audit.gate", "name": condition.name, "time": "0"}
        )
        kind = _ELEMENTS.get(condition.outcome)
        shown = ElementTree.SubElement(case, kind or "system-out", {"message": condition.reason} if kind else {})
        shown.text = condition.reason
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"
