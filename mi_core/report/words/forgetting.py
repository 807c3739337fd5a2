"""The result of a test of forgetting, in words and as a table of the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mi_core.report.words.numbers import estimate, percent
from mi_core.validity.sets.forgetting import Forgetting
from mi_core.validity.sets.kept import PERCENTILES

TITLES = {
    "forgotten": "Forgotten, as far as these attacks can see",
    "not-forgotten": "Not forgotten",
    "cannot-tell": "Cannot tell",
}
_STYLES = {"forgotten": "bold cyan", "not-forgotten": "bold red", "cannot-tell": "bold"}
_ROWS = {
    "before_auc": "AUC on the encoder before",
    "after_auc": "AUC on the encoder after",
    "unseen_auc": "AUC on an encoder that never saw the images",
    "blind_auc": "AUC of the blind classifier",
    "known": "known before: before minus unseen",
    "left": "left: after minus unseen",
    "left_blind": "after minus blind classifier",
    "removed": "removed: before minus after",
}


_SIGNS = {
    "percentile-95": "{above} of them score above the 95th percentile of an encoder that never saw them",
    "percentile-99": "{above} of them score above the 99th percentile of an encoder that never saw them",
    "weights": "the weight of those that stand out most is larger than on an encoder that never saw them",
}


def in_words(found: Forgetting) -> str:
    """The result, and the test that decided, in one to three sentences.

    Example:
        >>> from mi_core.records import Estimate
        >>> from mi_core.validity.sets.kept import Tail
        >>> sure, none = Estimate(0.3, 0.2, 0.4, 200), Estimate(0.0, -0.05, 0.05, 200)
        >>> chance, half = Estimate(0.5, 0.4, 0.6, 200), Estimate(0.8, 0.7, 0.9, 200)
        >>> tails = {"lpla": Tail((0.05, 0.01), 0.0, None, none, none, 0.04)}
        >>> in_words(Forgetting(half, chance, chance, chance, sure, none, sure, none, 0.2, 0.25, 0.05, tails))
        'Little of what the attack knew before is left: at most 20 %. Up to 4 % of the images may be kept in full.'
    """
    test, attack = found.decided
    own = found.tails[attack]
    most = None if found.left_at_most is None else percent(found.left_at_most)
    if test in _SIGNS:
        above = percent(round(own.above[PERCENTILES.index(own.percentile)], 3)) if own.percentile else ""
        least = f" At least {percent(round(own.least, 3))} are still known." if own.least else ""
        sign = f"By {attack}, {_SIGNS[test].format(above=above)}.{least}"
        if found.verdict == "not-forgotten":
            return f"The encoder after still knows some of the images. {sign}"
        return f"Some of the images stand out, but the blind classifier may see why. {sign}"
    if found.verdict == "not-forgotten":
        bound = f" At most {most} of what the attack knew is left." if most else ""
        return f"The encoder after still reveals the images.{bound}"
    if test == "kept":
        kept = "All" if own.kept_at_most is None else f"Up to {percent(own.kept_at_most)}"
        if found.verdict == "forgotten":
            part = " A part of it is still there: the AUC after is above that on the encoder that never saw the images."
            some = f" {kept} of the images may be kept in full."
            return f"Little of what the attack knew before is left: at most {most}.{some}{part * (found.left.low > 0)}"
        return (
            f"{kept} of the images may be kept in full, though little is left of the rest; 'forgotten' asks for at "
            f"most {percent(found.kept)}. More images, more controls or a stronger attack tell more."
        )
    if found.known.low <= 0:
        return "The attack did not find the images on the encoder before. So it cannot see whether they were forgotten."
    most = f"up to {most}" if most else "all"
    return (
        f"Of what the attack knew before, {most} may be left; 'forgotten' asks for at most {percent(found.tolerance)}. "
        "More images, or more controls, tell more."
    )


def table(report: Mapping[str, Any]) -> RenderableType:
    """The report of `pipelines.report.forget` for ``rich.console.Console.print``."""
    found = Forgetting.from_json(report["found"])
    style, title = _STYLES[found.verdict], TITLES[found.verdict]
    if found.verdict == "forgotten" and found.left.low > 0:
        title = f"Mostly {title[0].lower()}{title[1:]}"
    images = f"{report['images']:,} images, {report['controls']:,} controls"
    seeds = f", {len(report['seeds'])} seeds" if len(report["seeds"]) > 1 else ""
    more = list(found.tails)[1:]
    others = f"; for kept images also {', '.join(more)}" if more else ""
    known = (
        f"The attack {report['attack']} on the {report['output']} output, on {images}{seeds}{others}. The encoder "
        f"{report['unseen']['encoder']} of {report['unseen']['run']} never saw the images."
    )
    caveat = (
        "Another attack may find what these do not. Only the answers of the encoder were looked at; "
        "that says nothing of copies of the images, or of other versions of the encoder."
    )
    head = Group(
        Text(title, style=style), Text(in_words(found)), Text(f"What it rests on: {known}"),
        Text(f"What it does not say: {caveat}"),
    )  # fmt: skip
    panel = Panel(head, title=Text("forgotten?"), title_align="left", border_style=style, padding=(0, 1))
    rows = Table("measured", "value [95 % interval]", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, words in _ROWS.items():
        rows.add_row(words, estimate(getattr(found, name)))
    for name, own in found.tails.items():
        shares = " and ".join(percent(round(share, 3)) for share in own.above)
        rows.add_row(f"{name}: images above the 95th and 99th percentile", f"{shares}, unseen 5 % and 1 %")
    if (kept := found.tails[found.chosen].kept_at_most) is not None:
        rows.add_row("images kept in full, at most", percent(kept))
    utility = [
        f"{side} {percent(report['utility'][side])}" for side in ("before", "after") if side in report["utility"]
    ]
    told = [Text(f"kNN accuracy of the encoder {', '.join(utility)}.")] if utility else []
    return Group(panel, Padding(rows, (0, 0, 0, 1)), *told)
