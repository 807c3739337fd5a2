"""Arguments and options that several commands share, an audit that flags describe, and completion by the Tab key.

A shell runs ``encoder-audit`` with the variable `VARIABLE` set, and reads the suggestions from its output. That
imports neither PyTorch nor Ray.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

import mi_core
from mi_core import plugins
from mi_core.auditing.config_text import FAMILY, audit_settings, reference_settings
from pipelines.console import say
from pipelines.errors import UserError

PROGRAM = "encoder-audit"
VARIABLE = "_ENCODER_AUDIT_COMPLETE"


class Shell(StrEnum):
    """Shells that completion is there for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that you use.")]) -> None:
    """Print a script that lets the Tab key complete; in ~/.bashrc: eval "$(encoder-audit completion bash)"."""
    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value))  # noqa: T201


def prepare() -> None:
    """Get ready to answer a shell, if one asks."""
    if VARIABLE in os.environ:
        completion_init()


def configs(incomplete: str) -> list[str]:
    """Configs of the package and of the current folder, and folders, whose names begin so."""
    from pipelines.config.reading.yaml_text import shipped

    folder, slash, start = incomplete.rpartition("/")
    place = Path(f"{folder}{slash}")
    inside = place.iterdir() if place.is_dir() else ()
    beginning = [path for path in inside if path.name.startswith(start) and not path.name.startswith(".")]
    here = [f"{folder}{slash}{path.name}" for path in beginning if path.suffix == ".yaml" or path.is_dir()]
    return sorted([*(name for name in shipped() if name.startswith(incomplete)), *here])


def attacks(incomplete: str) -> list[str]:
    """Attacks whose names begin so."""
    return _methods("attacks", incomplete)


def defenses(incomplete: str) -> list[str]:
    """Defenses whose names begin so."""
    return _methods("defenses", incomplete)


def stages(incomplete: str) -> list[str]:
    """Stages whose names begin so."""
    from pipelines.run.folder import STAGES

    return [stage for stage in STAGES if stage.startswith(incomplete)]


def _methods(table: str, incomplete: str) -> list[str]:
    """Names of the methods in a table of `mi_core`, read off its file: importing them takes seconds."""
    own = Path(mi_core.__file__).with_name(table) / "__init__.py"
    names = [*re.findall(r'^    "([\w-]+)": ', own.read_text(encoding="utf-8"), re.MULTILINE), *plugins.names(table)]
    return sorted(name for name in names if name.startswith(incomplete))


_CODE = ("python", "torchscript")
_FOLDERS = ("transformers:", "open_clip:hf-hub:", "timm:hf_hub:", "timm:hf-hub:")  # the Hub has their weights
_CONFIG = "Config file or name of a config, or run folder to continue."
Config = Annotated[str, typer.Argument(help=_CONFIG, metavar="CONFIG|RUN", autocompletion=configs)]
ConfigOrFlags = Annotated[str | None, typer.Argument(help=_CONFIG, metavar="[CONFIG|RUN]", autocompletion=configs)]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Fields to change: section.field=value ...", metavar="[section.field=value]")
]
Out = Annotated[str | None, typer.Option("--out", help="Run folder; default: runs/<name of the run>.")]
Address = Annotated[
    str | None, typer.Option("--address", help="Ray cluster (host:port); default: RAY_ADDRESS, else a local Ray.")
]
Force = Annotated[
    str | None,
    typer.Option(
        "--force",
        help="Redo this stage and all that follow: data, pretrain, extract, attack, tune or report.",
        metavar="STAGE",
        autocompletion=stages,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Start without asking if the estimate exceeds the budget.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show every table, and Ray's own logs.")]
PREFIX = "Example: "


def example(arguments: str) -> str:
    """The last line of a command's help.

    Args:
        arguments: what follows ``encoder-audit``; without square brackets, which rich reads as styles.
    """
    return f"{PREFIX}encoder-audit {arguments}"


@dataclass(frozen=True)
class Start:
    """How a run is started."""

    overrides: Overrides = None
    out: Out = None
    address: Address = None
    force: Force = None
    verbose: Verbose = False
    yes: Yes = False


@dataclass(frozen=True)
class Conditions:
    """What a gate asks of a run."""

    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            help="Gate: verdicts that fail, with commas between: leak, confounded, no-evidence, undecided. "
            "Default: leak.",
            metavar="VERDICTS",
        ),
    ] = None
    max_auc: Annotated[
        float | None,
        typer.Option("--max-auc", help="Gate: AUC that all attacks on the audited output must stay under."),
    ] = None
    least_auc: Annotated[
        float | None,
        typer.Option("--least-auc", help="Gate: AUC of a leak that the audit must usually find. Default: .7."),
    ] = None
    worse_than: Annotated[
        str | None,
        typer.Option("--worse-than", help="Gate: fail if the leak is larger than that of this run.", metavar="RUN"),
    ] = None
    junit: Annotated[
        str | None, typer.Option("--junit", help="Gate: write its conditions as JUnit XML to a file.", metavar="FILE")
    ] = None


