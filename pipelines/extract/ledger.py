"""Count the queries of a run by encoder and role, and hold them to the budget.

The plan gives the queries that are sent once. Queries lost to a crash or an interruption are sent again: every attempt
at a chunk leaves a marker with its queries, and the markers that no commit removed count as lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipelines.config.roles import ANCHOR_ROLE
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned
from pipelines.encoders.probes import probe_queries
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.extract.actor.attempts import lost_queries
from pipelines.extract.division.jobs import ATTEMPTS
from pipelines.extract.division.passes import Pass, Recorded, pass_of, recorded_passes, resumed, with_banks
from pipelines.plan.items import Encoder, Query, items_in
from pipelines.run.folder import SeedFolder

PROBE, LOST = "(probe)", "(lost and asked again)"
Entry = tuple[str, str, int, int]
"""Encoder, role, images, queries."""
Spending = Mapping[tuple[SeedFolder, str], int]
"""Queries by the folder and the name of an encoder."""


def count_queries(planned: Planned) -> Iterator[Entry]:
    """Queries of the encoders of one seed by role, over all checkpoints.

    Further entries count the probes of an encoder from elsewhere and the queries lost to crashes.
    """
    plan, folder = planned
    splits = Splits.load(folder.path)
    queries = {query.key: query for query in items_in(plan, Query)}
    recorded = recorded_passes(folder.store)
    passes = resumed(queries, folder.store, recorded)
    every = [*passes, *_read_of_others(recorded, queries, folder)]
    for one in every:
        for role, images in _by_role(one, splits, folder.seed):
            yield one.encoder, role, images, images * one.queries_per_image
    for one in with_banks(every):
        yield one.encoder, ANCHOR_ROLE, one.bank, one.bank_queries
    for record in _outdated(recorded, passes, {encoder.key for encoder in plan.encoders}):
        if record.content["run"] == folder.run:
            for role, images in _images(record).items():
                yield record.content["encoder"], role, images, images * record.content["per_image"]
            if record.content["bank"]:
                yield record.content["encoder"], ANCHOR_ROLE, 0, record.content["bank"]
    for encoder in plan.encoders:
        probed = probe_queries(folder, encoder)
        if probed:
            yield encoder.name, PROBE, int(describe(folder, encoder.name).record.consistency["encoder"]["n"]), probed
        lost = lost_queries(folder.store, encoder.key)
        if lost:
            yield encoder.name, LOST, 0, lost


def _read_of_others(recorded: Sequence[Recorded], queries: Mapping[str, Query], folder: SeedFolder) -> Iterator[Pass]:
    """The parts that a plan reads of passes that another run of the store made, for its own plan."""
    for record in recorded:
        mine = [queries[key] for key in record.keys if key in queries]
        if record.finished and record.content["run"] != folder.run and 0 < len(mine) < len(record.keys):
            yield pass_of(mine, folder.store)


def _by_role(query: Pass, splits: Splits, seed: int) -> Iterator[tuple[str, int]]:
    """Samples of each role of a pass; a sample of two roles counts for the first."""
    asked: set[str] = set()
    for position, role in enumerate(query.roles):
        if query.count is None:
            yield role, splits.count([role], query.roles[:position])
        else:
            new = set(splits.first([role], query.count, seed)) - asked
            asked |= new
            yield role, len(new)


def _outdated(recorded: Sequence[Recorded], passes: Sequence[Pass], encoders: set[str]) -> list[Recorded]:
    """Passes over some encoders that nothing reads any more, because what was added later needs a larger pass."""
    read_now = {one.folder for one in passes}
    return [one for one in recorded if one.content["encoder_key"] in encoders and one.folder not in read_now]


def _images(record: Recorded) -> dict[str, int]:
    """Images of a recorded pass by role."""
    most = record.content["count"]
    return {role: n if most is None else min(n, most) for role, n in record.content["images"].items()}


def attempts_left(budget: int | None, planned: Sequence[Planned], asked: Spending, left: Spending) -> int:
    """Attempts per chunk that the budget allows from now on; an attempt after a crash is paid for again.

    Args:
        budget: queries that the run and the points of its sweeps may send together; None: no limit.
        planned: the plans of all of them.
        asked: queries by folder and encoder, those sent before included.
        left: the part of them that is still to send.

    Raises:
        UserError: the queries of the attacked encoders exceed the budget; none has been sent.
    """
    if budget is None:
        return ATTEMPTS
    store = planned[0].folder.store
    targets: dict[str, Encoder] = {judge.target.key: judge.target for plan, _ in planned for judge in plan.judges}
    names = {target.name for target in targets.values()}
    probed: dict[str, int] = {}
    for plan, folder in planned:
        for encoder in plan.encoders:
            if encoder.key in targets:  # a copy knows nothing of later checks
                probed[encoder.key] = max(probed.get(encoder.key, 0), probe_queries(folder, encoder))
    recorded = recorded_passes(store)
    passes = [
        query
        for plan, _ in planned
        for query in resumed({query.key: query for query in items_in(plan, Query)}, store, recorded)
    ]
    total: int = sum(spent for (_, name), spent in asked.items() if name in names)
    total += sum(probed.values())
    for record in _outdated(recorded, passes, set(targets)):
        total += record.content["per_image"] * sum(_images(record).values()) + record.content["bank"]
    lost: int = sum(lost_queries(store, key) for key in targets)
    if total + lost > budget:
        again = f", and a crash or an interruption has lost {lost} more" if lost else ""
        raise UserError(
            f"budget.queries = {budget} is too small: the attacks need {total} queries of "
            f"{', '.join(sorted(names))}{again}; "
            + (f"raise the budget to {total + lost}" if lost else "lower queries.views or the roles' counts")
            + (", or start another run folder with fewer queries" if lost else ", or raise the budget")
        )
    still = sum(spent for (_, name), spent in left.items() if name in names)
    return min(ATTEMPTS, 1 + (budget - lost - total) // max(1, still))
