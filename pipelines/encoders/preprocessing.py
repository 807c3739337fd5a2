"""How images reach an encoder from elsewhere, beside the transform that its publisher gives with it."""

from __future__ import annotations

from typing import Any

from mi_core.adoption.model_folder import folder_kind
from mi_core.adoption.published import Preprocessing, published
from mi_core.querying.sanity import Agreement
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import LoadedConfig

SAME = 0.9999  # cosine from which on two ways of decoding are one
COMPARED = 32  # images on which another way is measured


def as_published(own: Preprocessing, data: DataConfig) -> DataConfig | None:
    """The data section with the encoder's own decoding; None if that is what it has, or if nothing is published."""
    if own.fit is None:
        return None
    theirs = data.model_copy(update=_published(own, data))
    return None if theirs.decoder().settings() == data.decoder().settings() else theirs


def compared(config: LoadedConfig, data: DataConfig) -> int:
    """On how many images the two ways of decoding are compared; at most, where only its folder says the other way."""
    if folder_kind(config.load):
        return COMPARED
    found = published(config.load)
    own = None if found is None else found.preprocessing.changed(config.preprocessing())
    return COMPARED if own is not None and as_published(own, data) is not None else 0


def in_words(own: Preprocessing, data: DataConfig, found: Agreement | None) -> str:
    """The preprocessing in one line: what is published, and whether the run does that; ``found`` None: not measured."""
    theirs = as_published(own, data)
    if own.fit is None:
        return own.words()
    if theirs is None:
        return f"{own.words()}, as its publisher does it"
    apart = "" if found is None else f" (cosine {found.cosine:.4f}, centred {found.centred:.3f}, {found.images} images)"
    if found is not None and found.cosine >= SAME:
        return f"{own.words()}, as its publisher does it up to rounding{apart}"
    wanted = " ".join(f"data.{name}={value}" for name, value in _published(own, data).items())
    return f"{own.words()}; NOTE: this run decodes images unlike the publisher{apart}; to match, set {wanted}"


def _published(own: Preprocessing, data: DataConfig) -> dict[str, Any]:
    """The fields of the data section to change: no publisher decodes JPEGs at less than their size."""
    return own.decoding() | ({"decode": "full"} if data.decode != "full" else {})
