"""The registration of a run, ``registration.jsonl`` in its folder; see `mi_core.registration`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mi_core import plugins
from mi_core.provenance import versions
from mi_core.registration import file_of, lines_in, next_line, planned_nonce
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.run.folder import RunFolder

FILE = "registration.jsonl"


def lines_of(folder: RunFolder) -> list[dict[str, Any]]:
    """The lines of a run; none where nothing is registered yet.

    Raises:
        UserError: a line cannot be read.
    """
    path = f"{folder.path}/{FILE}"
    try:
        return lines_in(storage.read_bytes(path)) if storage.exists(path) else []
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged, and with it the registration; choose another --out") from error


def write_down(folder: RunFolder, event: str, content: Mapping[str, Any]) -> None:
    """Add a line; roles and plans only where the last line of their kind says something else."""
    lines = lines_of(folder)
    if (line := next_line(lines, event, content)) is not None:
        storage.write_atomic(f"{folder.path}/{FILE}", file_of([*lines, line]))


def registered_nonce(folder: RunFolder) -> str | None:
    """The nonce of the first plan; None: there is no plan yet, or its nonce is the seed."""
    return planned_nonce(lines_of(folder)).get("value")


def code_digest() -> dict[str, Any]:
    """The version of the tool, and a digest of its code as it is installed, that of plug-ins with it."""
    code = plugins.code_sha256(["mi_core", "pipelines", *plugins.modules()])
    return {"version": versions().get("encoder-audit", "not installed"), "code_sha256": code}