@dataclass(frozen=True)
class EncoderFlags:
    """The encoder that a command asks."""

    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            help="The encoder: kind:architecture, such as open_clip:ViT-B-32, or hub:org/name of the Hub.",
        ),
    ] = None
    url: Annotated[str | None, typer.Option("--encoder-url", help="The encoder's API, in place of --encoder.")] = None
    adapter: Annotated[
        str | None,
        typer.Option("--adapter", help="Shape of its requests, such as openai; encoder-audit list encoders shows all."),
    ] = None
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", help="NAME of the variable with the API's key.")
    ] = None
    weights: Annotated[
        str | None,
        typer.Option("--weights", help="File of the encoder's weights; for transformers, its folder.", metavar="FILE"),
    ] = None
    objective: Annotated[
        str | None,
        typer.Option("--objective", help="Its training: simclr, moco-v1, moco-v2, moco-v3, byol, clip and the like."),
    ] = None
    size: Annotated[
        int | None, typer.Option("--size", help="Side of the images in pixels; default: its own, or 224.")
    ] = None

    def __post_init__(self) -> None:
        """Say of a repository of the Hub which kind its files are. Raises UserError: they are none."""
        if self.encoder is not None and self.encoder.partition(":")[0] == "hub":
            from mi_core.adoption.weight_sources import named_by_files
            from mi_core.checks import ConfigError
            from pipelines.files.storage import file_or_none

            try:
                named = named_by_files(self.encoder, self.weights, file_or_none)
            except ConfigError as error:
                raise UserError(f"--encoder {self.encoder}: {error}") from error
            say("encoder", f"by its files {self.encoder} is {named}")
            object.__setattr__(self, "encoder", named)

    @property
    def names_encoder(self) -> bool:
        """Tell whether an encoder is named by a flag."""
        return self.encoder is not None or self.url is not None

    @property
    def endpoint(self) -> dict[str, str]:
        """How the API is asked, as far as flags say so."""
        own = {"adapter": self.adapter, "api_key_env": self.api_key_env}
        return {name: value for name, value in own.items() if value is not None}

    def claim_arguments(self) -> tuple[str, dict[str, Any]]:
        """The encoder, and the settings of `pipelines.lots.claim.claim`.

        Raises:
            UserError: both an encoder and an API are given, or neither, or options of the other one.
        """
        model = self.url or self.encoder
        if model is None or (self.encoder is not None and self.url is not None):
            raise UserError("give --encoder kind:architecture, or --encoder-url for an API")
        if self.endpoint and self.url is None:
            raise UserError("--adapter and --api-key-env are of an API; give --encoder-url")
        settings = {name: getattr(self, name) for name in ("weights", "objective", "size")}
        return model, {**settings, "endpoint": self.endpoint or None, "trust_code": model.partition(":")[0] in _CODE}


