"""Where the weights of a named encoder come from: a file, a folder, or the Hugging Face Hub.

A file of the Hub is ``hf://org/name/file`` or ``hf://org/name@revision/file``. The package huggingface_hub downloads
it; its variables HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME and HF_TOKEN hold.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mi_core.adoption.model_folder import CONTENTS, Read, Repository, folder_kind, json_of, packed, repository
from mi_core.checks import ConfigError, import_extra

_ADAPTER = "adapter_config.json"
_ADDRESS = re.compile(r"hf://(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/@]+))?/(?P<file>[^@]+)")


@dataclass(frozen=True)
class WeightSource:
    """Weights as `foreign.adopt` takes them: a file, or a model's files in one.

    Args:
        content: its bytes; of a model as `model_folder.packed` has them; None: there are none.
        commit: 40 hex digits, that its revision stood for; empty: it is not of the Hub.
        files: SHA-256 in hex of each file as its publisher has it, by its name.
    """

    content: bytes | None
    commit: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_file(cls, name: str, content: bytes, commit: str = "") -> WeightSource:
        """One file under the name that its publisher gave it."""
        return cls(content, commit, {name: hashlib.sha256(content).hexdigest()})

    def as_json(self) -> dict[str, Any]:
        """Its commit and files, by these words; nothing of what it lacks."""
        return {name: value for name in ("commit", "files") if (value := getattr(self, name))}


class _Folder:
    """Reads the files of a folder, and keeps the SHA-256 of each by its name."""

    def __init__(self, read: Callable[[str], WeightSource | None]) -> None:
        self.read, self.digests = read, dict[str, str]()

    def __call__(self, name: str) -> bytes | None:
        found = self.read(name) or WeightSource(None)
        self.digests |= found.files
        return found.content


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
        return read_hub_model(load, commit=commit, weights=not bare)
    if weights is None:
        return WeightSource(None)
    if kind is not None:
        folder = weights.rstrip("/")
        files = _Folder(lambda name: _read(f"{folder}/{name}", name, read))
        try:
            return WeightSource(packed(kind, files, weights=not bare), files=files.digests)
        except ConfigError as error:
            what = _adapter_of(folder, read) or f"no folder of {kind}: {error}"
            raise ConfigError(f"{weights} is {what}") from error
    if weights.startswith("hf://"):
        return read_hub_file(weights, commit=commit)
    found = _read(weights, Path(weights).name, read)
    if found is None:
        raise ConfigError(f"{weights} is {_folder_of(weights.rstrip('/'), read)}")
    return found


def _read(place: str, name: str, read: Read) -> WeightSource | None:
    return None if (content := read(place)) is None else WeightSource.of_file(name, content)


def _folder_of(folder: str, read: Read) -> str:
    """A description of a path that is no file, by the files below it, and the remedy."""
    known = {
        ".metadata": "a folder of torch.distributed.checkpoint; write python -m "
        "torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER weights.pt, and give that file",
        "zero_to_fp32.py": "a folder of DeepSpeed; its zero_to_fp32.py writes a file of weights",
        "config.json": "a folder of a model; give the file in it that ends with .safetensors or .bin, or load: "
        "transformers:<name> with the folder",
    }
    others = (what for name, what in known.items() if read(f"{folder}/{name}") is not None)
    return _adapter_of(folder, read) or next(others, "no file")


def _adapter_of(folder: str, read: Read) -> str:
    """A description of a folder of peft, and the remedy; empty: it is none."""
    content = read(f"{folder}/{_ADAPTER}")
    if content is None:
        return ""
    base = json_of({_ADAPTER: content}, _ADAPTER).get("base_model_name_or_path") or "BASE"
    return (
        f"an adapter of peft, such as LoRA, to the model {base}, which can be a reference; merge them, BASE being that "
        f"model: PeftModel.from_pretrained(BASE, {folder!r}).merge_and_unload().save_pretrained('MERGED'), copy its "
        "preprocessor_config.json there, and give the folder MERGED"
    )


def on_hub(load: str, weights: str | None) -> str | None:
    """The address of an encoder on the Hub, for `commit_of`; None: it is elsewhere."""
    if weights is not None:
        return weights if weights.startswith("hf://") else None
    return load if folder_kind(load) else None


def named_by_files(load: str, weights: str | None, read: Read) -> str:
    """The name of a model of the Hub with the kind that its files tell; other names as they are.

    Args:
        load: ``hub:org/name``, ``hub:org/name@revision``, or ``hub`` for a folder.
        weights: the folder; None: the Hub has the files.
        read: a file by its path.

    Returns:
        ``open_clip:hf-hub:org/name`` where open_clip's config is there, else ``timm:hf_hub:org/name`` or
        ``transformers:org/name`` by the fields of config.json.

    Raises:
        ConfigError: the files define none of these, or the Hub does not give them.
    """
    kind, _, place = load.partition(":")
    if kind != "hub":
        return load
    if weights is None:
        where = repository(f"transformers:{place}")

    def there(name: str) -> bytes | None:
        if weights is not None:
            return read(f"{weights}/{name}")
        return (_file(load, where, name) or WeightSource(None)).content

    config, found = there("config.json"), None
    fields = {} if config is None else json_of({"config.json": config}, "config.json")
    if there(CONTENTS["open_clip"].config) is not None:
        found = "open_clip:hf-hub"
    elif "architecture" in fields:
        found = "timm:hf_hub"
    elif "model_type" in fields:
        found = "transformers"
    if found is None:
        told = _adapter_of(weights or place, lambda _: there(_ADAPTER)) or (
            "no model of transformers, open_clip or timm; name its architecture, such as checkpoint:resnet50-imagenet, "
            "and its file as weights, such as hf://org/name/FILE"
        )
        raise ConfigError(f"{load} is {told}")
    return f"{found}:{place}" if place else found


def read_local(path: str) -> bytes | None:
    """The content of a file on this machine."""
    place = Path(path)
    return place.read_bytes() if place.is_file() else None


def read_hub_file(address: str, *, commit: str | None = None) -> WeightSource:
    """Download a file, or take it from the local cache.

    Args:
        address: a slash in a revision is written ``%2F``; without a revision it is ``main``.
        commit: that is taken instead of the revision, which stood for it before.

    Raises:
        ConfigError: the address is malformed, huggingface_hub is missing, or the Hub does not give the file.
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        raise ConfigError(f"{address} is no file of the Hub; write hf://org/name/file or hf://org/name@revision/file")
    revision = None if parts["revision"] is None else unquote(parts["revision"])
    found = _file(address, Repository(parts["repo"], commit or revision), parts["file"])
    if found is None:
        raise ConfigError(f"{address}: the Hub has no such file")
    return found


