"""From results to report.json, report.html and the terminal.

run            the stage: a report of its parts, which `finished` runs are made of, and what its figures are drawn from
attacks, caveats, rows, verdict      the parts
compare        two runs side by side; forget: an encoder before and after; index: many runs on a page
serve          that page for this machine, with states and comparisons
export         a run as CSV and its figures as files
gate           conditions that a report has to pass
statement      a run as a statement to hand over, and its check; bindings: the digests in it
"""
