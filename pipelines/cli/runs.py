"""Commands that only look at runs: index, compare, forget, status, statement and verify; opening a report."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.flags import EncoderFlags, with_flags
from pipelines.console import count_of, output
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.damage import reading

Open = Annotated[bool, typer.Option("--open", help="Show the page in the browser.")]


def index(
    folder: Annotated[str, typer.Argument(help="Folder with runs in it, such as runs or s3://...", metavar="FOLDER")],
    out: Annotated[
        str | None, typer.Option("--out", help="The page; default: index.html in the folder.", metavar="FILE")
    ] = None,
    show: Open = False,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page to this machine alone, until Ctrl-C.")] = False,
) -> None:
    """Write one page over all runs below a folder: verdicts, versions of an encoder over time, links to the reports."""
    if serve:
        from pipelines.report.serve import serve as ready

        with ready(folder) as server:
            address = f"http://127.0.0.1:{server.server_port}/"
            output.print(f"serving {folder} at {address} (Ctrl-C ends it)", soft_wrap=True, highlight=False)
            if show:
                webbrowser.open(address)
            with suppress(KeyboardInterrupt):
                server.serve_forever()
        return
    from pipelines.report.index import write

    found = write(folder, out)
    runs = count_of(len(found.entries) + len(found.unread), "run", "runs")
    listed = f"{len(found.unread)} without, listed with the reason"
    output.print(f"{runs} seen: {len(found.entries)} with a report, {listed}", highlight=False)
    tell("page", found.page, show=show)


def compare(
    first: Annotated[str, typer.Argument(help="Folder of a finished run, or its report.json.", metavar="RUN")],
    second: Annotated[str, typer.Argument(help="The same of another run.", metavar="RUN")],
    json: Annotated[str | None, typer.Option("--json", help="Write the comparison to a file.", metavar="FILE")] = None,
) -> None:
    """Compare two reports: verdicts, images, encoders, attacks, utility, defenses, and differences of the configs."""
    from pipelines.report import compare as comparison

    found = comparison.compare(first, second)
    output.print(comparison.table(found))
    if json is not None:
        storage.write_json(storage.target(json), found)


def forget(
    before: Annotated[str, typer.Argument(help="Finished audit of the encoder before unlearning.", metavar="BEFORE")],
    after: Annotated[str, typer.Argument(help="The same audit of the encoder after it.", metavar="AFTER")],
    retrained: Annotated[
        str | None, typer.Option("--retrained", help="The same of an encoder that never saw the images.", metavar="RUN")
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Share of what the attack knew before that may be left.")
    ] = 0.25,
    kept: Annotated[float, typer.Option("--kept", help="Share of the images that may be kept in full.")] = 0.05,
    json: Annotated[str | None, typer.Option("--json", help="Write what was found to a file.", metavar="FILE")] = None,
) -> None:
    """Judge whether an encoder forgot images: the same audit before and after. RUN:ENCODER names one of several."""
    from pipelines.report import forget as forgetting

    found = forgetting.forget(before, after, retrained, tolerance=tolerance, kept=kept)
    output.print(forgetting.table(found))
    if json is not None:
        storage.write_json(storage.target(json), found)


def lookup(
    photos: Annotated[str, typer.Argument(help="Folder of photos.", metavar="PHOTOS")],
    where: Annotated[
        str, typer.Option("--list", help="Folder of images, or .txt, .csv, .parquet of digests or addresses.")
    ],
    column: Annotated[
        str | None, typer.Option("--column", help="Of the list; default: sha256, md5, sha1, url.")
    ] = None,
    json: Annotated[str | None, typer.Option("--json", help="Write what was found to a file.", metavar="FILE")] = None,
) -> None:
    """Look for photos in a public list of training data. Listed does not say used."""
    from pipelines.data.lookup import look_up

    found = look_up(photos, where, column)
    output.print(str(found), soft_wrap=True, highlight=False, markup=False)
    if json is not None:
        storage.write_json(storage.target(json), asdict(found))


def status(
    run: Annotated[str, typer.Argument(help="Run folder, of this or another machine.", metavar="RUN")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show the progress of a run; exit code 3: it was stopped, failed or was killed, 4: it gives no sign of life."""
    from pipelines.run.heartbeat import EXIT_CODES
    from pipelines.run.heartbeat import status as found

    stands = found(run)
    told = dumps(asdict(stands)) if as_json else str(stands)
    output.print(told, soft_wrap=True, highlight=False, markup=False)
    raise typer.Exit(EXIT_CODES.get(stands.state, 0))


