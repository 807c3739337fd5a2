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
from mi_core.report.words.sentences import say
from mi_core.validity.sets.forgetting import Forgetting

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


def table(report: Mapping[str, Any]) -> RenderableType:
    """The report of `pipelines.report.forget` for ``rich.console.Console.print``."""
    found = Forgetting.from_json(report["found"])
    style, title = _STYLES[found.verdict], TITLES[found.verdict]
    if found.verdict == "forgotten" and found.left.low > 0:
        title = f"Mostly {title[0].lower()}{title[1:]}"
    head = Group(
        Text(title, style=style),
        Text(say("forgetting", found)),
        Text(f"What it rests on: {say('forgetting_basis', report, found)}"),
        Text(f"What it does not say: {say('forgetting_limits')}"),
    )
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
