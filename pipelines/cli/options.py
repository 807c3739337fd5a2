"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli.completion import configs, stages

Config = Annotated[
    str,
    typer.Argument(
        help="Config file or name of a config, or run folder to continue.", metavar="CONFIG|RUN", autocompletion=configs
    ),
]
ConfigOrFlags = Annotated[
    str | None,
    typer.Argument(
        help="Config file or name of a config, or run folder to continue.",
        metavar="[CONFIG|RUN]",
        autocompletion=configs,
    ),
]
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
Encoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        help="The encoder: kind:architecture, such as open_clip:ViT-B-32, or transformers:org/name of the Hub.",
    ),
]
EncoderUrl = Annotated[str | None, typer.Option("--encoder-url", help="The encoder's API, in place of --encoder.")]
Adapter = Annotated[
    str | None,
    typer.Option("--adapter", help="Shape of its requests: json, multipart, openai, voyage, cohere or titan."),
]
ApiKeyEnv = Annotated[str | None, typer.Option("--api-key-env", help="NAME of the variable with the API's key.")]
Weights = Annotated[
    str | None,
    typer.Option("--weights", help="File of the encoder's weights; for transformers, its folder.", metavar="FILE"),
]
Candidates = Annotated[str | None, typer.Option("--candidates", help="Images in question: a folder, or shards.")]
Controls = Annotated[
    str | None, typer.Option("--controls", help="Images of the same kind that were surely not trained on.")
]
Known = Annotated[str | None, typer.Option("--known", help="Images that were surely trained on, if you have some.")]
Captions = Annotated[bool, typer.Option("--captions", help="Shards hold captions: attack image and caption too.")]
Reference = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        help="A trained encoder that saw neither group; repeatable. Default: small ones are trained here.",
    ),
]
ReferenceWeights = Annotated[
    list[str] | None,
    typer.Option("--reference-weights", help="File of a reference's weights, in the same order.", metavar="FILE"),
]
Quick = Annotated[bool, typer.Option("--quick", help="No references: minutes saved, but the verdict cannot be leak.")]
Nonce = Annotated[
    str | None,
    typer.Option("--nonce", help="A number of the other party that makes the views unforeseeable; default: drawn."),
]
Objective = Annotated[
    str | None,
    typer.Option("--objective", help="Its training: simclr, moco-v1, moco-v2, moco-v3, byol, clip and the like."),
]
Size = Annotated[int | None, typer.Option("--size", help="Side of the images in pixels; default: its own, or 224.")]
FailOn = Annotated[
    str | None,
    typer.Option(
        "--fail-on",
        help="Gate: verdicts that fail, with commas between: leak, confounded, no-evidence, undecided. Default: leak.",
        metavar="VERDICTS",
    ),
]
MaxAuc = Annotated[
    float | None, typer.Option("--max-auc", help="Gate: AUC that all attacks on the audited output must stay under.")
]
LeastAuc = Annotated[
    float | None, typer.Option("--least-auc", help="Gate: AUC of a leak that the audit must usually find. Default: .7.")
]
WorseThan = Annotated[
    str | None,
    typer.Option("--worse-than", help="Gate: fail if the leak is larger than that of this run.", metavar="RUN"),
]
Junit = Annotated[
    str | None, typer.Option("--junit", help="Gate: write its conditions as JUnit XML to a file.", metavar="FILE")
]


PREFIX = "Example: "


def example(arguments: str) -> str:
    """The last line of a command's help.

    Args:
        arguments: what follows ``encoder-audit``; without square brackets, which rich reads as styles.
    """
    return f"{PREFIX}encoder-audit {arguments}"
