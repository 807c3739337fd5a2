"""The two versions of an image, and of its caption, of which a lot publishes one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from mi_core.hashing import digest64
from mi_core.images import Decoder, decode_and_hash
from mi_core.lots.marks import twins
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
        twins: whether one of two versions of every image is published.
        captions: whether one of two captions is.
    """

    share: float
    twins: bool = False
    captions: bool = False


@dataclass(frozen=True)
class Versions:
    """Both versions of an image.

    Args:
        images: their bytes; one where the image is not marked.
        captions: their texts; empty where captions are not drawn.
    """

    images: tuple[bytes, ...]
    captions: tuple[str, ...]

    def pixels(self) -> list[str]:
        """The SHA-256 of the pixels of each version."""
        return [decode_and_hash(data, ANY_SIZE).sha256 for data in self.images]

    def files(self) -> list[str]:
        """Digests that tell whether the bytes are those that were committed."""
        return [bytes_digest(data) for data in self.images]

    def image(self, coin: int) -> bytes:
        """The version that a coin chooses; an image that is not marked has but one."""
        return self.images[coin if len(self.images) > 1 else 0]


def versions_of(image: bytes, sha256: str, caption: str, wanted: Wanted, key: str) -> Versions:
    """Both versions of an image and its caption, the same whenever they are made.

    Args:
        image: its bytes.
        sha256: of its pixels.
        caption: its own.
        wanted: what is drawn.
        key: secret of the release.
    """
    made = twins(image, digest64(key, "mark", sha256)) if wanted.twins else None
    lines = credit_lines(digest64(key, "caption", sha256)) if wanted.captions else ()
    return Versions(made or (image,), tuple(captioned(caption, line) for line in lines))


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
