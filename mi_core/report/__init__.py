"""The report of one run: report.json, its figures, one HTML file for people, and tables for the terminal.

`contents` holds the data and the means over seeds, `numbers` how numbers look, `wording` what the verdict says,
`figures`, `html` and `terminal` the three ways to show it. ``report.schema.json`` is the contract of report.json.
"""

from __future__ import annotations

__all__ = [
    "AttackScores",
    "Drawing",
    "EmbeddingMap",
    "FigureData",
    "LossCurve",
    "StatisticCurve",
    "ViewGrid",
    "combine_tests",
    "compare_defenses",
    "draw_figures",
    "final_inferences",
    "final_rows",
    "plane",
    "pool_inferences",
    "pool_seeds",
    "pooled_rows",
    "render_html",
    "schema",
    "terminal_table",
    "to_json",
    "tuning_table",
]
