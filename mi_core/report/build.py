"""The parts of a report that say what was found, from scores, checks and counts: the same for every way to audit.

Every seed draws its own controls and its own training, but the candidates are the same: p-values of several seeds
depend on each other and are combined as such (`mi_core.validity.verdict.cauchy_combination`), never averaged.
The p-value of an attack is the larger of Welch's and of the permutation test's, so that both must agree; Holm's
adjustment is over all attacks on one target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.checks import NumericError
from mi_core.metrics.delong import auc
from mi_core.metrics.membership import TITLES, MembershipMetrics
from mi_core.metrics.pooled import pool, pooled_count
from mi_core.records import BoolArray, Estimate, FloatArray
from mi_core.report.model import judgement
from mi_core.report.model.attacks import AttackResult
from mi_core.report.model.report import QueriesPart, QueryEntry
from mi_core.report.pooling import grouped, of_all, pooled_or_none
from mi_core.validity.conformal import least_flags, needed_controls
from mi_core.validity.power import SHARES, detectable_auc, fpr_floor
from mi_core.validity.sets.dataset import DatasetTest, Needed, dataset_test, one_sided
from mi_core.validity.sets.share import LeastShare, least_share
from mi_core.validity.verdict import CHOICE, GROUPS_DIFFER, Validity, cauchy_combination, holm, judge_pooled

TOP = 48  # candidates of either end shown in a report
_Groups = npt.NDArray[np.int64] | None
_IDENTITY = attrgetter("attack", "target", "output", "reference", "settings")  # what tests of one attack share


def attack_result(metrics: MembershipMetrics, *, asked: bool, **tried: Any) -> AttackResult:
    """The result of an attack in one seed.

    Args:
        metrics: that it reached.
        asked: whether candidates are judged, of which nobody knows who is a member.
        tried: the other fields.
    """
    return AttackResult(**vars(metrics) | (dict.fromkeys(TITLES.keys() - {"auc"}) if asked else {}), **tried)


def queries_part(entries: Iterable[QueryEntry], budget: int | None = None) -> QueriesPart:
    """The ledger of all queries."""
    every = tuple(entries)
    return QueriesPart(total=sum(entry.queries for entry in every), budget=budget, entries=every)


def verdict_part(
    per_seed: Mapping[int, Validity],
    *,
    overlap: float = 0.0,
    fault: str = "",
    others: Callable[[], Mapping[str, Sequence[Validity]]] = dict,
    planned: int = 0,
) -> judgement.VerdictPart:
    """The verdict over seeds.

    Args:
        per_seed: what the verdict of every seed rests on.
        overlap: as `mi_core.metrics.pooled.pool`.
        fault: what is wrong with the attacked encoder; empty: nothing.
        others: gives the other attacks that were planned on the target, one entry a seed, where they count.
        planned: how many attacks on the target there ever were.
    """
    of_seeds = [judgement.SeedVerdict(seed=seed, **judgement.judged(validity)) for seed, validity in per_seed.items()]
    pooled = judge_pooled(list(per_seed.values()), overlap=overlap)
    if pooled.verdict == "no-evidence":
        rivals = {name: judge_pooled(runs, overlap=overlap) for name, runs in others().items()}
        pooled = pooled.beside(rivals, max(planned, 1 + len(rivals)))
    several = tuple(of_seeds) if len(of_seeds) > 1 else ()
    return judgement.VerdictPart(**judgement.judged(pooled), per_seed=several, warning=fault or None)


@dataclass(frozen=True, kw_only=True)
class SetTest:
    """The test of the candidates as a set by the scores of one attack in one seed.

    Args:
        test: None: all scores are equal.
        least_share: of the candidates that was used.
        share: the same by known members; None: there are none.
        control_auc: of the same attack on reference encoders; None: there are none.
    """

    test: DatasetTest | None
    least_share: LeastShare | None
    share: Estimate | None = None
    control_auc: Estimate | None = None

    @classmethod
    def from_scores(
        cls, scores: FloatArray, control: FloatArray | None, candidate: BoolArray, *, seed: int, groups: _Groups = None
    ) -> SetTest:
        """Test scores (N,) of the target.

        Args:
            scores, candidate: as `dataset_test`.
            control: (N,) on reference encoders; None: there are none.
            seed: of the test.
            groups: (N,) what the samples belong to; None: each stands for itself. Where some hold candidates and
                controls, ``control_auc`` alone heeds them; see `one_sided`.
        """
        beside, units = None if control is None else auc(control, candidate, groups), one_sided(groups, candidate)
        try:
            test = dataset_test(scores, candidate, seed=seed, groups=units)
        except NumericError:
            return cls(test=None, least_share=None, control_auc=beside)
        return cls(test=test, least_share=least_share(scores, candidate, groups=units), control_auc=beside)

    @property
    def best_share(self) -> tuple[float, bool]:
        """The share of the candidates that was used, and whether it is only a lower bound: so without known members."""
        if self.share is not None and self.share.supported:
            return float(self.share.value), False
        return (0.0 if self.least_share is None else float(self.least_share.low)), True


@dataclass(frozen=True, kw_only=True)
class SeedTest:
    """A `SetTest` with the attack and the seed that it is of."""

    attack: str
    target: str
    output: str
    reference: str
    settings: str | None = None
    primary: bool = False
    seed: int
    result: SetTest

    @property
    def words(self) -> str:
        """How a report calls the attack."""
        return " ".join(filter(None, (self.attack, self.settings, f"on the {self.output} output of {self.target}")))


def evidence(
    verdict: judgement.VerdictPart,
    tests: Sequence[SeedTest],
    *,
    counts: tuple[int, int],
    worths: tuple[float, float],
    telling: Mapping[str, float],
    by_user: bool = False,
    bursts: _Groups = None,
    overlap: float = 0.0,
    known_overlap: float = 0.0,
    planned: Mapping[str, int] = {},
) -> judgement.Evidence:
    """The evidence of the scores on the candidates beyond the verdict, without answers for single ones.

    p-values and shares ask for candidates and controls that are exchangeable. By lot they are; by choice, where a check
    tells them apart, or the verdict is no leak, there are none: they would be read as one. Nor is there a test of an
    attack that succeeds on reference encoders.

    Args:
        verdict: over all seeds.
        tests: of every attack and seed, at the last checkpoint.
        counts: of candidates and of controls in the first seed; of grouped samples of their groups.
        worths: independent samples that these are worth.
        telling: features of files and pixels, with the AUC by which each tells the groups apart.
        by_user: whether the user grouped them.
        bursts: (N,) what the judged images belong to, where scenes were found among them; None: nothing was.
        overlap, known_overlap, planned: as `combine_tests`.
    """
    validity = verdict.validity
    assert validity is not None and validity.blind_auc is not None
    candidates, controls = (int(worth) for worth in worths)
    found = None
    if bursts is not None:
        sizes = np.bincount(np.unique(bursts, return_inverse=True)[1])
        found = judgement.Bursts(images=int(sizes[sizes > 1].sum()), scenes=int((sizes > 1).sum()))
    detectable = partial(detectable_auc, candidates, controls, by=validity.by, factor=validity.factor)
    because = validity.withheld_because
    told = judgement.Evidence(
        exchangeable=because != GROUPS_DIFFER,
        blind_auc=validity.blind_auc,
        semantic_auc=validity.semantic_auc,
        control_auc=validity.control_auc,
        telling=tuple(judgement.TellingFeature(feature=name, auc=value) for name, value in telling.items()),
        grouped=by_user,
        bursts=found,
        n_candidate=counts[0],
        n_control=counts[1],
        fpr_floor=fpr_floor(controls),
        power=tuple(judgement.Detectable(used=share, auc=detectable(share=share)) for share in SHARES),
        withheld_because=because,
    )
    if because is not None:
        return told
    withheld, complete = [], []
    for mine in grouped(tests, _IDENTITY).values():
        controlled = [test.result.control_auc for test in mine if test.result.control_auc is not None]
        if validity.by == CHOICE and controlled and pool(controlled, overlap=overlap).low > 0.5:
            withheld.append(mine[0].words)
        elif all(test.result.test is not None for test in mine):
            complete += mine
    combined = combine_tests(complete, overlap=overlap, known_overlap=known_overlap, planned=planned)
    return replace(told, tests=combined, withheld=tuple(withheld))


def single_tests(shown: judgement.Evidence, tests: Iterable[SeedTest]) -> list[SeedTest]:
    """The tests of the primary attack, one a seed, whose scores answer for single candidates; none where none may."""
    if shown.withheld_because is not None:
        return []
    return [
        test for test in tests if test.primary and test.result.test is not None and test.words not in shown.withheld
    ]


def sample_answers(
    test: SeedTest,
    *,
    candidates: int,
    controls: int,
    fdr: float,
    **told: Any,
) -> judgement.SampleAnswers:
    """Answers for single candidates in one seed.

    Args:
        test: of the primary attack.
        candidates, controls: numbers of these.
        fdr: expected share of wrongly flagged ones among the flagged.
        told: the other fields; each end of the candidates the most telling first.
    """
    share, is_bound = test.result.best_share
    least = least_flags(controls, candidates, fdr)
    return judgement.SampleAnswers(
        seed=test.seed,
        fdr=fdr,
        n_candidate=candidates,
        n_control=controls,
        least_flags=least,
        needed_controls=needed_controls(candidates, fdr) if least > 1 else None,
        share=share,
        share_is_bound=is_bound,
        **told,
    )


def combine_tests(
    tests: Sequence[SeedTest], *, overlap: float = 0.0, known_overlap: float = 0.0, planned: Mapping[str, int] = {}
) -> tuple[judgement.CandidateTest, ...]:
    """One test per attack, target, output, reference and settings from those of every seed.

    Args:
        tests: each with a `DatasetTest`.
        overlap: as `mi_core.metrics.pooled.pool`.
        known_overlap: the same of the known members that ``share`` rests on beside the others.
        planned: by target, attacks that ever ran on these images: a family counts as many at least.

    Returns:
        with ``p`` and ``holm_p``, ``welch_p``, ``permutation_p`` where every seed has one, ``direction`` (higher,
        lower or mixed), ``effect`` pooled, ``needed`` and ``least_share`` as the most cautious seed has them.

    Raises:
        ConfigError: a p-value is not within [0, 1].
    """
    rows = [_combined(mine, overlap, known_overlap) for mine in grouped(tests, _IDENTITY).values()]
    for target, family in grouped(range(len(rows)), lambda number: rows[number].target).items():
        size = max(planned.get(target, 0), len(family))
        for number, holm_p in zip(family, holm([rows[number].p for number in family], family=size), strict=True):
            rows[number] = replace(rows[number], holm_p=holm_p, family=size)
    return tuple(rows)


def _combined(mine: Sequence[SeedTest], overlap: float, known_overlap: float) -> judgement.CandidateTest:
    """The seeds of one attack as one, before the adjustment for several attacks."""
    first, tests = mine[0], [seed.result.test for seed in mine if seed.result.test is not None]
    counted = [(test.candidate_groups or 0) + (test.control_groups or 0) for test in tests]
    is_grouped = all(test.candidate_groups is not None for test in tests)
    welch_p = cauchy_combination([test.welch_p for test in tests])
    permuted = of_all([test.permutation_p for test in tests])
    permutation_p = cauchy_combination(permuted) if permuted else None
    directions = {test.direction for test in tests}
    direction = directions.pop() if len(directions) == 1 else "mixed"
    least, needs = of_all([seed.result.least_share for seed in mine]), of_all([test.needed for test in tests])
    most = [max(of_all([getattr(needed, part.name) for needed in needs]), default=None) for part in fields(Needed)]
    return judgement.CandidateTest(
        **{name: getattr(first, name) for name in ("attack", "target", "output", "reference", "settings", "primary")},
        seeds=len(mine),
        n=pooled_count([test.candidates + test.controls for test in tests], overlap),
        groups=pooled_count(counted, overlap) if is_grouped else None,
        welch_p=welch_p,
        permutation_p=permutation_p,
        permutations=min(of_all([test.permutations for test in tests])) if permuted else None,
        p=max(welch_p, permutation_p or 0.0),
        direction=direction,
        reversed_p=cauchy_combination([test.reversed_p for test in tests]) if direction == "lower" else None,
        effect=pooled_or_none([test.effect for test in tests], overlap),
        needed=None if most == [None, None, None] else Needed(*most),  # as the most cautious seed has it
        least_share=min(share.low for share in least) if least else None,
        share=pooled_or_none([seed.result.share for seed in mine], max(overlap, known_overlap)),
        holm_p=1.0,
        family=1,
    )
