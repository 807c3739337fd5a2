"""The content of report.json as typed parts.

`as_json` writes and reads any of them by their fields; `report.schema.json` says what each means. An optional part that
was not measured is None, or empty, and absent from the file.
"""
