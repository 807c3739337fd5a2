"""Files of the Hugging Face Hub by address: ``hf://org/name/file``, or ``hf://org/name@revision/file``.

The package huggingface_hub downloads them. Its variables hold: HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME and HF_TOKEN.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pipelines.errors import UserError

_ADDRESS = re.compile(r"hf://(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/@]+))?/(?P<file>[^@]+)")


@dataclass(frozen=True)
class HubFile:
    """The bytes of a file, the commit (40 hex digits) that its revision stood for, and their SHA-256 in hex."""

    content: bytes
    commit: str
    sha256: str


def is_hub(path: str) -> bool:
    """Whether a path names a file of the Hub."""
    return path.startswith("hf://")


def read(address: str) -> HubFile:
    """Download a file, or take it from the local cache.

    Args:
        address: a slash in a revision is written ``%2F``; without a revision it is ``main``.

    Raises:
        UserError: the address is malformed, huggingface_hub is missing, or the Hub does not give the file.
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        raise UserError(f"{address} is no file of the Hub; write hf://org/name/file or hf://org/name@revision/file")
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError as error:
        raise UserError(f"{address} needs huggingface_hub: pip install 'encoder-audit[hub]'") from error
    revision = None if parts["revision"] is None else unquote(parts["revision"])
    try:
        place = Path(hf_hub_download(parts["repo"], parts["file"], revision=revision))
    except (errors.HfHubHTTPError, ValueError, OSError) as error:
        raise UserError(f"{address}: {' '.join(str(error).split())[:300]}") from error
    content = place.read_bytes()
    # The cache lays files out as snapshots/<commit>/<path in the repository>.
    commit = place.parts[-len(Path(parts["file"]).parts) - 1]
    return HubFile(content, commit, hashlib.sha256(content).hexdigest())
