"""A finished run as files for other tools: tables as CSV, figures as SVG and PDF with the numbers that are drawn."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
from pyarrow.csv import write_csv

from mi_core.report.figures.figures import draw_figures
from pipelines.attack.candidates import samples_folder
from pipelines.attack.scores import judged
from pipelines.files import storage
from pipelines.plan.load import load
from pipelines.report.compare import read_report
from pipelines.report.finished import FinishedRun
from pipelines.report.run import DRAWN, figure_data
from pipelines.run.folder import RunFolder


def export(place: str, folder: str) -> list[str]:
    """Write attacks.csv, scores.csv, candidates.csv and figures/ to a folder.

    Args:
        place: folder of the run, which has its report.
        folder: a path or URI.

    Returns:
        The paths that were written. Of an attack with more than a million scores about as many are drawn by their ids.

    Raises:
        UserError: the report is not there.
    """
    run, report = FinishedRun.at(load(f"{place}/config.yaml"), RunFolder(place)), read_report(place)
    files = {f"{name}.csv": _csv(table) for name, table in _tables(run)}
    for name, drawing in draw_figures(report, figure_data(run)).items():
        files[f"figures/{name}{drawing.suffix}"] = drawing.image
        if not drawing.photographs:
            files[f"figures/{name}.pdf"] = drawing.pdf
            columns = zip(("panel", "series", "x", "y"), zip(*drawing.points(), strict=True), strict=False)
            files[f"figures/{name}.csv"] = _csv(pa.table({column: list(values) for column, values in columns}))
    for name, data in files.items():
        storage.write_atomic(f"{folder}/{name}", data)
    return [f"{folder}/{name}" for name in files]


def _tables(run: FinishedRun) -> Iterator[tuple[str, pa.Table]]:
    """What every attack reached, with its difference from the primary one; all scores; answers for candidates."""
    yield "attacks", storage.read_table(f"{run.folder.path}/results.parquet")
    scores = []
    for task, _ in run.applying():
        if task.judge.last:
            told = run.tried(task) | {"reference": task.judge.attack.reference}
            table = judged(task, ("id", "member", "score", "control", "calibrated"), DRAWN)
            for name, value in reversed(told.items()):
                table = table.add_column(0, name, pa.array(["" if value is None else value] * len(table)))
            scores.append(table)
    yield "scores", pa.concat_tables(scores, promote_options="default")
    answers = []
    for _, place in run.planned:
        for path in storage.list_files(samples_folder(place)):
            table = storage.read_table(path)
            answers.append(table.add_column(0, "seed", pa.array([place.seed] * len(table))))
    if answers:
        yield "candidates", pa.concat_tables(answers)


def _csv(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    write_csv(table, buffer)
    return buffer.getvalue()
