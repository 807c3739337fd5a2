"""The result of a claim in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mi_core.lots.draw import CAPTIONS, HELD_BACK, TWINS
from mi_core.lots.verdict import UNTIL_DECIDED, USED, ClaimResult, DesignResult, Elsewhere
from mi_core.report.words.numbers import count, estimate, percent, small

_ALBUMS = 5  # that are named
_ALONE = (
    "The owner drew alone. The other side can say that many lots were drawn and the luckiest was kept, unless the "
    "commitment was shown to somebody before the encoder was made."
)


def headline(result: ClaimResult) -> str:
    """The answer in one sentence."""
    if result.verdict == USED:
        return "USED: what this encoder answers depends on which of these images were published."
    return "NOT SHOWN: what this encoder answers does not show that it used the published images."


def lines(
    result: ClaimResult, drawn_by: Sequence[Mapping[str, Any]], lost: int, elsewhere: Elsewhere | None = None
) -> list[str]:
    """The lines below the headline.

    Args:
        result: of the claim.
        drawn_by: of each release that was asked about, ``by`` and ``beacon``.
        lost: images that are missing or altered.
        elsewhere: what would be without the images that were seen elsewhere.
    """
    decisive = result.any_time_p_value if result.counted == UNTIL_DECIDED else result.p_value
    told = [f"p = {small(decisive)}, and {small(result.level)} or less was needed. {_meaning(result, decisive)}"]
    told.append(
        f"Asked about {count(result.asked)} of {count(result.units)} images"
        + (": it was decided before the others." if result.asked < result.units else ".")
    )
    told += [_design(each) for each in result.designs]
    if result.share:
        told.append(f"At least {percent(result.share)} of the published images were used (95 % confidence).")
    told += _albums(result)
    if result.questions_asked > 1:
        told.append(
            f"This is question {result.questions_asked} about this lot. The chance that any of them wrongly ends with "
            "USED is 1 % in all, so each later one needs a smaller p."
        )
    if lost:
        told.append(f"Missing, or altered since: {count(lost)} images. They count against the claim; put them back.")
    if elsewhere is not None:
        told.append(
            f"Seen elsewhere, as they are or nearly: {count(elsewhere.published)} published and "
            f"{count(elsewhere.held_back)} held-back images. Without them p = {small(elsewhere.p_value)}. The answer "
            "above does not follow that, since they were named after the draw. Held-back images that the encoder may "
            "know from elsewhere can hide a use; they cannot make one."
        )
    told += [_ALONE] if any(not one["beacon"] for one in drawn_by) else []
    if result.verdict != USED:
        told.append(
            "This is no proof that they were not used: with few images, or where the encoder learned little of each, a "
            "use does not show."
        )
    return told


def _meaning(result: ClaimResult, p_value: float) -> str:
    if result.verdict == USED:
        return (
            f"If the encoder had not used them, chance would give so clear a result in at most {percent(p_value)} of "
            "draws, whatever the images and the encoder are."
        )
    return "So chance alone may explain the result."


def _design(each: DesignResult) -> str:
    if each.design == HELD_BACK:
        return (
            f"Published against held back ({count(each.published)} and {count(each.other)} images): "
            f"AUC {estimate(each.auc)} (.5 is guessing), p = {small(each.p_value)}."
        )
    what = {TWINS: "version", CAPTIONS: "caption"}[each.design]
    return (
        f"Published {what} against the other one ({count(each.published)} images): AUC {estimate(each.auc)}, "
        f"p = {small(each.p_value)}."
    )


def _albums(result: ClaimResult) -> list[str]:
    used = [album for album in result.albums if album.is_used]
    if not result.albums:
        return []
    if not used:
        return [f"None of the {count(len(result.albums))} albums shows it alone (corrected for their number)."]
    named = ", ".join(f"{album.album} (p = {small(album.corrected_p_value)})" for album in used[:_ALBUMS])
    more = f", and {count(len(used) - _ALBUMS)} more" if len(used) > _ALBUMS else ""
    return [
        f"Albums that show it alone, {count(len(used))} of {count(len(result.albums))}, corrected for their number: "
        f"{named}{more}."
    ]
