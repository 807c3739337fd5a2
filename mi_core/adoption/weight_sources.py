"""Where the weights of a named encoder come from: a file, a folder, or the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from mi_core.adoption import hub
from mi_core.adoption.hub import WeightSource
from mi_core.adoption.model_folder import Definition, Read, definition, folder_kind, packed
from mi_core.checks import ConfigError


def read_weights_of(
    load: str, weights: str | None, read: Read, *, commit: str | None = None, bare: bool = False
) -> WeightSource:
    """Read the weights of a named encoder.

    Args:
        load: ``kind:name`` as `foreign.adopt` takes it.
        weights: a file, ``hf://org/name/file``, or a folder for a model that is published as one; None: the Hub for
            such a model, nothing for others.
        read: reads files that are not on the Hub.
        commit: of the Hub, in place of a revision.
        bare: of a folder, only what defines the network.

    Raises:
        ConfigError: there is no such file, folder or model.
    """
    kind = folder_kind(load)
    if kind is not None and weights is None:
        return hub.read_model(load, commit=commit, weights=not bare)
    if weights is None:
        return WeightSource(None)
    if kind is not None:
        folder = weights.rstrip("/")
        try:
            return WeightSource(packed(kind, lambda name: read(f"{folder}/{name}"), weights=not bare))
        except ConfigError as error:
            raise ConfigError(f"{weights} is no folder of {kind}: {error}") from error
    if hub.is_hub(weights):
        return hub.read(weights, commit=commit)
    content = read(weights)
    if content is None:
        raise ConfigError(f"{weights} is {_folder_of(weights.rstrip('/'), read)}")
    return WeightSource(content)


def _folder_of(folder: str, read: Read) -> str:
    """A description of a path that is no file, by the files below it, and the remedy."""
    known = {
        ".metadata": "a folder of torch.distributed.checkpoint; write python -m "
        "torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER weights.pt, and give that file",
        "zero_to_fp32.py": "a folder of DeepSpeed; its zero_to_fp32.py writes a file of weights",
        "config.json": "a folder of a model; give the file in it that ends with .safetensors or .bin, or load: "
        "transformers:<name> with the folder",
    }
    return next((what for name, what in known.items() if read(f"{folder}/{name}") is not None), "no file")


def on_hub(load: str, weights: str | None) -> str | None:
    """The address of an encoder on the Hub, for `hub.commit_of`; None: it is elsewhere."""
    if weights is not None:
        return weights if hub.is_hub(weights) else None
    return load if folder_kind(load) else None


def definition_of(load: str, weights: str | None, read: Read) -> Definition:
    """The small files of a model that is published as a folder; none for others. Raises as `read_weights_of`."""
    if folder_kind(load) is None:
        return {}
    return definition(read_weights_of(load, weights, read, bare=True).content)


def read_local(path: str) -> bytes | None:
    """The content of a file on this machine."""
    place = Path(path)
    return place.read_bytes() if place.is_file() else None
