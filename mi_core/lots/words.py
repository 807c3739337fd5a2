"""The result of a claim in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from mi_core.lots.commitment import FIXED, OWNERS_WORD, UNTIL_DECIDED, WITNESSED
from mi_core.lots.draw import HELD_BACK
from mi_core.lots.verdict import USED, ClaimResult, DesignResult, least_auc
from mi_core.report.words.numbers import count, estimate, percent, rate, small

_ALBUMS = 5  # that are named
MEANINGS = {
    WITNESSED: "a later public number decided how the encoder was asked, so nobody could choose that",
    FIXED: "the sealed images and the encoder settle how it was asked, so the owner could choose nothing about that",
    OWNERS_WORD: "the owner of the images had a choice, so whoever does not trust the owner need not believe it",
}
"""The grades of a claim in words."""
CHOSEN = {"encoder": "code of the owner's own", "decoder": "image size or decoding"}
"""Parts of a plan in words."""


def headline(verdict: str, grade: str) -> str:
    """The answer in one sentence, with its grade."""
    if verdict == USED:
        return f"USED ({grade}): what this encoder answers depends on which of these images were published."
    return f"NOT SHOWN ({grade}): what this encoder answers does not show that it used the published images."


def grade_in_words(grade: str, alone: bool, given: Sequence[str]) -> str:
    """The grade of a claim and its reasons.

    Args:
        grade: of the claim.
        alone: whether the owner drew a release alone.
        given: the parts of the plan that the owner chose.
    """
    reasons = ["the owner drew alone, and may have drawn many lots"] if alone else []
    reasons += [f"the owner chose {', '.join(CHOSEN.get(part, part) for part in given)}"] if given else []
    return f"Grade: {grade}. {MEANINGS[grade].capitalize()}" + (f": {'; '.join(reasons)}." if reasons else ".")


def power_in_words(published: int, held_back: int) -> str:
    """The weakest effect that a claim on a lot would usually show."""
    if not published or not held_back:
        return f"With {count(held_back)} images held back, nothing can be shown."
    return (
        f"With {count(published)} images published and {count(held_back)} held back, a claim usually shows a use only "
        f"if it tells used from unused images with an AUC of {rate(least_auc(published, held_back), 2)} or more. "
        "Encoders of web scale have about .51."
    )


def lines(result: ClaimResult, lost: int) -> list[str]:
    """The lines below the headline.

    Args:
        result: of the claim.
        lost: images that are missing or altered.
    """
    decisive = result.decisive_p_value
    meaning = "So chance alone may explain the result."
    if result.verdict == USED:
        meaning = (
            "If the encoder had not used them, chance would give so clear a result in at most "
            f"{percent(max(decisive, 0.0001))} of draws, whatever the images and the encoder are."
        )
    told = [f"p = {small(decisive)}, and {small(result.level)} or less was needed. {meaning}"]
    told.append(
        f"Asked about {count(result.asked)} of {count(result.units)} images"
        + (": it was decided before the others." if result.asked < result.units else ".")
    )
    told += [_design(each, exact=result.counted != UNTIL_DECIDED) for each in result.designs]
    if result.share:
        told.append(f"At least {percent(result.share)} of the published images were used (95 % confidence).")
    told += _albums(result)
    if result.questions_asked > 1:
        told.append(
            f"This is question {result.questions_asked} about these images. The chance that any of them wrongly ends "
            "with USED is 1 % in all, so each later one needs a smaller p."
        )
    if lost:
        told.append(f"Missing, or altered since: {count(lost)} images. They count against the claim; put them back.")
    if result.verdict != USED:
        told.append(
            "This is no proof that they were not used: with few images, or where the encoder learned little of each, a "
            "use does not show."
        )
    return told


def _design(each: DesignResult, *, exact: bool) -> str:
    compared, guessing = f"caption against private ones ({count(each.published)} images)", ""
    if each.design == HELD_BACK:
        compared = f"against held back ({count(each.published)} and {count(each.other)} images)"
        guessing = " (.5 is guessing)"
    return f"Published {compared}: AUC {estimate(each.auc)}{guessing}" + (
        f", p = {small(each.p_value)}." if exact else "."
    )


def _albums(result: ClaimResult) -> list[str]:
    used, whole = [album for album in result.albums if album.is_used], count(len(result.albums))
    if not used:
        return [f"None of the {whole} albums shows it alone (corrected for their number)."] if result.albums else []
    named = ", ".join(f"{album.album} (p = {small(album.corrected_p_value)})" for album in used[:_ALBUMS])
    more = f", and {count(len(used) - _ALBUMS)} more" if len(used) > _ALBUMS else ""
    return [f"Albums that show it alone, {count(len(used))} of {whole}, corrected for their number: {named}{more}."]
