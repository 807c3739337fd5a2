"""From results to report.json, report.html and the terminal.

The root and a drawer that imports nothing of it:

    run            the stage: a report of its parts
    parts          each part, made of a finished run
    compare        two runs side by side; forget: an encoder before and after; index: many runs on a page
    gate           conditions that a report has to pass
    statement      a run as a statement to hand over; bindings: the digests in it; verify: it is checked
"""
