"""The report of one run: report.json, its figures, one HTML file for people, and tables for the terminal.

`contents` holds the data and the means over seeds, `numbers` how numbers look, `wording` what the verdict says,
`figures`, `html` and `terminal` the three ways to show it. ``report.schema.json`` is the contract of report.json.
"""
