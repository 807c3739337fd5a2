"""A finished run as a statement to hand over."""

from __future__ import annotations

from mi_core.checks import ConfigError
from mi_core.report.card import card
from mi_core.report.contents import fault_of
from mi_core.report.model.report import report_from_json
from mi_core.report.statement import Part, of_report, parsed, statement
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.damage import in_a_line, reading
from pipelines.report import verify
from pipelines.report.bindings import (
    CONFIG,
    REPORT,
    encoder_of,
    file_digest,
    file_of,
    parts_of,
    results_of,
    roles_of,
    run_folder,
)
from pipelines.run.folder import RunFolder
from pipelines.run.registration import lines_of

STATEMENT = "statement.json"


def write(run: str, out: str | None = None, card_out: str | None = None) -> tuple[str, ...]:
    """Write the statement of a finished run and, where wanted, a block for a model card; returns where they stand.

    Args:
        run: its folder.
        out: the statement; None: statement.json in the folder.
        card_out: the block, in Markdown; None: none.

    Raises:
        UserError: as `state`, or a name for output is a folder.
    """
    places = [f"{storage.absolute(run)}/{STATEMENT}" if out is None else storage.target(out)]
    places += [] if card_out is None else [storage.target(card_out)]
    for place in places:
        if not storage.is_uri(place) and storage.is_folder(place):
            raise UserError(f"{place} is a folder; give the name of a file")
    content = state(run)
    storage.write_json(places[0], content)
    if card_out is not None:
        report = report_from_json(storage.read_json(f"{storage.absolute(run)}/{REPORT}"))
        storage.write_atomic(places[1], card(report, content, file_digest(places[0])).encode())
    return tuple(places)


def state(run: str) -> Part:
    """The statement of a finished run: the same for the same run.

    Raises:
        UserError: there is no run or no report; the report is of another config, or has no primary attack; or the
            folder does not hold what the report is of.
    """
    folder = run_folder(run)
    with reading(run):
        made = _made(run, folder)
        checks = verify.consistency(made, folder)
    for check in checks:
        if check.outcome == verify.FAILS:
            raise UserError(f"{run} does not hold what its report is of: {check.about}: {check.text}")
    return made


def _made(run: str, folder: RunFolder) -> Part:
    entry = _finished(run, folder)
    report = report_from_json(entry)
    try:
        seeds = [of_seed["seed"] for of_seed in of_report(report)["primary"]["per_seed"]]
    except ConfigError as error:
        raise UserError(f"{run}: {error}") from error
    return statement(
        report,
        registrations=lines_of(folder),
        roles=[roles_of(folder, seed) for seed in seeds],
        encoders=[encoder_of(folder, seed, name) for seed in seeds for name in report.encoders],
        config=file_of(folder, f"{folder.path}/{CONFIG}"),
        report_file={**file_of(folder, f"{folder.path}/{REPORT}"), "parts": parts_of(entry)},
        results=results_of(folder, seeds),
    )


def _finished(run: str, folder: RunFolder) -> Part:
    """The report of a run whose config is the one that the folder holds."""
    try:
        report: Part = parsed(storage.read_bytes(f"{folder.path}/{REPORT}"))
    except FileNotFoundError as error:
        raise UserError(f"{run} holds no {REPORT}; write it with encoder-audit report {run}") from error
    except (RecursionError, ValueError) as error:
        why = f"{run}/{REPORT} is no JSON ({in_a_line(error)})"
        raise UserError(f"{why}; write it anew with encoder-audit report {run}") from error
    if fault := fault_of(report):
        raise UserError(f"{run}/{REPORT} {fault}; write it anew with encoder-audit report {run}")
    if report["config_sha256"] != folder.manifest.get("config_sha256"):
        raise UserError(f"{run}/{REPORT} is of another config than {CONFIG}; write it anew: encoder-audit report {run}")
    return report
