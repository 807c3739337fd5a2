"""Count the queries of a run by encoder and role, and hold them to the budget.

The plan gives the queries that are sent once. Queries lost to a crash or an interruption are sent again: every attempt
at a chunk leaves a marker with its queries, and the markers that no commit removed count as lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from mi_core.features import measure_of
from pipelines.config.demands import SEQUENTIAL, Demand, Stopping, demands_of
from pipelines.config.roles import ANCHOR_ROLE
from pipelines.config.run_config import RunConfig
from pipelines.data.draw.splits import Splits
from pipelines.encoders.probe_ledger import attacked, probe_queries, probed_images
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.extract.attempts import lost_queries
from pipelines.extract.features import load_features
from pipelines.extract.jobs import ATTEMPTS
from pipelines.extract.passes import QueryPass, passes_of, recorded_passes
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run

PROBE, LOST = "(probe)", "(lost and asked again)"
Entry = tuple[str, str, int, int]
"""Encoder, role, images, queries."""
Spending = Mapping[tuple[SeedFolder, str], int]
"""Queries by the folder and the name of an encoder."""


def count_queries(config: RunConfig, folder: SeedFolder) -> Iterator[Entry]:
    """Queries of the encoders of one seed by role, over all checkpoints.

    Further entries count the probes of an encoder from elsewhere and the queries lost to crashes.
    """
    splits = Splits.load(folder.path)
    counts = splits.counts()

    def entry(encoder: str, role: str, per_image: int, count: int | None) -> Entry:
        images = counts[role] if count is None else min(counts[role], count)
        return encoder, role, images, images * per_image

    for demand in demands_of(config):
        if demand.asking.stopping is not None:
            yield from _decided(demand, demand.asking.stopping, config, folder)
            continue
        passes = passes_of(demand, config, folder)
        for query in passes:
            for role, new in _by_role(query, splits, folder.seed):
                yield demand.asking.encoder, role, new, new * query.queries_per_image
        for query in {query.tag: query for query in passes if query.bank}.values():
            yield demand.asking.encoder, ANCHOR_ROLE, query.bank, query.bank_queries
    for name in config.encoders:
        for old in _outdated(config, folder, name):
            for role in old["roles"]:
                yield entry(name, role, old["per_image"], old["count"])
            if old.get("bank"):
                yield name, ANCHOR_ROLE, 0, old["bank"]
    for name in config.encoders:
        probed = probe_queries(config, folder, name)
        if probed:
            yield name, PROBE, probed_images(folder, name), probed
        lost = lost_queries(folder, name)
        if lost:
            yield name, LOST, 0, lost


def _by_role(query: QueryPass, splits: Splits, seed: int) -> Iterator[tuple[str, int]]:
    """Samples of each role of a pass; a sample of two roles counts for the first."""
    asked: set[str] = set()
    for position, role in enumerate(query.roles):
        if query.asking.count is None:
            yield role, splits.count([role], query.roles[:position])
        else:
            new = set(splits.first([role], query.asking.count, seed)) - asked
            asked |= new
            yield role, len(new)


def _decided(demand: Demand, stopping: Stopping, config: RunConfig, folder: SeedFolder) -> Iterator[Entry]:
    """Queries that a stopping rule let through, from the committed features."""
    for role in demand.needs:
        features = load_features(config, folder, demand.asking, stopping.epoch, stopping.output, [SEQUENTIAL], [role])
        yield demand.asking.encoder, role, len(features), int(features[SEQUENTIAL][:, 0].sum())


def _outdated(config: RunConfig, folder: SeedFolder, encoder: str) -> list[dict[str, Any]]:
    """Passes that this run queried and no demand reads any more, because an added attack needs a larger pass."""
    demands = demands_of(config, encoder)
    read = {query.base for demand in demands for query in passes_of(demand, config, folder)}
    return [entry for entry in recorded_passes(folder, encoder) if "per_image" in entry and entry["base"] not in read]


def attempts_left(runs: Sequence[Run], asked: Spending, left: Spending) -> int:
    """Attempts per chunk that the budget allows from now on; an attempt after a crash is paid for again.

    Args:
        runs: a run and the points of its sweeps, which have one budget.
        asked: queries by folder and encoder, those sent before included.
        left: the part of them that is still to send.

    Raises:
        UserError: the queries of the attacked encoders exceed the budget; none has been sent.
    """
    budget = runs[0][0].budget.queries
    if budget is None:
        return ATTEMPTS
    targets = attacked(runs)
    probed: dict[str, int] = {}
    for config, of_run in runs:
        for folder, name in product(map(of_run.seed, config.seeds), targets):
            same = describe(folder, name).record.inputs  # a copy knows nothing of later checks
            probed[same] = max(probed.get(same, 0), probe_queries(config, folder, name))
    outdated = {
        (seed, name, old["base"], *old["roles"], *map(measure_of, old["needs"])): old["per_image"]
        * _images(old, of_run.seed(seed))
        + old.get("bank", 0)
        for config, of_run in runs
        for seed in config.seeds
        for name in targets
        for old in _outdated(config, of_run.seed(seed), name)
    }
    total: int = sum(queries for (_, name), queries in asked.items() if name in targets)
    total += sum(probed.values()) + sum(outdated.values())
    lost: int = sum(lost_queries(folder, name) for folder, name in asked if name in targets)
    if total + lost > budget:
        again = f", and a crash or an interruption has lost {lost} more" if lost else ""
        raise UserError(
            f"budget.queries = {budget} is too small: the attacks need {total} queries of "
            f"{', '.join(sorted(targets))}{again}; "
            + (f"raise the budget to {total + lost}" if lost else "lower queries.views or the roles' counts")
            + (", or start another run folder with fewer queries" if lost else ", or raise the budget")
        )
    still = sum(queries for (_, name), queries in left.items() if name in targets)
    return min(ATTEMPTS, 1 + (budget - lost - total) // max(1, still))


def _images(planned: Mapping[str, Any], folder: SeedFolder) -> int:
    counts, most = Splits.load(folder.path).counts(), planned["count"]
    sizes = [counts[role] if most is None else min(counts[role], most) for role in planned["roles"]]
    return sum(sizes)
