"""The encoder behind a defense that changes its answers, and what such defenses share.

A defense that draws something for an answer must draw the same for the same query. Whoever asks k times would
otherwise average the noise away (its variance falls as 1 / k), or see both sides of a coin. So what is random is a
pure function of the seed and of the query, and the query is the image, as the 8-bit pixels that a file would hold. The
embedding would not do: its last bits depend on the batch in which it was computed. A pixel changed by one step makes
another query; an attacker who asks for near copies averages over these, and no such defense hinders her. The seed is
the provider's secret: whoever knows it computes what was drawn.

B images, D width of an output.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import Encoder, surroundings
from mi_core.streams import stream_keys

_BATCH = 256  # images that a provider asks at once


class Defended(Encoder):
    """An encoder of which one output is changed before anyone sees it, the heads on top of it included.

    Args:
        encoder: its modules become parts of this one.
        output: the output that is changed.
        change: answers (B, D) and images (B, C, H, W) in [0, 1] to answers (B, D).

    Raises:
        ConfigError: what the encoder answers is changed already.
    """

    def __init__(self, encoder: Encoder, output: str, change: nn.Module) -> None:
        check_plain(encoder)
        super().__init__(encoder.backbone, encoder.heads, **surroundings(encoder))
        self.output = output
        self.change = change
        self.to(encoder.mean.device).eval()

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Embeddings by output name."""
        answers: dict[str, torch.Tensor] = {}
        last = self._normalised(images)
        for name, part in {"backbone": self.backbone, **self.heads}.items():
            last = part(last)
            if name == self.output:
                last = self.change(last, images)
            answers[name] = last
        return answers

    def feature_map(self, images: torch.Tensor) -> torch.Tensor:
        """The vectors at all positions; see `Encoder.feature_map`.

        Raises:
            ConfigError: the embedding is changed, which vectors at positions would give away.
        """
        if self.output == "backbone":
            raise ConfigError(
                "an encoder whose embeddings are defended gives no feature map; leave part-crop out for it"
            )
        return super().feature_map(images)


def check_plain(encoder: Encoder) -> None:
    """Raise ConfigError for an encoder that does more than to apply its parts, which a defense made of these drops."""
    if type(encoder).forward is not Encoder.forward:
        raise ConfigError(
            f"what this encoder answers is changed already ({type(encoder).__name__}); defend it as it was trained"
        )


def query_streams(seed: int, purpose: str, images: torch.Tensor) -> torch.Tensor:
    """Streams of random numbers (B,) int64, a pure function of seed, purpose and image; see `mi_core.streams`.

    Args:
        seed: of the defense.
        purpose: name of the defense.
        images: (B, C, H, W) in [0, 1], of which the nearest 8-bit values count.
    """
    pixels = (images.detach().float() * 255).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
    shape = "x".join(str(side) for side in pixels.shape[1:])
    prints = [hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest() for image in pixels]
    return stream_keys(seed, "defense", f"{purpose}/{shape}", prints).to(images.device)


@contextmanager
def searching(device: torch.device) -> Iterator[None]:
    """Gradients in full precision, wherever an encoder is being asked; inputs are to be cloned inside."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        yield


@torch.no_grad()
def answers(encoder: Encoder, images: torch.Tensor, output: str) -> torch.Tensor:
    """The answers of an encoder to a provider's own images.

    Args:
        images: (N, C, H, W) uint8, on any device.
        output: which of its outputs.

    Returns:
        (N, D) float32, on the CPU.

    Raises:
        ShapeError: there are no images.
    """
    if not len(images):
        raise ShapeError("the provider gives no images to ask the encoder for")
    blocks = (block.to(encoder.mean.device).float() / 255 for block in images.split(_BATCH))
    return torch.cat([encoder(block)[output].float().cpu() for block in blocks])
