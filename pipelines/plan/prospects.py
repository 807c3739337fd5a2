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
_STRONG = {"very ": 0.7, "": 0.6}  # from which AUC on a leak is called so


def prospects(config: RunConfig, counts: Mapping[str, float]) -> Iterator[str]:
    """Lines on what can be found.

    The first tells the AUC that the verdict finds, the second what it takes to name a single image. A warning follows
    where the AUC is far above what attacks are known to reach. ``counts``: samples by role.
    """
    threat = ThreatModel(config)
    candidates, controls = threat.judged_counts(counts)
    if min(candidates, controls) < 1:
        return
    by, factor = threat.groups_by, config.validity.factor
    sides = f"{count(candidates)} images against {count(controls)} controls"
    found = {share: detectable_auc(candidates, controls, share=share, by=by, factor=factor) for share in (1.0, 0.1)}
    if found[1.0] is None:
        yield f"{sides} are too few: no leak would be seen, however strong"
    else:
        tenth = "none" if found[0.1] is None else f"AUC {rate(found[0.1], 2)}"
        strength = next(
            (f"only a {word}strong leak" for word, least in _STRONG.items() if found[1.0] >= least), "a leak"
        )
        yield (
            f"{sides} show {strength}: AUC {rate(found[1.0], 2)} or more, in {percent(POWER)} of audits "
            f"(.5 is guessing); {tenth} if only a tenth was used"
        )
    yield _single_images(candidates, controls, config.validity.fdr)
    target = config.encoders[threat.primary.target]
    if not isinstance(target, LoadedConfig) or not target.load.startswith(_WEB_SCALE):
        return
    if verdict_power(candidates, controls, _TWICE, by=by, factor=factor) < POWER:
        by_choice, by_lot = (needed_images(_TWICE, by=one, factor=factor) for one in (CHOICE, LOT))
        yield (
            f"WARNING: no evidence. Published attacks on encoders of web scale reach an AUC of "
            f"{rate(PUBLISHED, 2)}. Even twice that effect takes {count(by_choice or 0)} images a side, by lot "
            f"{count(by_lot or 0)}. Better: draw a lot for what you publish next (encoder-audit lot)"
        )


def _single_images(candidates: int, controls: int, fdr: float) -> str:
    """The numbers that it takes to name one candidate."""
    least = least_flags(controls, candidates, fdr)
    if least == 1:
        return "a single image can be named"
    together = f", or {count(least)} images that stand out together" if least <= candidates else ""
    return f"to name one image: {count(needed_controls(candidates, fdr))} controls{together}"
