"""Decoding as the publisher of a loaded encoder does it, where a config names no image size."""

from __future__ import annotations

from typing import Any

from mi_core.adoption.architectures import check_architecture
from mi_core.adoption.model_folder import folder_kind
from mi_core.adoption.published import PUBLISHED, Preprocessing, published
from mi_core.checks import ConfigError


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
        if not isinstance(load, str) or load.partition(":")[0] not in PUBLISHED or folder_kind(load):
            continue
        own = {part: settings[part] for part in ("size", "interpolation") if settings.get(part) is not None}
        given = {part: value for part, value in data.items() if value is not None}
        return {**raw, "data": _published(name, load).changed(own).decoding() | given}
    return raw


def _published(name: str, load: str) -> Preprocessing:
    try:
        check_architecture(load, channels=3, image_size=0)  # of these kinds the name alone is looked up
        found = published(load)
    except ConfigError as error:
        raise ValueError(f"encoders.{name}: {error}") from error
    assert found is not None
    return found.preprocessing
