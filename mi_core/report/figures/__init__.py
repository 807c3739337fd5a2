"""The figures of a report.

It knows no page.

    figures     all figures of a report; curves, defense_figures: a kind each
    drawing     what they share, and the arrays that they are drawn from
"""
