"""The registration of a run: what the verdict will rest on, written down before the target is queried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.files.digest import digest
from pipelines.run.folder import RunFolder, now

REGISTRATIONS = "registrations"  # the list in the manifest
_OF_ENTRY = ("registered", "sha256")  # what an entry holds besides the plan


def plan_digest(entry: Mapping[str, Any]) -> str:
    """The digest of the plan in an entry of the list: of all but its time and its digest. 64 hex digits."""
    return digest({name: part for name, part in entry.items() if name not in _OF_ENTRY})


def write_down(folder: RunFolder, plan: Mapping[str, Any]) -> None:
    """Add a plan to the manifest's list, with the time and its digest, unless it stands there."""
    sha = plan_digest(plan)
    if sha not in [entry["sha256"] for entry in folder.manifest.get(REGISTRATIONS, [])]:
        folder.append_manifest(REGISTRATIONS, {"registered": now(), "sha256": sha, **plan})
