"""Trying out an encoder from elsewhere: it has to recognise images in two different views.

Its probes are queries: they are counted, and held to the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mi_core.adoption.foreign import Adopted, untrained
from mi_core.adoption.model_folder import folder_kind
from mi_core.adoption.published import Preprocessing, published
from mi_core.encoders.checkpoint import Encoder
from mi_core.querying.sanity import VIEWS, Agreement, view_consistency
from mi_core.streams import pixel_streams
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import EndpointConfig, ForeignConfig, LoadedConfig
from pipelines.console import meter
from pipelines.data.draw.images import Loaded
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan import items
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run

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

            def count_views(views: int) -> None:
                nonlocal shown
                shown += views
                told(shown)

            recipe = self.config.views()
            return view_consistency(
                encoder, reference, images, streams, recipe, device=device, fresh=fresh, asked=count_views
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


SAME = 0.9999  # cosine from which on two ways of decoding are one
COMPARED = 32  # images on which another way is measured


def as_published(own: Preprocessing, data: DataConfig) -> DataConfig | None:
    """The data section with the encoder's own decoding; None if that is what it has, or if nothing is published."""
    if own.fit is None:
        return None
    theirs = data.model_copy(update=_published(own, data))
    return None if theirs.decoder().settings() == data.decoder().settings() else theirs


def compared(config: LoadedConfig, data: DataConfig) -> int:
    """On how many images the two ways of decoding are compared; at most, where only its folder says the other way."""
    if folder_kind(config.load):
        return COMPARED
    found = published(config.load)
    own = None if found is None else found.preprocessing.changed(config.preprocessing())
    return COMPARED if own is not None and as_published(own, data) is not None else 0


def in_words(own: Preprocessing, data: DataConfig, found: Agreement | None) -> str:
    """The preprocessing in one line: what is published, and whether the run does that; ``found`` None: not measured."""
    theirs = as_published(own, data)
    if own.fit is None:
        return own.words()
    if theirs is None:
        return f"{own.words()}, as its publisher does it"
    apart = "" if found is None else f" (cosine {found.cosine:.4f}, centred {found.centred:.3f}, {found.images} images)"
    if found is not None and found.cosine >= SAME:
        return f"{own.words()}, as its publisher does it up to rounding{apart}"
    wanted = " ".join(f"data.{name}={value}" for name, value in _published(own, data).items())
    return f"{own.words()}; NOTE: this run decodes images unlike the publisher{apart}; to match, set {wanted}"


def _published(own: Preprocessing, data: DataConfig) -> dict[str, Any]:
    """The fields of the data section to change: no publisher decodes JPEGs at less than their size."""
    return own.decoding() | ({"decode": "full"} if data.decode != "full" else {})


def probe_queries(folder: SeedFolder, encoder: items.Encoder) -> int:
    """Queries that tried an encoder from elsewhere out, and that checked whether an API is still the same."""
    if not isinstance(encoder.settings, ForeignConfig):
        return 0
    record = describe(folder, encoder.name).record
    of_answers = record.answers.get("queries", 0) + 2 * record.decoding.get("images", 0)
    checks = sum(int(check["queries"]) for check in recorded_checks(folder, encoder.name))
    return int(record.consistency["queries"]) + int(of_answers) + checks


def checks_path(folder: SeedFolder, encoder: str) -> str:
    """File of the checks whether an encoder behind an API is still the same."""
    return f"{folder.encoder(encoder)}/checks.json"


def recorded_checks(folder: SeedFolder, encoder: str) -> list[dict[str, Any]]:
    """The checks so far: when they were ``asked``, and with how many ``queries``."""
    return list(storage.read_json_or(checks_path(folder, encoder), []))


def check_probes(runs: Sequence[Run], probes: Sequence[tuple[str, int]]) -> None:
    """Raise UserError if trying encoders out, (name, queries) each, exceeds the budget."""
    budget = runs[0].config.budget.queries
    needed = sum(queries for name, queries in probes if name in attacked(runs))
    if budget is not None and needed > budget:
        names = ", ".join(sorted({name for name, _ in probes} & attacked(runs)))
        raise UserError(
            f"budget.queries = {budget} is too small: checking that {names} works may take {needed} queries; "
            "raise the budget"
        )


def attacked(runs: Sequence[Run]) -> set[str]:
    """The encoders under attack: a budget bounds their queries, and these have a price."""
    return {attack.target for config, _ in runs for attack in config.attacks}