def read_hub_model(load: str, *, commit: str | None = None, weights: bool = True) -> WeightSource:
    """Download a model that is published as a folder, or take it from the local cache.

    Args:
        load: of `repository`, such as ``transformers:org/name``.
        commit: that is taken instead of the revision, which stood for it before.
        weights: whether those are wanted too.

    Returns:
        Its files, all of one commit.

    Raises:
        ConfigError: ``load`` names no repository, huggingface_hub is missing, or the Hub has no such model.
    """
    asked, kind = repository(load), folder_kind(load)
    assert kind is not None
    place = Repository(asked.name, commit or asked.revision)
    first = _file(load, place, CONTENTS[kind].config)
    if first is None:
        if adapter := _adapter_of(asked.name, lambda path: getattr(_file(load, place, _ADAPTER), "content", None)):
            raise ConfigError(f"{load} is {adapter}")
        raise ConfigError(f"{load}: it has no {CONTENTS[kind].config}, which defines a model of {kind}")
    here = Repository(asked.name, first.commit)
    files = _Folder(lambda name: _file(load, here, name))
    try:
        data = packed(kind, files, weights=weights)
    except ConfigError as error:
        raise ConfigError(f"{load}: {error}") from error
    return WeightSource(data, first.commit, files.digests)


def commit_of(address: str) -> str:
    """The commit that the revision of a file or model on the Hub stands for now. Raises ConfigError as reading it."""
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        return read_hub_model(address, weights=False).commit
    hub = _package(address)
    revision = None if parts["revision"] is None else unquote(parts["revision"])
    try:
        told = hub.get_hf_file_metadata(hub.hf_hub_url(parts["repo"], parts["file"], revision=revision)).commit_hash
    except (ValueError, OSError):
        told = None  # the cache may have it
    return told or read_hub_file(address).commit


def _file(asked: str, place: Repository, name: str) -> WeightSource | None:
    """A file of a repository; None: the repository has no such file."""
    hub = _package(asked)
    errors, offline = hub.errors, hub.constants.HF_HUB_OFFLINE
    try:
        path = Path(hub.hf_hub_download(place.name, name, revision=place.revision))
    except errors.LocalEntryNotFoundError as error:
        configs = {one.config for one in CONTENTS.values()}
        kept = (hub.try_to_load_from_cache(place.name, one, revision=place.revision) for one in configs)
        if offline and any(isinstance(one, str) for one in kept):
            return None  # the repository is here, without this file
        raise ConfigError(
            f"{asked}: {name} is not in the local cache, and the Hub "
            f"{'is not asked, for HF_HUB_OFFLINE is set' if offline else 'does not answer'}; "
            "download the model elsewhere and give its path as weights"
        ) from error
    except errors.EntryNotFoundError:
        return None
    except (errors.HfHubHTTPError, ValueError, OSError) as error:
        raise ConfigError(f"{asked}: {' '.join(str(error).split())[:300]}") from error
    content = path.read_bytes()
    # The cache lays files out as snapshots/<commit>/<path in the repository>.
    commit = path.parts[-len(Path(name).parts) - 1]
    return WeightSource.of_file(name, content, commit)


def _package(asked: str) -> Any:
    """The package huggingface_hub. Raises ConfigError naming the extra when it is missing."""
    return import_extra("huggingface_hub", asked, "hub", "constants", "errors")
