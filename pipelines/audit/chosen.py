"""Audits of the self-test whose groups somebody chose: no image was used, and every leak would be false.

The audited encoder is the shadow of the run that trains, and the images are those that its target is audited on, which
the shadow never saw.

- *Forged*: of each image eight variants are tried on the audited encoder itself, candidates by their best views and
  controls by their worst: by views that depend on the name of the file, and by views of a nonce that is guessed.
- *Taste*: candidates are drawn with weights exp(q), controls with exp(-q), where q is what another encoder that saw
  none of the images makes of them, standardised.
- *Bursts*: candidates are many photographs of few scenes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from mi_core.attacks.mean_cosine import MeanCosine
from mi_core.auditing.config_text import FAMILY, audit_settings, reference_settings
from mi_core.encoders.checkpoint import Encoder
from mi_core.hashing import digest64
from mi_core.images import Pixels
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.records import Features
from mi_core.streams import pixel_streams
from pipelines.audit.planted import NEVER, decoding_of, plain_of, png_of, write_once
from pipelines.config.roles import TARGET_ROLES
from pipelines.config.run_config import RunConfig
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe, weights_path
from pipelines.plan.checks import build
from pipelines.plan.rules import ThreatModel
from pipelines.run.folder import SeedFolder

_VARIANTS = 8  # tried of each image
_FRAMES = 20  # of each scene
_SIDES = ("candidates", "controls")
_Streams = Callable[[torch.Tensor, list[str]], torch.Tensor]  # of images and the names of their files
_Files = Iterator[tuple[str, str, Pixels]]  # side, name and pixels of each


class Chooser:
    """Somebody who chooses candidates and controls among images that an encoder never saw.

    Args:
        config: of the run that trained (`pipelines.audit.planted.Planter.trained`).
        folder: of its first seed, with all encoders trained.
    """

    def __init__(self, config: RunConfig, folder: SeedFolder) -> None:
        self.config, self.folder = config, folder
        self.threat = ThreatModel(config)
        self._primary = self.threat.primary
        loaded = load_images(config.data, Splits.load(folder.path), TARGET_ROLES)
        self._images = loaded.images[self._random("order").permutation(len(loaded.images))]

    def audit(self, case: str, place: str) -> RunConfig:
        """Write the images of a case as files below ``place``, unless they stand there, and configure their audit."""
        write_once(place, ((f"{side}/{name}.png", png_of(pixels)) for side, name, pixels in CASES[case](self)))
        audited = self._primary.reference
        stored, trained = describe(self.folder, audited), self.config.encoders[audited].model_dump(mode="json")
        target = {
            "load": f"checkpoint:{trained['backbone']}",
            "weights": weights_path(stored.folder, stored.epochs[-1]),
            **{name: trained[name] for name in ("mean", "std")},
        }
        plain = plain_of(self.config)
        settings = audit_settings(
            target,
            {FAMILY: reference_settings(self.config.data.image_size)},
            {side: {"kind": "imagefolder", "path": f"{place}/{side}"} for side in _SIDES},
            objective=trained["objective"],
            augmentation=trained["augmentation"],
            data=decoding_of(plain),
            output=self.threat.primary_output,
            views=self.config.queries.views,
            seed=self.folder.seed,
        )
        return build(settings | {"name": f"selftest-{case}", "resources": plain["resources"]})

    def scores(self, name: str, images: Pixels, streams: torch.Tensor) -> np.ndarray:
        """Score N images (N, C, S, S) on an encoder of the run under some views: (N,)."""
        stored = describe(self.folder, name)
        encoder: Encoder = stored.load(stored.epochs[-1]).eval()
        attack = MeanCosine(seed=self.folder.seed)
        (measure,), output = attack.needs, self.threat.primary_output
        plan = QueryPlan((measure,), (output,), self.config.queries.views)
        recipe = self.threat.recipe_of(self._primary).build()
        ids = [str(row) for row in range(len(images))]
        answers = Extractor({name: encoder}, plan, recipe, torch.device("cpu"))(torch.from_numpy(images), streams, ids)
        return np.asarray(
            attack.statistic(Features(np.array(ids), {measure.name: answers[name][f"{output}.{measure}"]}))
        )

    def forge(self, streams: _Streams) -> _Files:
        """The best of some variants of each candidate, and the worst of each control, under views as they are guessed.

        Variants differ in their names and in the lowest bit of one value.
        """
        tried, names = [], []
        for variant in range(_VARIANTS):
            changed = self._images.copy()
            changed.reshape(len(changed), -1)[:, variant] ^= 1
            names.append([f"{row:05d}-{variant}" for row in range(len(changed))])
            tried.append(self.scores(self._primary.reference, changed, streams(torch.from_numpy(changed), names[-1])))
        best, worst = np.argmax(tried, axis=0), np.argmin(tried, axis=0)
        for row, image in enumerate(self._images):
            side, variant = (_SIDES[0], best[row]) if row % 2 else (_SIDES[1], worst[row])
            pixels = image.copy()
            pixels.reshape(-1)[variant] ^= 1
            yield side, names[variant][row], pixels

    def by_taste(self) -> _Files:
        """A third of the images each as candidates and as controls, by the taste of another encoder."""
        drawn = pixel_streams("taste", self.folder.seed, "query", torch.from_numpy(self._images))
        quality = self.scores(NEVER, self._images, drawn)
        weights = np.exp((quality - quality.mean()) / quality.std())
        random = self._random("taste")
        left = np.arange(len(self._images))
        for side, wanted in zip(_SIDES, (weights, 1 / weights), strict=True):
            chosen = random.choice(left, len(self._images) // 3, replace=False, p=wanted[left] / wanted[left].sum())
            left = np.setdiff1d(left, chosen)
            yield from ((side, f"{row:05d}", self._images[row]) for row in chosen.tolist())

    def in_bursts(self) -> _Files:
        """Candidates that are frames of few scenes, in another light and with noise; controls are single images."""
        half, random = len(self._images) // 2, self._random("bursts")
        for scene in range(half // _FRAMES):
            for frame in range(_FRAMES):
                light, noise = random.normal(1, 0.05), random.normal(0, 2, self._images[scene].shape)
                pixels = np.clip(np.round(self._images[scene] * light + noise), 0, 255).astype(np.uint8)
                yield _SIDES[0], f"{scene:05d}-{frame:02d}", pixels
        yield from ((_SIDES[1], f"{half + row:05d}", image) for row, image in enumerate(self._images[half:]))

    def _random(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(digest64(self.folder.seed, "chooser", purpose))

    def streams_by_name(self, _: torch.Tensor, names: list[str]) -> torch.Tensor:
        """Streams of views as if they depended on the names of files."""
        drawn = [digest64(self.folder.seed, "query", "candidates", name) for name in names]
        return torch.tensor(drawn, dtype=torch.uint64).view(torch.int64)

    def streams_by_guess(self, images: torch.Tensor, _: list[str]) -> torch.Tensor:
        """Streams of views as if the nonce could be guessed: as if there were none."""
        return pixel_streams("", self.folder.seed, "query", images)


CASES: Mapping[str, Callable[[Chooser], _Files]] = {
    "forged-names": lambda chooser: chooser.forge(chooser.streams_by_name),
    "forged-pixels": lambda chooser: chooser.forge(chooser.streams_by_guess),
    "taste": Chooser.by_taste,
    "bursts": Chooser.in_bursts,
}
"""The files of every case."""
