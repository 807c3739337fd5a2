"""The caption of an image in a lot, and the two of it of which a lot publishes one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from mi_core.hashing import digest64
from mi_core.images import Decoder
from mi_core.lots.phrases import captioned, credit_lines
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.read.attributes import SUFFIXES
from pipelines.data.read.samples import Item, Sample
from pipelines.files import storage

ANY_SIZE = Decoder(64, fit="squash")
"""Enough to tell near-copies; digests are of the pixels at full size."""


@dataclass(frozen=True)
class Wanted:
    """The draws that are wanted of a release.

    Args:
        share: of the images that is held back, in [0, 1).
        captions: whether one of two captions of every image is published.
    """

    share: float
    captions: bool = False


def both_captions(caption: str, sha256: str, key: str) -> list[str]:
    """Both captions of an image, the same whenever they are made.

    Args:
        caption: its own.
        sha256: of its pixels.
        key: secret of the release.
    """
    return [captioned(caption, line) for line in credit_lines(digest64(key, "caption", sha256))]


def caption_beside(source: SourceConfig, item: Item, sample: Sample) -> str:
    """The caption of an image: in the tar, or in a text file of its name beside it; empty: there is none."""
    if source.kind == "shards":
        texts = [sample.others[suffix] for suffix in SUFFIXES if suffix in sample.others]
        return texts[0].decode(errors="replace").strip() if texts else ""
    data = storage.file_or_none(caption_path(f"{item.path}/{sample.key}"))
    return "" if data is None else data.decode(errors="replace").strip()


def caption_path(path: str) -> str:
    """The text file that belongs to an image file."""
    folder, slash, name = path.rpartition("/")
    stem, dot, _ = name.rpartition(".")
    return f"{folder}{slash}{stem if dot else name}.{SUFFIXES[0]}"


def bytes_digest(data: bytes) -> str:
    """A digest that tells whether bytes are those that were committed."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
