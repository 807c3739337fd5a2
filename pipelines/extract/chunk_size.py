"""Choose how many images make a chunk, so that it takes some seconds of an actor."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from mi_core.checks import ConfigError, NumericError, ShapeError
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.limits import ResourcesConfig
from pipelines.data.draw.splits import Splits
from pipelines.data.read.sources import Source
from pipelines.errors import UserError
from pipelines.extract import bank
from pipelines.extract.actor.asking import decoded
from pipelines.extract.actor.worker import EncodeChunks
from pipelines.extract.division.jobs import jobs_of, places_of
from pipelines.extract.division.passes import CHUNK, Pass
from pipelines.run.folder import SeedFolder
from pipelines.run.ray_session import decoding_threads, encoder_actors, mapped, object_store_bytes

SECONDS = 3.5  # of an actor for a chunk
MOST = 16_384  # images of a chunk
LEAST = 16  # images of a chunk, however many bytes they have, and however few images there are
PER_ACTOR = 16  # chunks that every actor gets, at least, as long as they have `LEAST` images
BYTES = 128 * 2**20  # of encoded images in a chunk
IN_FLIGHT = 8  # chunks for each actor that are in Ray's object store: filled, waiting, or at work
STORED = 0.5  # share of the object store that they may take
TIMED = 32  # images that are read and decoded to see how long it takes


@dataclass(frozen=True)
class Cost:
    """The cost of an image: seconds of an actor for all encoders that are asked together, and bytes that cross Ray."""

    seconds: float
    bytes: float


def chunk_size(images: int, actors: int, room: float, cost: Callable[[], Cost | None], least: int = LEAST) -> int:
    """Images per chunk.

    Small runs have chunks of up to `CHUNK` images, so many that all actors stay busy until the end and progress shows
    even with a slow encoder. Where chunks of that size would be many, the cost of an image is looked at.

    Args:
        images: in all.
        actors: that share them.
        room: bytes that a chunk may take.
        cost: of an image; None: it cannot be known before.
        least: images of a chunk in a small run, as long as every actor gets one.

    Example:
        >>> [chunk_size(images, 2, 1e8, lambda: None) for images in (20, 300, 2000, 20_000)]
        [10, 16, 62, 256]
        >>> [chunk_size(10**8, 2, 1e8, lambda: Cost(seconds, 3e4)) for seconds in (1e-4, 2e-3, 1.0)]
        [3333, 1750, 256]
    """
    most = images // (PER_ACTOR * actors)
    if most <= CHUNK:
        return max(1, most, min(least, images // actors))
    known = cost()
    if known is None:
        return CHUNK
    wanted = max(CHUNK, SECONDS / known.seconds)
    return int(max(LEAST, min(wanted, most, MOST, room / known.bytes)))


class Sizing:
    """Decides the chunks of new passes, on the connected cluster; equal passes of seeds and sweeps are timed once."""

    def __init__(self, resources: ResourcesConfig) -> None:
        self.resources = resources
        self.costs: dict[str, Cost | None] = {}

    def __call__(self, passes: Sequence[Pass], data: DataConfig, folder: SeedFolder) -> list[Pass]:
        """The passes with their images per chunk; those that ask for the same samples get the same number."""
        splits, resources = Splits.load(folder.path), self.resources
        actors = encoder_actors(resources)
        room = min(float(BYTES), STORED * (object_store_bytes() or math.inf) / (IN_FLIGHT * actors))
        blocks: dict[object, list[int]] = {}
        for number, query in enumerate(passes):
            rows = splits.sums.rows(query.roles)
            own = None if query.shares_images else number
            blocks.setdefault((splits.sums.digest(rows), own), []).append(number)
        sizes = [CHUNK] * len(passes)
        for numbers in blocks.values():
            block = [passes[number] for number in numbers]
            first = block[0]
            images = splits.count(first.roles)
            if first.count is not None:
                images = min(images, first.count * len(first.roles))
            # requests to an API are filled from one chunk, and are paid
            least = CHUNK if any(query.remote for query in block) else LEAST
            size = chunk_size(images, actors, room, partial(self._cost, block, data, folder), least)
            for number in numbers:
                sizes[number] = size
        return [replace(query, chunk=size) for query, size in zip(passes, sizes, strict=True)]

    def _cost(self, block: Sequence[Pass], data: DataConfig, folder: SeedFolder) -> Cost | None:
        if any(query.plan().searches or query.remote for query in block):
            return None
        of_run: dict[str, Any] = {"keys": (), "encoder_key": "", "store": "", "images": {}}
        known = repr([replace(query, **of_run) for query in block])
        if known not in self.costs:
            resources = self.resources
            work = [(block, data, folder, resources)]
            (self.costs[known],) = mapped(
                cost_of, work, "passes", "timing some images", cpus=resources.actor_cpus, gpus=resources.gpus_per_actor
            )
        return self.costs[known]


def cost_of(block: Sequence[Pass], data: DataConfig, folder: SeedFolder, resources: ResourcesConfig) -> Cost | None:
    """The cost of an image of passes that are asked together, in a process like an encoder actor.

    Some files are read and decoded; encoders are timed on images of noise, as `Extractor.seconds_per_image`.

    Returns:
        None where encoders are not to be asked for noise, or fail.
    """
    first = next(jobs_of(block[0], data, folder, places_of(data)), None)
    if first is None:
        return None
    place = (first.source, first.reader, first.item)
    jobs = [bank.with_noise(job) for query in block for job in jobs_of(query, data, folder, [place])]
    keys = set(first.selection.classes(first.source, first.item.name))
    files = [sample.image for sample in islice(Source(first.reader).read(first.item, keys), TIMED)]
    decoded(files[0], first.decoder)
    began = time.perf_counter()
    for file in files:
        decoded(file, first.decoder)
    decoding = (time.perf_counter() - began) / len(files)
    try:
        asking = EncodeChunks(gpus=resources.gpus_per_actor).seconds_per_image(jobs)
    except (ConfigError, NumericError, ShapeError, UserError):
        return None  # the checks before the first query tell it
    if asking is None:
        return None
    threads = decoding_threads(resources)
    seconds = max(decoding / threads, asking) if threads else decoding + asking
    pixels = first.decoder.channels * first.decoder.image_size**2 if resources.decode == "apart" else 0
    return Cost(max(seconds, 1e-9), max(pixels, sum(map(len, files)) / len(files)))
