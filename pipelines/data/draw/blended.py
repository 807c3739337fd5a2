"""The images of a shard as their roles have them: blended canaries are mixed with noise.

Training and queries read samples through here, so that both see the same pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mi_core.hashing import digest64
from mi_core.image_files import ImageError
from mi_core.images import Decoder, blended
from pipelines.config.roles import CANARY_ROLE
from pipelines.data.draw.splits import Splits
from pipelines.data.read.samples import Sample

Blend = Callable[[Sample], Sample]
"""From a sample of a shard to the same sample, with another image if it is a blended canary."""


def blend_of(splits: Splits, source: str, item: str, decoder: Decoder) -> Blend:
    """The change of the images of one shard before they are decoded.

    The noise of a canary is a function of seed, source and key. A file that cannot be decoded stays as it is, for the
    caller to judge.
    """
    rules = splits.rules
    canaries = set() if rules is None or rules.noise is None else set(splits.keys(source, item, [CANARY_ROLE]))

    def blend(sample: Sample) -> Sample:
        if sample.key not in canaries or rules is None or rules.noise is None:
            return sample
        noise = digest64(rules.seed, "canary-noise", source, sample.key)
        try:
            return replace(sample, image=blended(sample.image, decoder, noise, rules.noise))
        except ImageError:
            return sample

    return blend
