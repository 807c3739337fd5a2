"""Trying out an encoder from elsewhere: it has to recognise images in two different views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.foreign import CODE, adopt
from mi_core.querying.sanity import consistency, recognises, views_found
from mi_core.streams import sample_streams
from pipelines.config.data import DataConfig
from pipelines.config.encoders import EndpointConfig, LoadedConfig
from pipelines.data.images import Loaded

PROBED = 256  # images on which an encoder is tried out
TRIED = 64  # images in a first look, before anything runs
RAW_PIXELS = "raw pixels"
EASY = 0.8  # views of which a reference finds more than this share leave little room to be better
SMALL = (0.1, 0.3)  # share of the image in a small crop


@dataclass(frozen=True)
class Probe:
    """Images of one seed to try out an encoder from elsewhere, in the views that its attackers draw."""

    config: LoadedConfig | EndpointConfig
    data: DataConfig
    seed: int
    shown: Loaded


def weights_consistency(probe: Probe, encoder: Encoder) -> dict[str, Any]:
    """View consistency beside that of fresh weights, where these can be built."""
    assert isinstance(probe.config, LoadedConfig)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reference = None
    if probe.config.load.partition(":")[0] not in CODE:
        fresh = adopt(
            probe.config.load,
            None,
            channels=probe.data.channels,
            image_size=encoder.size or probe.data.image_size,
            preprocessing=probe.config.preprocessing(),
            fresh=0,
        )
        reference = fresh.encoder.to(device)
    return view_consistency(probe, encoder.to(device), reference, device, fresh=probe.config.fresh)


def view_consistency(
    probe: Probe, encoder: Encoder, reference: Encoder | None, device: torch.device, *, fresh: bool = False
) -> dict[str, Any]:
    """View consistency of an encoder beside that of fresh weights, or of pixels where nothing can be built afresh.

    The views are those that attackers draw. Where even the reference finds nearly all of these, small crops leave more
    room to be better. An encoder that is declared to be ``fresh`` always counts as working.
    """
    streams = sample_streams(probe.seed, "probe", probe.shown.names())
    images, views, small = torch.from_numpy(probe.shown.images), probe.config.views(), False
    other = views_found(reference, images, streams, views, device=device, size=encoder.size)
    if float(other.float().mean()) > EASY:
        views, small = replace(views, crop_scale=SMALL), True
        other = views_found(reference, images, streams, views, device=device, size=encoder.size)
    own = views_found(encoder, images, streams, views, device=device, output=encoder.outputs[0])
    return {
        **({"small_crops": True} if small else {}),
        "encoder": consistency(own).as_json(),
        "reference": consistency(other).as_json(),
        "reference_name": RAW_PIXELS if reference is None else "fresh weights",
        "works": fresh or recognises(own, other),
    }


def consistency_in_words(shown: Mapping[str, Any]) -> str:
    """Share of images whose views find each other, beside a reference; a warning where it is no larger."""
    return f"{_seen(shown)}." if shown["works"] else f"WARNING: {fault_in_words(shown)}"


def fault_in_words(shown: Mapping[str, Any]) -> str:
    """The fault of an encoder that does not recognise images, with the evidence; empty where it does."""
    if shown["works"]:
        return ""
    against = "a comparison of raw pixels" if shown["reference_name"] == RAW_PIXELS else "an untrained one"
    return (
        f"this encoder recognises images no better than {against}. Wrong weights file or preprocessing? "
        f"It {_seen(shown)}."
    )


def _seen(shown: Mapping[str, Any]) -> str:
    own, other = shown["encoder"], shown["reference"]
    view = "small crop" if shown.get("small_crops") else "view"
    return (
        f"finds the other {view} of an image among {own['n']} in {own['value']:.1%} of cases "
        f"({shown['reference_name']}: {other['value']:.1%})"
    )
