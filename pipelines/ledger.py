"""What is asked of encoders: the queries of a run by encoder and role, and the budget that holds them.

The plan says what is asked once. What was begun and lost to a crash or an interruption is asked again: every attempt
at a chunk leaves a marker with its queries, the commit takes one away, and those that are left were lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from pipelines import storage
from pipelines.artifacts import SeedFolder
from pipelines.attempts import lost_queries
from pipelines.demands import demands_of
from pipelines.encoder_config import ForeignConfig
from pipelines.encoders import describe
from pipelines.errors import UserError
from pipelines.layers import SEQUENTIAL, Demand, Stopping, layers_of, recorded_layers
from pipelines.shard_jobs import ATTEMPTS, load_features
from pipelines.splits import Splits

if TYPE_CHECKING:
    from pipelines.config import RunConfig
    from pipelines.sweep import Run

PROBE, LOST = "(probe)", "(lost and asked again)"
Entry = tuple[str, str, int, int]
"""Encoder, role, images, queries."""
Spending = Mapping[tuple[SeedFolder, str], int]
"""Queries by the folder and the name of an encoder."""


class BudgetConfig(BaseModel):
    """What a run may spend."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queries: int | None = Field(
        default=None, ge=1, description="queries of attacked encoders, over all their checkpoints and all seeds"
    )
    cpu_hours: float | None = Field(default=None, gt=0, description="above it, as estimated, a run asks first")
    gpu_hours: float | None = Field(default=None, gt=0, description="the same")
    money: float | None = Field(default=None, gt=0, description="the same, in the unit of `prices`")

    @property
    def estimated(self) -> dict[str, float]:
        """What is compared with an estimate before anything is spent."""
        fields = {"cpu_hours": self.cpu_hours, "gpu_hours": self.gpu_hours, "money": self.money}
        return {name: most for name, most in fields.items() if most is not None}


