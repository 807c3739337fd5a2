"""The command ``gate``, and the same after ``audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.options import FailOn, Junit, LeastAuc, MaxAuc, WorseThan
from pipelines.console import output
from pipelines.files import storage

if TYPE_CHECKING:
    from pipelines.report.gate import Gate


def gate(
    run: Annotated[str, typer.Argument(help="Folder of a finished run, or its report.json.", metavar="RUN")],
    fail_on: FailOn = None,
    max_auc: MaxAuc = None,
    least_auc: LeastAuc = None,
    worse_than: WorseThan = None,
    junit: Junit = None,
) -> None:
    """Let a pipeline stop at a leak: exit code 0 passes, 3 fails, 4 cannot tell."""
    from pipelines.report.gate import Gate

    end_by(Gate.from_options(fail_on, max_auc, worse_than, least_auc), run, junit)


def gate_after(place: str, junit: str | None, **options: Any) -> Gate | None:
    """The gate that options of ``audit`` describe, checked before the audit starts; None: none is given.

    Args:
        place: folder of the run.
        junit: as given.
        options: of `Gate.from_options`.

    Raises:
        UserError: an option is wrong.
    """
    if all(option is None for option in (junit, *options.values())):
        return None
    from pipelines.report.compare import check_two
    from pipelines.report.gate import Gate

    if options["worse_than"] is not None:
        check_two(options["worse_than"], place)
    return Gate.from_options(**options)


def end_by(wanted: Gate, run: str, junit: str | None) -> None:
    """Judge a run, say so in a line, and end with the exit code."""
    from pipelines.report import gate as gates

    conditions = wanted.judge(run)
    if junit is not None:
        storage.write_atomic(storage.target(junit), gates.junit(conditions, run))
    output.print(gates.line(conditions), soft_wrap=True, highlight=False, markup=False)
    raise typer.Exit(gates.EXIT_CODES[gates.outcome_of(conditions)])
