"""Pages of HTML, and their templates.

Nothing else of the report imports it.

    html        the report of a run
    index       many runs
"""
