"""The parts of report.json, each made of a finished run.

It imports nothing else of this room.

    finished    the run that every part is made of
    verdict     the verdict, and what the scores prove; bounds: what attacks reach at most; caveats: the warnings
    figures     the arrays of the figures; rows: results and sweeps as rows
    knowledge, defended, dp_audit, memorised: a question each
"""
