"""Where the time of a query goes: CPU seconds of one thread by step, without Ray."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from docs.studies.bench.extraction import EXTRACTION_CASES, NEEDS, VIEWS, ExtractionCase, build
from docs.studies.bench.setting import RECIPE, dated, spread
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import make_views
from mi_core.encoders.batch_norm import for_queries
from mi_core.images import Decoder, decode_and_hash
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.streams import pixel_streams

IMAGES, TURNS = 64, 3


def milliseconds(step: Callable[[], Any]) -> dict[str, float]:
    """Of CPU time of one thread for an image: median, least and most of the turns."""
    step()
    found = []
    for _ in range(TURNS):
        started = time.process_time()
        step()
        found.append(1000 * (time.process_time() - started) / IMAGES)
    return spread(found, 3)


@torch.inference_mode()
def measured(case: ExtractionCase, files: Sequence[bytes]) -> dict[str, Any]:
    """Decoding, views, the encoder, and all of what an actor does for an image."""
    decoder, recipe = Decoder(case.image_size), SimCLRAugmentation(**RECIPE)
    images = torch.from_numpy(np.stack([decode_and_hash(data, decoder).pixels for data in files]))
    keys = pixel_streams("bench", 0, "query", images)
    encoder = for_queries(build(case)[0], "cpu")
    views = make_views(images, keys, recipe, views=VIEWS).flatten(0, 1)
    extractor = Extractor({"e": encoder}, QueryPlan(NEEDS, ("backbone",), views=VIEWS), recipe, torch.device("cpu"))
    found = {
        "decode": milliseconds(lambda: [decode_and_hash(data, decoder) for data in files]),
        "views": milliseconds(lambda: make_views(images, keys, recipe, views=VIEWS)),
        "encoder": milliseconds(lambda: [encoder(some) for some in views.split(128)]),
        "queries": milliseconds(lambda: extractor.begin(images, keys, list(map(str, range(IMAGES)))).fetched()),
    }
    found["encoder / (decode + queries)"] = found["encoder"]["median"] / (
        found["decode"]["median"] + found["queries"]["median"]
    )
    return found


def run(shard: str) -> dict[str, Any]:
    """Every case in float32 that fits a core, by step."""
    torch.set_num_threads(1)
    with tarfile.open(shard) as tar:
        names = [name for name in tar.getnames() if name.endswith(".jpg")][:IMAGES]
        files = [tar.extractfile(name).read() for name in names]  # type: ignore[union-attr]
    return dated(images=IMAGES, cases={name: measured(EXTRACTION_CASES[name], files) for name in ("small", "resnet18")})