@dataclass(frozen=True)
class Flags(EncoderFlags):
    """The answers that describe an audit.

    Without an objective it is ``clip`` for CLIP and SigLIP, else ``simclr``; without a size the published one, else
    224; without references small ones are trained here; without a nonce one is drawn when the audit starts.
    """

    candidates: Annotated[str | None, typer.Option("--candidates", help="Images in question: a folder, or shards.")] = (
        None
    )
    controls: Annotated[
        str | None, typer.Option("--controls", help="Images of the same kind that were surely not trained on.")
    ] = None
    known: Annotated[
        str | None, typer.Option("--known", help="Images that were surely trained on, if you have some.")
    ] = None
    captions: Annotated[
        bool, typer.Option("--captions", help="Shards hold captions: attack image and caption too.")
    ] = False
    references: Annotated[
        list[str] | None,
        typer.Option(
            "--reference",
            help="A trained encoder that saw neither group; repeatable. Default: small ones are trained here.",
        ),
    ] = None
    reference_weights: Annotated[
        list[str] | None,
        typer.Option("--reference-weights", help="File of a reference's weights, in the same order.", metavar="FILE"),
    ] = None
    quick: Annotated[
        bool, typer.Option("--quick", help="No references: minutes saved, but the verdict cannot be leak.")
    ] = False
    nonce: Annotated[
        str | None,
        typer.Option("--nonce", help="A number of the other party that makes the views unforeseeable; default: drawn."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """The settings of a config.

        Raises:
            UserError: a flag is missing, or two contradict each other.
        """
        if self.encoder is not None and self.url is not None:
            raise UserError("--encoder and --encoder-url are both given; keep the one to audit")
        if not self.names_encoder:
            raise UserError("--encoder is missing; give kind:architecture, or --encoder-url for an API")
        for name in ("candidates", "controls"):
            if getattr(self, name) is None:
                raise UserError(f"--{name} is missing; give the folder of the images")
        if self.url is not None:
            target: dict[str, Any] = {"endpoint": {"url": self.url, **self.endpoint}}
        else:
            target = _loaded(self.encoder or "", self.weights, "--weights")
        captioned, decoding = self._published_decoding()
        sources = {"candidates": self.candidates, "controls": self.controls}
        sources |= {} if self.known is None else {"known": self.known}
        return audit_settings(
            target,
            self._references(decoding.get("image_size")),
            {name: _source(str(path)) for name, path in sources.items()},
            objective=self.objective or ("clip" if captioned else "simclr"),
            data=decoding,
            output="projection" if captioned else "backbone",
            views=10,
            nonce=self.nonce,
            seed=0,
            known=self.known is not None,
            captions=self.captions,
        )

    def check_files(self) -> None:
        """Raise UserError if a file of weights is not there; it can be seen before anything is loaded."""
        from pipelines.files.storage import is_missing

        for flag, paths in (("--weights", [self.weights]), ("--reference-weights", self.reference_weights or [])):
            for path in paths:
                if path is not None and is_missing(path):
                    raise UserError(f"{flag} {path} is no file; give that of the encoder's weights")

    def _published_decoding(self) -> tuple[bool, dict[str, Any]]:
        """Tell whether the encoder learned from captions, and how images come to it; empty where its name says that."""
        from mi_core.adoption.builders import usual_settings
        from mi_core.checks import ConfigError
        from pipelines.files.storage import file_or_none

        try:
            return usual_settings(self.encoder or "", self.weights, self.size, file_or_none)
        except ConfigError as error:
            raise UserError(f"--encoder {self.encoder}: {error}") from error

    def _references(self, side: int | None) -> dict[str, Mapping[str, Any]]:
        """Settings of the references: those given, or a family that is trained here on images of that side."""
        if self.quick:
            if self.references:
                raise UserError("--quick leaves references out, but --reference is given; keep one of the two")
            return {}
        if not self.references:
            if self.reference_weights:
                raise UserError("--reference-weights is given without --reference; name the encoder that they are of")
            return {FAMILY: reference_settings(side)}
        weights = list(self.reference_weights or ())
        found: dict[str, Mapping[str, Any]] = {}
        for number, one in enumerate(self.references):
            needs = one.partition(":")[0] != "python" and not one.startswith(_FOLDERS)
            own = weights.pop(0) if needs and weights else None
            found[f"{FAMILY}-{number}"] = _loaded(one, own, "--reference-weights")
        if weights:
            raise UserError(f"--reference-weights {weights[0]} belongs to no --reference; give one for each")
        return found


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the fields of its parameters that are dataclasses as options, behind its own parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @wraps(command)
    def wrapped(**given: Any) -> None:
        made = {
            name: group(**{one.name: given.pop(one.name) for one in fields(group)}) for name, group in groups.items()
        }
        command(**made, **given)

    own = signature(command, eval_str=True)
    shown = [one for one in own.parameters.values() if one.name not in groups]
    for group in groups.values():
        told = get_type_hints(group, include_extras=True)
        shown += [
            Parameter(one.name, Parameter.POSITIONAL_OR_KEYWORD, default=one.default, annotation=told[one.name])
            for one in fields(group)
        ]
    wrapped.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in shown}
    return wrapped


def _loaded(named: str, weights: str | None, flag: str) -> dict[str, Any]:
    """Settings of an encoder by its name and the file of its weights."""
    own: dict[str, Any] = {"load": named} | ({"weights": weights} if weights else {})
    if named.partition(":")[0] in _CODE:
        return own | {"trust_code": True}
    if weights is None and not named.startswith(_FOLDERS):
        raise UserError(f"{flag} is missing; give the file of the weights of {named}")
    return own


def _source(path: str) -> dict[str, str]:
    """A source of images: tars and Parquet files by their suffix, anything else a folder."""
    kinds = {"shards": (".tar", ".tar.gz", ".tgz"), "parquet": (".parquet",)}
    kind = next((kind for kind, suffixes in kinds.items() if path.endswith(suffixes)), "imagefolder")
    return {"kind": kind, "path": path}
