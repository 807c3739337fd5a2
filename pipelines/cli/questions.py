"""The command ``init``: asks for what an audit takes, and writes it as a config with comments."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Annotated

import typer

from mi_core.auditing.config_text import yaml_of
from pipelines.cli.flags import Flags, with_flags
from pipelines.console import output
from pipelines.errors import UserError
from pipelines.files import storage

_EXAMPLES = (
    "open_clip:ViT-B-32, timm:resnet50, torchvision:resnet50, checkpoint:resnet50-imagenet (MoCo, SimCLR), "
    "transformers:org/name (Hugging Face), a URL"
)


@with_flags
def init(
    flags: Flags,
    to: Annotated[str, typer.Argument(help="The config to write.", metavar="FILE")] = "audit.yaml",
    replace: Annotated[bool, typer.Option("--replace", help="Write over an existing file.")] = False,
) -> None:
    """Ask a few questions and write a config with comments; questions that flags answer are not asked."""
    output.print(written(answered(flags), to, replace=replace), highlight=False, soft_wrap=True)


def answered(flags: Flags) -> Flags:
    """The same with answers to all questions that are open."""
    from mi_core.adoption.model_folder import folder_kind

    if not flags.names_encoder:
        named = typer.prompt(f"Which encoder? ({_EXAMPLES})")
        url = named.startswith(("http://", "https://"))
        flags = changed(flags, **({"url": named} if url else {"encoder": named}))
    code = (flags.encoder or "").startswith("python:")
    if flags.encoder is not None and flags.weights is None and not code and folder_kind(flags.encoder) is None:
        flags = changed(flags, weights=typer.prompt("File of its weights?"))
    if flags.url is not None and flags.adapter is None:
        question = "Shape of its requests (json, multipart, openai, voyage, cohere, titan)?"
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


def written(flags: Flags, path: str, *, replace: bool) -> str:
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
