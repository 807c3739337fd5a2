"""The power of a config's verdict with so many images, in words, before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mi_core.report.words.numbers import count, percent, rate
from mi_core.validity.conformal import least_flags, needed_controls
from mi_core.validity.power import POWER, PUBLISHED, detectable_auc, needed_images, verdict_power
from mi_core.validity.verdict import CHOICE, LOT
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import LoadedConfig
from pipelines.plan.rules import ThreatModel

_WEB_SCALE = ("open_clip:", "transformers:")
_TWICE = 2 * PUBLISHED - 0.5


def prospects(config: RunConfig, counts: Mapping[str, float]) -> Iterator[str]:
    """Lines on what can be found.

    The first tells the AUC that the verdict finds, the second what it takes to flag a single image. A warning follows
    where the AUC is far above what attacks are known to reach. ``counts``: samples by role.
    """
    threat = ThreatModel(config)
    candidates, controls = threat.judged_counts(counts)
    if min(candidates, controls) < 1:
        return
    by, factor = threat.groups_by, config.validity.factor
    sides = f"{count(candidates)} candidates and {count(controls)} controls"
    found = {share: detectable_auc(candidates, controls, share=share, by=by, factor=factor) for share in (1.0, 0.1)}
    if found[1.0] is None:
        yield f"{sides} are too few for the verdict leak: not even an AUC of 1 would do"
    else:
        tenth = "no AUC suffices" if found[0.1] is None else f"their AUC has to be {rate(found[0.1], 2)}"
        yield (
            f"{sides}: the verdict is leak in {percent(POWER)} of audits where the attack has an AUC of "
            f"{rate(found[1.0], 2)}; if a tenth of the candidates was used, {tenth}"
        )
    yield _single_images(candidates, controls, config.validity.fdr)
    target = config.encoders[threat.primary.target]
    if not isinstance(target, LoadedConfig) or not target.load.startswith(_WEB_SCALE):
        return
    if verdict_power(candidates, controls, _TWICE, by=by, factor=factor) < POWER:
        by_choice, by_lot = (needed_images(_TWICE, by=one, factor=factor) for one in (CHOICE, LOT))
        yield (
            "WARNING: this audit is not expected to say leak. Published attacks on encoders of web scale reach an AUC "
            f"of {rate(PUBLISHED, 2)}; even twice that effect, {rate(_TWICE, 2)}, takes {count(by_choice or 0)} images "
            f"a side by choice, {count(by_lot or 0)} by lot. Here, “no evidence” says little"
        )


def _single_images(candidates: int, controls: int, fdr: float) -> str:
    """The numbers that it takes to flag one candidate."""
    least, given = least_flags(controls, candidates, fdr), f"with {count(controls)} controls"
    if least == 1:
        return f"a single image can be flagged {given}"
    together = f"at least {count(least)} of {count(candidates)} candidates have to stand out together"
    cannot = (
        f"a single image cannot be flagged {given}: {together}"
        if least <= candidates
        else f"no image can be flagged {given}"
    )
    needed = count(needed_controls(candidates, fdr))
    return f"{cannot}; for one alone it takes {needed} controls, beside those that set the threshold"
