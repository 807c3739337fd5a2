"""Whether an encoder from elsewhere works at all: it recognises images that it is shown twice, in other views."""

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

PROBED = 256  # images on which an encoder shows that it works
TRIED = 64  # as many in a first look, before anything runs
RAW_PIXELS = "raw pixels"
EASY = 0.8  # views of which a reference finds more than this share leave little room to be better
SMALL = (0.1, 0.3)  # share of the image in a small crop


@dataclass(frozen=True)
class Probe:
    """What an encoder from elsewhere is shown: images of one seed, in the views that its attackers draw."""

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

    The views are those that attackers draw; where even the reference finds nearly all of these, small crops instead,
    which leave room to be better. An encoder that is declared to be ``fresh`` is as it should be: a control, or a
    planted truth.
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


def consistency_in_words(found: Mapping[str, Any]) -> str:
    """How often two views of an image find each other, against a reference; a warning where no more often."""
    return f"{_seen(found)}." if found["works"] else f"WARNING: {fault_in_words(found)}"


def fault_in_words(found: Mapping[str, Any]) -> str:
    """What is wrong with an encoder that does not recognise images, and what was seen; empty where it does."""
    if found["works"]:
        return ""
    against = "a comparison of raw pixels" if found["reference_name"] == RAW_PIXELS else "an untrained one"
    return (
        f"this encoder recognises images no better than {against}. Wrong weights file or preprocessing? "
        f"It {_seen(found)}."
    )


def _seen(found: Mapping[str, Any]) -> str:
    own, other = found["encoder"], found["reference"]
    view = "small crop" if found.get("small_crops") else "view"
    return (
        f"finds the other {view} of an image among {own['n']} in {own['value']:.1%} of cases "
        f"({found['reference_name']}: {other['value']:.1%})"
    )