class PricesConfig(BaseModel):
    """What things cost, in one unit of money; what has no price is not counted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu_hour: float | None = Field(default=None, ge=0, description="a CPU for an hour")
    gpu_hour: float | None = Field(default=None, ge=0, description="a GPU for an hour")
    query: float | None = Field(default=None, ge=0, description="a query of an attacked encoder")
    storage_gb_month: float | None = Field(default=None, ge=0, description="10^9 bytes of features for a month")

    @property
    def known(self) -> dict[str, float]:
        """The prices that are given."""
        return {name: price for name, price in self.model_dump().items() if price is not None}


def count_queries(config: RunConfig, folder: SeedFolder) -> Iterator[Entry]:
    """Everything asked of the encoders of one seed, over all their checkpoints.

    Besides the roles there is the probe of an encoder from elsewhere, and what was lost, where there is any.
    """
    splits = Splits.load(folder.path)
    counts = splits.counts()

    def entry(encoder: str, role: str, per_image: int, count: int | None) -> Entry:
        images = counts[role] if count is None else min(counts[role], count)
        return encoder, role, images, images * per_image

    for demand in demands_of(config):
        if demand.stopping is not None:
            yield from _decided(demand, demand.stopping, config, folder)
            continue
        for layer in layers_of(demand, config, folder, plan=False):
            asked: set[str] = set()  # a sample of two roles is asked once
            for role in layer.roles:
                ids = splits.ids([role]) if layer.count is None else splits.first([role], layer.count, folder.seed)
                new = set(ids) - asked
                asked |= new
                yield demand.encoder, role, len(new), len(new) * layer.queries_per_image
    for name in config.encoders:
        for old in _outdated(config, folder, name):
            for role in old["roles"]:
                yield entry(name, role, old["per_image"], old["count"])
    for name in config.encoders:
        probed = probe_queries(config, folder, name)
        if probed:
            yield name, PROBE, probed_images(folder, name), probed
        lost = lost_queries(folder, name)
        if lost:
            yield name, LOST, 0, lost


def _decided(demand: Demand, stopping: Stopping, config: RunConfig, folder: SeedFolder) -> Iterator[Entry]:
    """What a rule asked of an encoder, as the committed features have it."""
    kept: dict[str, Any] = {"count": demand.count, "stopping": stopping, "without": demand.without}
    for role in demand.needs:
        needs = (config, folder, demand.encoder, stopping.epoch, stopping.output, [SEQUENTIAL])
        found = load_features(*needs, [role], **kept)
        yield demand.encoder, role, len(found), int(found.values[SEQUENTIAL][:, 0].sum())


def _outdated(config: RunConfig, folder: SeedFolder, encoder: str) -> list[dict[str, Any]]:
    """Layers that this run once asked and no demand reads any more: an attack was added, and more is read at once."""
    demands = [demand for demand in demands_of(config) if demand.encoder == encoder]
    read = {layer.base for demand in demands for layer in layers_of(demand, config, folder, plan=False)}
    return [entry for entry in recorded_layers(folder, encoder) if "per_image" in entry and entry["base"] not in read]


def probe_queries(config: RunConfig, folder: SeedFolder, encoder: str) -> int:
    """What it took to see whether an encoder from elsewhere works, and whether one behind an API is still the same."""
    if not isinstance(config.encoders[encoder], ForeignConfig):
        return 0
    found = describe(folder, encoder).description
    of_answers = found.get("answers", {}).get("queries", 0) + 2 * found.get("decoding", {}).get("images", 0)
    checks = sum(int(check["queries"]) for check in recorded_checks(folder, encoder))
    return 2 * probed_images(folder, encoder) + int(of_answers) + checks


def probed_images(folder: SeedFolder, encoder: str) -> int:
    """Images on which it was tried out."""
    return int(describe(folder, encoder).description["consistency"]["encoder"]["n"])


def checks_path(folder: SeedFolder, encoder: str) -> str:
    """Where it is recorded when an encoder behind an API was asked whether it is still the same."""
    return f"{folder.encoder(encoder)}/checks.json"


def recorded_checks(folder: SeedFolder, encoder: str) -> list[dict[str, Any]]:
    """When that was asked, and with how many queries."""
    path = checks_path(folder, encoder)
    found: list[dict[str, Any]] = storage.read_json(path) if storage.exists(path) else []
    return found


def check_probes(runs: Sequence[Run], probes: Sequence[tuple[str, int]]) -> None:
    """Raise UserError if probing encoders from elsewhere, (name, queries) each, would already exceed the budget."""
    budget = runs[0][0].budget.queries
    asked = sum(queries for name, queries in probes if name in attacked(runs))
    if budget is not None and asked > budget:
        names = ", ".join(sorted({name for name, _ in probes} & attacked(runs)))
        raise UserError(
            f"budget.queries = {budget}, but to see whether {names} works takes {asked} queries alone; raise the budget"
        )


def attempts_left(runs: Sequence[Run], asked: Spending, left: Spending) -> int:
    """How often a chunk may be begun from now on: what is begun again after a crash is paid for again.

    Args:
        runs: a run and the points of its sweeps, which have one budget.
        asked: queries by folder and encoder of everything that is asked, once or before.
        left: those of it that are still to ask.

    Raises:
        UserError: the queries of the attacked encoders exceed the budget; nothing has been asked then.
    """
    budget = runs[0][0].budget.queries
    if budget is None:
        return ATTEMPTS
    targets = attacked(runs)
    probed: dict[str, int] = {}
    for config, of_run in runs:
        for folder, name in product(map(of_run.seed, config.seeds), targets):
            same = describe(folder, name).description["inputs"]  # a copy knows nothing of later checks
            probed[same] = max(probed.get(same, 0), probe_queries(config, folder, name))
    outdated = {
        (seed, name, old["base"], *old["roles"], *old["needs"]): old["per_image"] * _images(old, of_run.seed(seed))
        for config, of_run in runs
        for seed in config.seeds
        for name in targets
        for old in _outdated(config, of_run.seed(seed), name)
    }
    total: int = sum(queries for (_, name), queries in asked.items() if name in targets)
    total += sum(probed.values()) + sum(outdated.values())
    lost: int = sum(lost_queries(folder, name) for folder, name in asked if name in targets)
    if total + lost > budget:
        again = f", and {lost} more were spent on what a crash or an interruption lost" if lost else ""
        raise UserError(
            f"budget.queries = {budget}, but the attacks ask {total} queries of {', '.join(sorted(targets))}{again}; "
            + (f"raise the budget to {total + lost}" if lost else "lower queries.views or the roles' counts")
            + (", or start another run folder with less to ask" if lost else ", or raise the budget")
        )
    still = sum(queries for (_, name), queries in left.items() if name in targets)
    return min(ATTEMPTS, 1 + (budget - lost - total) // max(1, still))


def _images(layer: Mapping[str, Any], folder: SeedFolder) -> int:
    counts, most = Splits.load(folder.path).counts(), layer["count"]
    sizes = [counts[role] if most is None else min(counts[role], most) for role in layer["roles"]]
    return sum(sizes)


def attacked(runs: Sequence[Run]) -> set[str]:
    """The encoders that are under attack: those whose queries a budget bounds and a price is asked for."""
    return {attack.target for config, _ in runs for attack in config.attacks}
