"""A claim as one HTML page, for somebody who has to decide about it: the answer, its picture, and how to check it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mi_core.lots.commitment import UNTIL_DECIDED, Header, Question
from mi_core.lots.draw import HELD_BACK
from mi_core.lots.verdict import USED, ClaimResult
from mi_core.lots.words import grade_in_words, headline, lines
from mi_core.records import BoolArray
from mi_core.report.figures import drawing
from mi_core.report.figures.drawing import Drawing, blank, label_axes
from mi_core.report.page.html import inline_svg, unbroken
from mi_core.report.words.numbers import count, small
from mi_core.report.words.sentences import PAGES, template


@dataclass(frozen=True)
class ClaimPage:
    """What a page of a claim shows.

    Args:
        result: of the claim, and its grade, of `WITNESSED`, `FIXED` and `OWNERS_WORD`.
        question: that was registered; value: of the later number that decided its nonce, empty: none did.
        releases: headers with the values of their beacons; empty: the owner drew alone.
        scores: (M,) of the images; NaN: missing or altered.
        held_back: (M,) which of them were held back.
        answers: number of the answers, 64 hex digits: the last link of the chain.
    """

    result: ClaimResult
    grade: str
    question: Question
    value: str
    releases: Sequence[tuple[Header, str]]
    scores: npt.NDArray[np.float64]
    held_back: BoolArray
    answers: str

    @property
    def alone(self) -> bool:
        """Tell whether the owner drew a release without a beacon."""
        return not all(value for _, value in self.releases)

    @property
    def lost(self) -> int:
        """Images that are missing or altered; they count against the claim."""
        return int(np.isnan(self.scores).sum())


def render_claim(page: ClaimPage) -> str:
    """The page: a complete HTML5 document without scripts, which prints on two pages."""
    figures = [one for one in (_answers(page), _waves(page)) if one is not None]
    return unbroken(
        template(f"{PAGES}/claim.html.j2").render(
            page=page,
            used=page.result.verdict == USED,
            drawn=" and ".join({HELD_BACK: "images"}.get(each.design, "captions") for each in page.result.designs),
            headline=headline(page.result.verdict, page.grade),
            lines=lines(page.result, page.lost),
            graded=grade_in_words(page.grade, page.alone, page.question.given),
            figures=[(one, inline_svg(one, number)) for number, one in enumerate(figures)],
        )
    )


def _answers(page: ClaimPage) -> Drawing | None:
    """The scores of published and of held-back images; None: nothing was held back."""
    there = np.isfinite(page.scores)
    if not page.held_back[there].any() or page.held_back[there].all():
        return None
    figure, (panel,) = blank()
    published, held_back = page.scores[there & ~page.held_back], page.scores[there & page.held_back]
    bins = int(np.clip(2 * np.sqrt(min(len(published), len(held_back))), 8, 40))
    edges = np.histogram_bin_edges(page.scores[there], bins=bins)
    drawing.two_groups(panel, edges, ("published", published), ("held back", held_back))
    label_axes(panel, "how much alike the answers about one image are", "share of images (%)")
    title = "What the encoder answered about published and held-back images"
    medians = f"published {np.median(published):.3f}, held back {np.median(held_back):.3f}"
    return Drawing(figure, title, f"Chance decided who is in which group. Medians: {medians}.")


def _waves(page: ClaimPage) -> Drawing | None:
    """The any-time p-value after each wave; None: all were asked about at once."""
    waves, level = page.result.waves, page.result.level
    if page.result.counted != UNTIL_DECIDED or len(waves) < 2:
        return None
    figure, (panel,) = blank(height=2.6)
    asked, values = zip(*waves, strict=True)
    panel.plot(asked, values, marker="o", markersize=3.5, label="p by then", **drawing.look(0))
    drawing.level(panel, level, f"needed: {small(level)}")
    drawing.log_scale(panel.yaxis)
    label_axes(panel, "images asked about", "p-value, valid at any time")
    return Drawing(figure, "How the evidence grew", f"After {count(asked[-1])} images p is {small(values[-1])}.")
