"""Trying out an encoder from elsewhere: it has to recognise images in two different views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mi_core.adoption.foreign import Adopted, untrained
from mi_core.encoders.checkpoint import Encoder
from mi_core.querying.sanity import VIEWS, view_consistency
from mi_core.streams import pixel_streams
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import EndpointConfig, LoadedConfig
from pipelines.console import meter
from pipelines.data.draw.images import Loaded

TRIED = 64  # images in a first look, before anything runs


@dataclass(frozen=True)
class Probe:
    """Images of one seed to try out an encoder from elsewhere, in the views that its attackers draw."""

    config: LoadedConfig | EndpointConfig
    data: DataConfig
    seed: int
    shown: Loaded

    def consistency(
        self, encoder: Encoder, reference: Encoder | None, device: torch.device, *, fresh: bool = False
    ) -> dict[str, Any]:
        """The view consistency of an encoder, as `mi_core.querying.sanity.view_consistency`."""
        images = torch.from_numpy(self.shown.images)
        streams = pixel_streams("", self.seed, "probe", images)
        total, shown = VIEWS * len(images) * (1 if reference is None else 2), 0
        with meter("trying out the encoder", total, "views") as told:

            def asked(views: int) -> None:
                nonlocal shown
                shown += views
                told(shown)

            recipe = self.config.views()
            return view_consistency(
                encoder, reference, images, streams, recipe, device=device, fresh=fresh, asked=asked
            )


def weights_consistency(probe: Probe, adopted: Adopted) -> dict[str, Any]:
    """View consistency beside that of fresh weights, where these can be built."""
    assert isinstance(probe.config, LoadedConfig)
    config, data = probe.config, probe.data
    own = config.preprocessing()
    fresh = untrained(config.load, adopted, channels=data.channels, image_size=data.image_size, preprocessing=own)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reference = None if fresh is None else fresh.to(device)
    return probe.consistency(adopted.encoder.to(device), reference, device, fresh=config.fresh)
