"""The report of one run: report.json, its figures, one HTML file for people, and tables for the terminal.

`contents` holds the data and the means over seeds, `numbers` how numbers look, `wording` what the verdict says,
`figures`, `html` and `terminal` the three ways to show it. ``report.schema.json`` is the contract of report.json.
"""

from mi_core.report.attributes import final_inferences, plane, pool_inferences
from mi_core.report.contents import (
    AttackScores,
    EmbeddingMap,
    FigureData,
    LossCurve,
    StatisticCurve,
    final_rows,
    pool_seeds,
    pooled_rows,
    schema,
    to_json,
)
from mi_core.report.defenses import compare_defenses
from mi_core.report.drawing import Drawing
from mi_core.report.evidence import combine_tests
from mi_core.report.figures import draw_figures
from mi_core.report.html import render_html
from mi_core.report.images import ViewGrid
from mi_core.report.terminal import terminal_table
from mi_core.report.tuning import tuning_table

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
