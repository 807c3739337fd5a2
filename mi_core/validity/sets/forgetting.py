"""Did an encoder forget some images? Its AUC before and after, against that of an encoder that never saw them.

Machine unlearning claims that an encoder behaves as if it had been trained without some images. An attack tells these
images from controls, on the encoder before, on the encoder after, and on one that never saw them: best one that was
trained anew without them. On that one the attack is at chance, but for differences between the two groups of images.

What the attack knew before is ``known`` = AUC before - AUC unseen; what is left is ``left`` = AUC after - AUC unseen,
on the same images, in pairs. The share that is left is left / known. Its upper bound is the smallest share r for which
the interval of after - r before - (1 - r) unseen lies below 0 (Fieller, "Some problems in interval estimation", Journal
of the Royal Statistical Society B, 1954). The bound tells the power, too: few images leave it high.

A mean hides a few images that are kept in full. So the upper tail of the scores is asked too, of the attack that was
chosen and of every other one (`mi_core.validity.sets.kept`): a kept image has to be found by none of them. The share
that is kept in full is bounded by the chosen attack alone, so that its bound needs no correction.

Rule, in this order:

1. ``not-forgotten`` if the encoder after still leaks by the rule of `mi_core.validity.verdict` (the lower bounds of
   ``left`` and of after - blind are above 0), or if the tail of some attack shows kept images and exceeds that of the
   blind classifier too. All tails together err in at most 2.5 %.
2. ``cannot-tell`` if the attack did not find the images before (the lower bound of ``known`` is not above 0), if more
   than a quarter may be left (``tolerance``), if a tail shows images that the blind classifier might know too, or if
   more than 5 % of the images may be kept in full (``kept``).
3. ``forgotten`` else. So an encoder may have ``forgotten`` although something is surely left (the lower bound of
   ``left`` is above 0); the words of the report then say so.

How many images that takes: trained anew, with as many controls, an encoder is ``forgotten`` in 78 % of draws with 500
images at an AUC of .92 before, and in 86 % with 6,000 at .75 (`configs/results/README.md`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from mi_core.checks import check_range
from mi_core.metrics.delong import auc, auc_contrasts
from mi_core.metrics.pooled import pool
from mi_core.records import Estimate
from mi_core.validity.sets.kept import Scored, Tail, lowest_below, tail

TOLERANCE = 0.25  # share of what the attack knew before that may be left
KEPT = 0.05  # share of the images that may be kept in full
_STEPS = 100  # of the share that is left


@dataclass(frozen=True)
class Forgetting:
    """The result on whether images were forgotten, and the AUCs and differences that it rests on."""

    # before_auc, after_auc, unseen_auc, blind_auc: of the attack on three encoders, and of the blind classifier
    before_auc: Estimate
    after_auc: Estimate
    unseen_auc: Estimate
    blind_auc: Estimate
    known: Estimate  # before minus unseen
    left: Estimate  # after minus unseen
    removed: Estimate  # before minus after
    left_blind: Estimate  # after minus blind
    # upper bound of the share of ``known`` that is left, in steps of .01, at 97.5 % confidence; None: all of it may be
    # left, or more
    left_at_most: float | None
    tolerance: float  # the share from which on images do not count as forgotten
    kept: float  # the share of the images that may be kept in full where they count as forgotten
    tails: Mapping[str, Tail]  # what the upper tail says, by attack; the chosen one first

    @property
    def chosen(self) -> str:
        """The attack that was chosen."""
        return next(iter(self.tails))

    @property
    def decided(self) -> tuple[str, str]:
        """The test that decided, and its attack.

        ``mean``: the AUCs. ``percentile-95``, ``percentile-99``, ``weights``: `Tail.sign`, which found kept images.
        ``kept``: the bound of the share that is kept in full.
        """
        return self._judgement[1:]

    @property
    def verdict(self) -> str:
        """``forgotten``, ``not-forgotten`` or ``cannot-tell``, by the rule of this module."""
        return self._judgement[0]

    @property
    def _judgement(self) -> tuple[str, str, str]:
        """The verdict, the test that decided it, and its attack."""
        if self.left.low > 0 and self.left_blind.low > 0:
            return "not-forgotten", "mean", self.chosen
        found = [name for name, own in self.tails.items() if own.sign]
        beyond = [name for name in found if self.tails[name].excess_blind.low > 0]
        unsure = self.known.low <= 0 or self.left_at_most is None or self.left_at_most > self.tolerance
        if found and (beyond or not unsure):
            name = (beyond or found)[0]
            return "not-forgotten" if beyond else "cannot-tell", self.tails[name].sign, name
        if unsure:
            return "cannot-tell", "mean", self.chosen
        most = self.tails[self.chosen].kept_at_most
        return "forgotten" if most is not None and most <= self.kept else "cannot-tell", "kept", self.chosen

    def as_json(self) -> dict[str, Any]:
        """Verdict, what decided, estimates and bounds as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "tails"}
        told = {name: one.as_json() if isinstance(one, Estimate) else one for name, one in values.items()}
        test, attack = self.decided
        tails = {name: own.as_json() for name, own in self.tails.items()}
        return {"verdict": self.verdict, "decided": {"test": test, "attack": attack}, **told, "tails": tails}


def forgetting(
    seeds: Sequence[Scored],
    others: Mapping[str, Sequence[Scored]] = MappingProxyType({}),
    *,
    name: str = "chosen",
    overlap: float = 0.0,
    tolerance: float = TOLERANCE,
    kept: float = KEPT,
) -> Forgetting:
    """Judge whether images were forgotten, from one or more seeds.

    Args:
        seeds: the scores of the chosen attack, of at least one seed.
        others: the same of other attacks on the same images, by their names.
        name: of the chosen attack.
        overlap: share of a seed's samples that another seed has too, as `mi_core.metrics.pooled.pool`.
        tolerance: share of what the attack knew before that may be left, in (0, 1].
        kept: share of the images that may be kept in full, in (0, 1].

    Raises as `tail`, and ConfigError: tolerance or kept is out of range.
    """
    for share, value in (("tolerance", tolerance), ("kept", kept)):
        check_range(share, value, 0, 1, open_low=True)
    shares = np.arange(_STEPS + 1) / _STEPS
    left_of = [[-share, 1.0, share - 1, 0.0] for share in shares.tolist()]
    wanted = [[1.0, 0.0, -1.0, 0.0], [0.0, 1.0, -1.0, 0.0], [1.0, -1.0, 0.0, 0.0], [0.0, 1.0, 0.0, -1.0], *left_of]
    paired, alone = [], []
    for one in seeds:
        scores = (one.before, one.after, one.unseen, one.blind)
        paired.append(auc_contrasts(scores, wanted, one.member, one.groups))
        alone.append([auc(own, one.member, one.groups) for own in scores])
    known, left, removed, left_blind, *beyond = (
        pool(of_seeds, overlap=overlap) for of_seeds in zip(*paired, strict=True)
    )
    before, after, unseen, blind = (pool(of_seeds, overlap=overlap) for of_seeds in zip(*alone, strict=True))
    most = lowest_below(shares, beyond)
    every = {name: seeds, **others}
    tails = {one: tail(own, overlap=overlap, attacks=len(every)) for one, own in every.items()}
    return Forgetting(before, after, unseen, blind, known, left, removed, left_blind, most, tolerance, kept, tails)