def statement(
    run: Annotated[str, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    out: Annotated[
        str | None, typer.Option("--out", help="The statement; default: statement.json in the folder.", metavar="FILE")
    ] = None,
) -> None:
    """Write a finished audit as an in-toto statement, which binds the verdict to weights, images, plan and report."""
    from pipelines.report.statement import write

    tell("statement", write(run, out), show=False)


@with_flags
def verify(
    file: Annotated[str, typer.Argument(help="The statement, or a signed envelope of it.", metavar="STATEMENT")],
    named: EncoderFlags,
    place: Annotated[
        str | None, typer.Argument(help="Folder of the run that it is of; of a claim the lot.", metavar="[RUN|LOT]")
    ] = None,
    roots: Annotated[
        str | None, typer.Option("--roots", help="Certificates (PEM) by which time stamps are checked.", metavar="FILE")
    ] = None,
) -> None:
    """Check a statement: every digest anew, and the verdict by the rule; exit code 1: no, 4: cannot tell.

    The statement of a claim needs the encoder: it is asked again about a tenth of the images.
    """
    from pipelines.lots.again import ask_again
    from pipelines.lots.statement import Stated, is_claim
    from pipelines.lots.verify import ENCODER, in_a_line, verify_claim
    from pipelines.report.gate import CANNOT_TELL, EXIT_CODES
    from pipelines.report.statement import FAILS, HOLDS
    from pipelines.report.statement import verify as checked

    claimed = is_claim(file)
    if claimed:
        again = None
        if named.names_encoder:
            model, settings = named.claim_arguments()
            again = ask_again(file, place, model, **settings)
        checks = verify_claim(file, roots=roots, again=again)
        output.print(in_a_line(Stated.read(file), checks), soft_wrap=True, highlight=False, markup=False)
    elif place is None:
        raise UserError(f"{file} is of a run; give its folder as well: encoder-audit verify {file} RUN")
    else:
        checks = checked(file, place)
    for check in checks:
        output.print(f"{check.outcome:5}  {check.about}: {check.text}", soft_wrap=True, highlight=False, markup=False)
    if any(check.outcome == FAILS for check in checks):
        raise typer.Exit(1)
    if claimed and not any(check.about == ENCODER and check.outcome == HOLDS for check in checks):
        raise typer.Exit(EXIT_CODES[CANNOT_TELL])


def tell(name: str, page: str, *, show: bool) -> None:
    """Print where a page stands and, where wanted, show it in the browser."""
    output.print(f"{name}: {page}", soft_wrap=True, highlight=False)
    if not show:
        return
    if storage.is_uri(page):
        output.print("A browser opens files of this machine only; copy the page here first.")
    elif not _opened(page):
        output.print("There is no browser here; open the file yourself.")


def current_report(run: str) -> str | None:
    """The report of a run whose last start wrote it; None where the report has to be written first."""
    names = ("report.html", "report.json", "progress.json")
    page, report, path = (f"{storage.absolute(run)}/{name}" for name in names)
    with reading(path):
        progress = storage.read_json_or(path, {})
        done = progress.get("state") == "done" and progress.get("stage") == "report"
    if not (done and storage.exists(page)):
        return None
    with reading(report):
        storage.read_json(report)
    return page


def _opened(page: str) -> bool:
    try:
        return webbrowser.open(Path(page).as_uri())
    except (OSError, webbrowser.Error):
        return False
