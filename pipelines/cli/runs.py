"""Commands that look at runs: ``compare`` and ``status``."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.console import output


def compare(
    first: Annotated[str, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    second: Annotated[str, typer.Argument(help="Folder of another finished run.", metavar="RUN")],
    json: Annotated[str | None, typer.Option("--json", help="Write the comparison to a file.", metavar="FILE")] = None,
) -> None:
    """Compare two reports: verdicts, images, encoders, attacks, utility, defenses, and differences of the configs."""
    from pipelines.files import storage
    from pipelines.report import compare as comparison

    found = comparison.compare(first, second)
    output.print(comparison.table(found))
    if json is not None:
        storage.write_json(storage.target(json), found)


def status(
    run: Annotated[str, typer.Argument(help="Run folder, of this or another machine.", metavar="RUN")],
) -> None:
    """Show the progress of a run: stage, share done, rate, time left, or how it ended."""
    from pipelines.run.status import status as found

    output.print(found(run), soft_wrap=True, highlight=False)
