"""Know a finished run again, so that it is shown without Ray and without a second look at its images."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mi_core.provenance import versions
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import EndpointConfig
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.run.folder import FINISHED, PROGRESS, RunFolder
from pipelines.run.registration import code_digest

_BESIDE = (f"/{FINISHED}", f"/{PROGRESS}", "/statement.json")  # a statement fits no report made anew


def mark_finished(config: RunConfig, folder: RunFolder) -> None:
    """Write down what a run rests on that has just been reported: its config, the code and every file of its folder."""
    storage.write_json(f"{folder.path}/{FINISHED}", _state(config, folder))


def is_finished(config: RunConfig, folder: RunFolder) -> bool:
    """Tell whether a run was reported and nothing changed since: no setting, no code, no file of the folder.

    A run that asks an encoder behind an API is never known so: whether that still answers as before must be asked.
    """
    if any(isinstance(encoder, EndpointConfig) for encoder in config.encoders.values()):
        return False
    with suppress(ValueError):  # damaged
        known = storage.read_json_or(f"{folder.path}/{FINISHED}", None)
        return known is not None and known == _state(config, folder)
    return False


def _state(config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    stamps = storage.stamps(folder.path, recursive=True)
    files = {path.removeprefix(folder.path): stamp for path, stamp in stamps.items()}
    return {
        "config_sha256": digest(config.model_dump(mode="json", by_alias=True)),
        "tool": code_digest(),
        "versions": versions(),
        "files_sha256": digest(
            {name: stamp for name, stamp in files.items() if name not in _BESIDE and "/." not in name}
        ),
    }
