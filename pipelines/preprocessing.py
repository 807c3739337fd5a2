"""How images reach an encoder from elsewhere, beside the transform that its publisher gives with it."""

from __future__ import annotations

from typing import Any

from mi_core.checks import ConfigError
from mi_core.encoders.architectures import check_architecture
from mi_core.encoders.published import PUBLISHED, Preprocessing, published
from mi_core.sanity import Agreement
from pipelines.data_config import DataConfig
from pipelines.encoder_config import LoadedConfig

SAME = 0.9999  # cosine from which on two ways of decoding are one
COMPARED = 32  # images on which another way is measured


def with_published(raw: dict[str, Any]) -> dict[str, Any]:
    """A config whose data section decodes as the first loaded encoder's publisher does, if it names no image size.

    Raises:
        ValueError: that encoder's name or tag is unknown, or its package is missing.
    """
    data, encoders = raw.get("data"), raw.get("encoders")
    if not isinstance(data, dict) or not isinstance(encoders, dict) or data.get("image_size") is not None:
        return raw
    for name, settings in encoders.items():
        load = settings.get("load") if isinstance(settings, dict) else None
        if not isinstance(load, str) or load.partition(":")[0] not in PUBLISHED:
            continue
        own = {part: settings[part] for part in ("size", "interpolation") if settings.get(part) is not None}
        given = {part: value for part, value in data.items() if value is not None}
        return {**raw, "data": decoding_of(_published(name, load).changed(own)) | given}
    return raw


def _published(name: str, load: str) -> Preprocessing:
    try:
        check_architecture(load, channels=3, image_size=0)  # of these kinds the name alone is looked up
        found = published(load)
    except ConfigError as error:
        raise ValueError(f"encoders.{name}: {error}") from error
    assert found is not None
    return found.preprocessing


def decoding_of(own: Preprocessing) -> dict[str, Any]:
    """The fields of the data section that decode as a published transform does."""
    crop = {"fit": own.fit, "resize": own.resize} if own.fit else {}
    return {"image_size": own.size, "interpolation": own.interpolation, **crop}


def as_published(own: Preprocessing, data: DataConfig) -> DataConfig | None:
    """The data section with the encoder's own decoding; None if that is what it has, or if nothing is published."""
    if own.fit is None:
        return None
    theirs = data.model_copy(update=decoding_of(own))
    return None if theirs.decoder().settings() == data.decoder().settings() else theirs


def compared(config: LoadedConfig, data: DataConfig) -> int:
    """On how many images the two ways of decoding are compared."""
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
    apart = "differently" if found is None else f"with cosine {found.cosine:.4f} (centred {found.centred:.3f})"
    if found is not None and found.cosine >= SAME:
        return f"{own.words()}, as its publisher does it within rounding: {apart} on {found.images} images"
    on = "" if found is None else f" on {found.images} images"
    wanted = " ".join(f"data.{name}={value}" for name, value in decoding_of(own).items())
    return f"{own.words()}; NOTE: this run decodes {apart}{on} from that, to do as its publisher does set {wanted}"
