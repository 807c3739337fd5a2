"""The figures of a report.

It knows no page.

    figures     all figures of a report; curves, defense_figures, images: a kind each
    drawing     what they share
"""
