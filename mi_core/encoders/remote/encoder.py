"""An encoder behind HTTP: its settings, and the encoder that asks it."""

from __future__ import annotations

import torch
from torch import nn

from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.remote.client import Client
from mi_core.encoders.remote.png import png_bytes


class Endpoint(Encoder):
    """An encoder behind HTTP, queried like any other: images (B, C, H, W) in [0, 1] to (B, D) by output.

    What is sent is an 8-bit PNG of each image: rounding to the nearest of 256 values is part of the query.

    Args:
        client: asks for embeddings.
    """

    def __init__(self, client: Client) -> None:
        mean, std = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
        super().__init__(nn.Identity(), {}, mean, std, size=client.parameters.size)
        self.client = client

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the embeddings."""
        return self.client.parameters.outputs

    def forward(self, images: torch.Tensor, *, cached: bool = True) -> dict[str, torch.Tensor]:
        """Embeddings as answered, by output. Raises as `Client.embed`."""
        embeddings = self.client.embed(png_bytes(self._resized(images)), cached=cached)
        return {output: torch.from_numpy(array).to(images.device) for output, array in embeddings.items()}

    def feature_map(self, images: torch.Tensor) -> torch.Tensor:
        """Raises ConfigError: what stands behind an API answers with embeddings alone."""
        raise ConfigError(f"{self.client.parameters.url} gives no feature map; leave part-crop out for it")
