"""The command line: parses, calls a stage, prints.

Exit codes: 0 done, 2 wrong input (one line), 1 anything else. A gate ends with 3 where it fails, with 4 where it cannot
tell.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace as changed
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mi_core.auditing.config_text import yaml_of
from pipelines.cli import flags as options
from pipelines.cli.check import check, check_stage, check_weights, estimate, loaded_run, submit
from pipelines.cli.flags import example
from pipelines.cli.listing import list_app, schema
from pipelines.cli.lots import claim_app, lot_app
from pipelines.cli.runs import Open, compare, current_report, forget, index, lookup, statement, status, tell, verify
from pipelines.cli.shards import shards_app
from pipelines.console import complain, log_as_json, output
from pipelines.errors import UserError, fault_of_user, unavailable_in
from pipelines.files import storage
from pipelines.run.machine import Interrupted, heed_sigterm, interruptible

if TYPE_CHECKING:
    from pipelines.config.run_config import RunConfig
    from pipelines.report.gate import Gate


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Find out whether images were used to train an image encoder, and how sure that is.",
    epilog=example("quickstart"),
)
app.add_typer(shards_app, name="shards")
app.add_typer(list_app, name="list")
app.add_typer(lot_app, name="lot")
app.add_typer(claim_app, name="claim")


def _tell_version(asked: bool) -> None:
    if asked:
        output.print(f"encoder-audit {version('encoder-audit')}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    told: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_tell_version)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works anywhere in a command.")
    ] = False,
    log: Annotated[
        str, typer.Option("--log", help="json: progress as lines of JSON on stderr; works anywhere in a command.")
    ] = "text",
) -> None:
    """`guarded` reads ``--debug`` and ``--log json`` before the command does."""
    if log != "text":
        raise UserError(f"--log {log}, allowed: json, text")


def _run(config_or_run: str, start: options.Start, last: str, show: bool = False) -> None:
    loaded, place = loaded_run(config_or_run, start.overrides, start.out)
    if last == "tune" and loaded.tune is None:
        raise UserError(f"{config_or_run} has no section tune: say what to search")
    _run_loaded(loaded, place, start, last, show)


def _run_loaded(loaded: RunConfig, place: str, start: options.Start, last: str, show: bool = False) -> None:
    from pipelines.audit import run as audits
    from pipelines.report import run as report

    check_stage(start.force)
    check_weights(loaded)
    with interruptible():
        folder = audits.run(
            loaded,
            place,
            last=last,
            address=start.address,
            force=start.force,
            command=shlex.join(["encoder-audit", *sys.argv[1:]]),
            verbose=start.verbose,
            yes=start.yes,
        )
    if last == "tune":
        output.print(report.tuned(folder))
    if last == "report":
        output.print(report.terminal(folder, whole=start.verbose))
        tell("report", f"{folder.path}/report.html", show=show)


@app.command(epilog=example("quickstart --out runs/quickstart"))
def quickstart(
    overrides: options.Overrides = None,
    out: options.Out = "runs/quickstart",
    address: options.Address = None,
    force: options.Force = None,
    verbose: options.Verbose = False,
) -> None:
    """Audit an encoder of handwritten digits: no GPU, no download, one to four minutes on two cores."""
    from pipelines.config.reading.yaml_text import shipped

    _run(shipped()["quickstart"], options.Start(overrides, out, address, force, verbose), "report")


@app.command(epilog=example("selftest --out runs/selftest"))
def selftest(
    config: Annotated[str | None, typer.Argument(help="Default: the config of quickstart.", metavar="[CONFIG]")] = None,
    overrides: options.Overrides = None,
    out: options.Out = "runs/selftest",
    address: options.Address = None,
    verbose: options.Verbose = False,
) -> None:
    """Check the tool itself on eighteen cases with known answers; exit code 1 if a verdict is wrong."""
    from pipelines.audit import selftest as planted
    from pipelines.config.reading.yaml_text import shipped
    from pipelines.plan.load import load

    place = out or "runs/selftest"
    loaded = load(config or shipped()["quickstart"], overrides or ())
    command = shlex.join(["encoder-audit", *sys.argv[1:]])
    with interruptible():
        passed = planted.run(loaded, place, address=address, command=command, verbose=verbose)
    output.print(planted.table(place))
    if not passed:
        raise typer.Exit(1)


@options.with_flags
def gate(
    run: Annotated[str, typer.Argument(help="Folder of a finished run, or its report.json.", metavar="RUN")],
    asked: options.Conditions,
) -> None:
    """Let a pipeline stop at a leak: exit code 0 passes, 3 fails, 4 cannot tell."""
    _end_by(_gate_of(asked), run, asked.junit)


def _gate_of(asked: options.Conditions) -> Gate:
    """The gate that options describe. Raises UserError: one is wrong."""
    from pipelines.report.gate import Gate

    return Gate.from_options(asked.fail_on, asked.max_auc, asked.worse_than, asked.least_auc)


def _end_by(wanted: Gate, run: str, junit: str | None) -> None:
    """Judge a run, say so in a line, and end with the exit code."""
    from pipelines.report import gate as gates

    conditions = wanted.judge(run)
    if junit is not None:
        storage.write_atomic(storage.target(junit), gates.junit(conditions, run))
    output.print(gates.line(conditions), soft_wrap=True, highlight=False, markup=False)
    raise typer.Exit(gates.EXIT_CODES[gates.outcome_of(conditions)])


STAGE_HELP = {
    "pretrain": "Draw the roles and train the encoders.",
    "extract": "Query the encoders for membership features, after the earlier stages.",
    "attack": "Fit and score the attacks and their controls, after the earlier stages.",
    "tune": "Search the parameters of a defense, after the earlier stages.",
}


def _add_stage(name: str) -> None:
    shown = "tune-digits" if name == "tune" else "quickstart"

    @app.command(name, help=STAGE_HELP[name], epilog=example(f"{name} {shown} queries.views=6 --out runs/{shown}"))
    @options.with_flags
    def stage(config: options.Config, start: options.Start) -> None:
        _run(config, start, name)


for _name in STAGE_HELP:
    _add_stage(_name)


@app.command(
    epilog=example("audit --encoder timm:resnet18 --weights resnet18.pth --candidates photos/ --controls others/")
)
@options.with_flags
def audit(
    flags: options.Flags, start: options.Start, asked: options.Conditions, config: options.ConfigOrFlags = None
) -> None:
    """Run all stages of a config, or audit the encoder that flags name; the same command continues a run."""
    if config is not None and config.startswith("hub:"):
        config, flags = None, changed(flags, encoder=config)
    flags.check_files()
    loaded, place = loaded_run(config, start.overrides, start.out, flags)
    wanted = None
    if asked != options.Conditions():
        from pipelines.report.compare import check_two

        if asked.worse_than is not None:
            check_two(asked.worse_than, place)
        wanted = _gate_of(asked)
    _run_loaded(loaded, place, start, "report")
    if wanted is not None:
        _end_by(wanted, place, asked.junit)


_EXAMPLES = (
    "open_clip:ViT-B-32, timm:resnet50, torchvision:resnet50, checkpoint:resnet50-imagenet (MoCo, SimCLR), "
    "transformers:org/name (Hugging Face), a URL"
)


@app.command(epilog=example("init audit.yaml"))
@options.with_flags
def init(
    flags: options.Flags,
    to: Annotated[str, typer.Argument(help="The config to write.", metavar="FILE")] = "audit.yaml",
    replace: Annotated[bool, typer.Option("--replace", help="Write over an existing file.")] = False,
) -> None:
    """Ask a few questions and write a config with comments; questions that flags answer are not asked."""
    output.print(_written(_answered(flags), to, replace), highlight=False, soft_wrap=True)


def _answered(flags: options.Flags) -> options.Flags:
    """The same with answers to all questions that are open."""
    from mi_core.adoption.model_folder import folder_kind
    from mi_core.encoders.remote.adapters import ADAPTERS

    if not flags.names_encoder:
        named = typer.prompt(f"Which encoder? ({_EXAMPLES})")
        url = named.startswith(("http://", "https://"))
        flags = changed(flags, **({"url": named} if url else {"encoder": named}))
    code = (flags.encoder or "").startswith("python:")
    if flags.encoder is not None and flags.weights is None and not code and folder_kind(flags.encoder) is None:
        flags = changed(flags, weights=typer.prompt("File of its weights?"))
    if flags.url is not None and flags.adapter is None:
        question = f"Shape of its requests ({', '.join(ADAPTERS)})?"
        flags = changed(flags, adapter=typer.prompt(question, default="json"))
    if flags.objective is None and not (flags.encoder or "").startswith(("open_clip:", "transformers:")):
        known = "simclr, moco-v1, moco-v2, moco-v3, byol, barlow-twins, vicreg, dino, mae, i-jepa, clip, siglip"
        question = f"How was it trained ({known})? If you do not know:"
        flags = changed(flags, objective=typer.prompt(question, default="simclr"))
    if flags.candidates is None:
        flags = changed(flags, candidates=typer.prompt("Folder of the images in question?"))
    if flags.controls is None:
        question = "Folder of images of the same kind that were surely not trained on (100 at least)?"
        flags = changed(flags, controls=typer.prompt(question))
    if flags.known is None:
        known = typer.prompt("Folder of images that were surely trained on (leave empty if none)?", default="")
        flags = changed(flags, known=known or None)
    return flags


def _written(flags: options.Flags, path: str, replace: bool) -> str:
    """Write the config; returns what to do next.

    Raises:
        UserError: the file exists, or the answers do not make a config.
    """
    from pipelines.plan.load import loaded_from

    if storage.exists(path) and not replace:
        raise UserError(f"{path} exists; give another name, or --replace")
    settings = flags.settings()
    text = yaml_of(settings)
    loaded_from(settings, path)
    storage.write_atomic(storage.target(path), text.encode())
    return f"{path} is written. Next:\n  encoder-audit check {path}\n  encoder-audit audit {path} --out runs/audit"


@app.command(epilog=example("report runs/quickstart --open"))
@options.with_flags
def report(
    config: options.Config,
    start: options.Start,
    show: Open = False,
    csv: Annotated[
        str | None, typer.Option("--csv", help="Write tables as CSV and figures as SVG and PDF.", metavar="FOLDER")
    ] = None,
) -> None:
    """Write report.json and report.html, after the earlier stages; with --open show a finished report at once."""
    page = current_report(config) if show and not (start.overrides or start.out or start.force) else None
    if page is not None:
        tell("report", page, show=show)
    else:
        _run(config, start, "report", show)
    if csv is not None:
        from pipelines.report.export import export

        _, place = loaded_run(config, start.overrides, start.out)
        written = export(storage.target(place), storage.target(csv))
        output.print(f"{len(written)} files: {csv}", highlight=False, soft_wrap=True)


for _command, _example in (
    (compare, "compare runs/quickstart runs/other --json difference.json"),
    (gate, "gate runs/quickstart --fail-on leak,undecided --max-auc .55"),
    (forget, "forget runs/before runs/after --retrained runs/retrained"),
    (index, "index runs"),
    (lookup, "lookup photos --list laion.parquet"),
    (status, "status runs/quickstart"),
    (statement, "statement runs/quickstart"),
    (verify, "verify runs/quickstart/statement.json runs/quickstart"),
    (check, "check quickstart queries.views=6"),
    (schema, "schema"),
    (options.completion, "completion bash"),
    (submit, "submit quickstart --address http://localhost:8265 --out s3://BUCKET/runs/quickstart"),
    (estimate, "estimate quickstart --wall 2"),
):
    app.command(epilog=example(_example))(_command)


PANELS = {
    "Start": ("quickstart", "init", "check", "selftest", "list"),
    "Audit": ("audit", "gate", "estimate"),
    "Proof by lot": ("lot", "claim", "verify"),
    "Read": ("report", "index", "compare", "forget", "lookup", "status", "statement"),
    "Cluster": ("submit", "shards"),
    "Stages": ("pretrain", "extract", "attack", "tune"),
    "Editor and shell": ("schema", "completion"),
}
"""The commands as ``--help`` groups them."""
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_entries: list[Any] = [*app.registered_commands, *app.registered_groups]
for _entry in _entries:
    _entry.rich_help_panel = _PANEL_OF[_entry.name or _entry.callback.__name__]
app.registered_commands.sort(key=lambda one: [*PANELS].index(str(one.rich_help_panel)))


def main(stage: str | None = None) -> None:
    """Entry point. ``stage``: the command that ``python -m pipelines.<stage>`` stands for."""
    if stage is not None:
        sys.argv.insert(1, stage)
    options.prepare()
    guarded(app)


def guarded(command: Callable[[], Any]) -> None:
    """Run a command; wrong input is one line on stderr and exit code 2, anything else a traceback and exit code 1.

    An interrupt, SIGTERM, and what does not start or answer are one line and exit code 1.
    """
    debug = _take("--debug")
    if _take("--log", "json") or _take("--log=json"):
        log_as_json()
    heed_sigterm()
    try:
        command()
    except Exception as error:
        fault, unavailable = fault_of_user(error), unavailable_in(error)
        if debug or (fault is None and unavailable is None):
            raise
        complain(fault or unavailable or "")
        sys.exit(1 if fault is None else 2)
    except Interrupted as interrupted:
        complain(str(interrupted))
        sys.exit(1)


def _take(*words: str) -> bool:
    """Take words that stand side by side out of the command line; whether they were there."""
    starts = [at for at in range(1, len(sys.argv)) if tuple(sys.argv[at : at + len(words)]) == words]
    for at in reversed(starts):
        del sys.argv[at : at + len(words)]
    return bool(starts)
