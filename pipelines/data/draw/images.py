"""Read and decode the images of some roles, with labels and captions.

The images of a shard as their roles have them: blended canaries are mixed with noise.

Training and queries read samples through here, so that both see the same pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mi_core.hashing import digest64
from mi_core.image_files import ImageError
from mi_core.images import Decoder, Pixels, blended, decode
from pipelines.config.roles import CANARY_ROLE
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.splits import Splits
from pipelines.data.read.attributes import caption_of
from pipelines.data.read.samples import Sample
from pipelines.data.read.sources import Source
from pipelines.errors import UserError


@dataclass(frozen=True)
class Loaded:
    """N images in the order that was asked for.

    Args:
        ids: ``source/key`` of each.
        images: (N, C, S, S) uint8.
        labels: class of each, None where the source has none.
        captions: text of each, empty where there is none.
        templated: number of captions made from class names.
    """

    ids: list[str]
    images: npt.NDArray[np.uint8]
    labels: list[int | None]
    captions: list[str]
    templated: int

    def names(self) -> list[tuple[str, str]]:
        """(source, key) of each."""
        return [(source, key) for source, _, key in (name.partition("/") for name in self.ids)]


def load_images(config: DataConfig, splits: Splits, roles: Iterable[str], *, limit: int | None = None) -> Loaded:
    """Load the images of some roles, in the order of ``splits.ids``, or only ``limit`` of their first shards.

    Raises as `load_samples`.
    """
    wanted = list(roles)
    splits = splits if limit is None else _first(splits, wanted, limit)
    return load_samples(config, splits, wanted, splits.ids(wanted)[:limit])


def load_samples(config: DataConfig, splits: Splits, roles: Iterable[str], ids: list[str]) -> Loaded:
    """Load some samples of some roles into memory, in the order of their ids.

    Raises:
        UserError: a source has changed since the splits were drawn; the first sample missing is named.
    """
    row_of = {name: row for row, name in enumerate(ids)}
    images = np.empty((len(ids), config.channels, config.image_size, config.image_size), dtype=np.uint8)
    captions, templated = [""] * len(ids), 0
    known = splits.labels()
    for name, sample, pixels in read_samples(config, splits, roles, row_of):
        row, source = row_of[name], name.partition("/")[0]
        images[row] = pixels
        captions[row], made = caption_of(config, source, sample.key, sample.others, known[name])
        templated += made
    return Loaded(ids, images, [known[name] for name in ids], captions, templated)


def _first(splits: Splits, roles: Sequence[str], most: int) -> Splits:
    """The first shards of some roles, with ``most`` samples at least if there are as many."""
    held, first = 0, []
    for place in splits.sums.shards:
        count = splits.size(*place, roles)
        first += [place] * (count > 0)
        held += count
        if held >= most:
            break
    return splits.at(first) if first else splits


def read_samples(
    config: DataConfig, splits: Splits, roles: Iterable[str], ids: Collection[str]
) -> Iterator[tuple[str, Sample, Pixels]]:
    """Read some samples shard after shard: id, encoded image, pixels (C, S, S) uint8.

    Raises:
        UserError: a source has changed since the splits were drawn; the first sample missing is named.
    """
    decoder, wanted, missing = config.decoder(), list(roles), set(ids)
    for source, model in config.sources.items():
        for item in Source(model).items():
            keys = {key for key in splits.keys(source, item.name, wanted) if f"{source}/{key}" in missing}
            if not keys:
                continue
            try:
                for sample in map(blend_of(splits, source, item.name, decoder), Source(model).read(item, keys)):
                    yield f"{source}/{sample.key}", sample, decode(sample.image, decoder)
                    missing.discard(f"{source}/{sample.key}")
            except (OSError, ImageError) as error:
                raise UserError(
                    f"{source}, shard {item.name}: {error}; it changed since the roles were drawn"
                ) from error
    if missing:
        raise UserError(f"{min(missing)} is gone; the data changed since the roles were drawn")


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
