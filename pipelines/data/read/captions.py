"""Find the caption of an image: the text beside it in the shard, or a caption made from its class."""

from __future__ import annotations

from collections.abc import Mapping

from mi_core.captions import templated_caption
from pipelines.config.sections.data import DataConfig
from pipelines.data.read.attributes import json_beside

SUFFIXES = ("txt", "caption")


def caption_of(
    config: DataConfig, source: str, key: str, others: Mapping[str, bytes], label: int | None
) -> tuple[str, bool]:
    """The caption of a sample, and whether it was made from the class."""
    own = own_caption(others)
    made = "" if own else made_caption(config, source, key, label)
    return own or made, bool(made)


def made_caption(config: DataConfig, source: str, key: str, label: int | None) -> str:
    """A caption made from the class of a sample; empty if ``data.captions`` has no entry for the class."""
    if label not in config.captions:
        return ""
    return templated_caption(config.captions[label].words(), source, key)


def own_caption(others: Mapping[str, bytes]) -> str:
    """The caption that a shard holds beside an image; empty if there is none."""
    for suffix in SUFFIXES:
        if suffix in others:
            return others[suffix].decode(errors="replace").strip()
    try:
        content = json_beside(others)
    except ValueError:
        return ""
    caption = content.get("caption", "") if isinstance(content, dict) else ""
    return caption.strip() if isinstance(caption, str) else ""
