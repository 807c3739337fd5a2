"""What it costs to see whether encoders from elsewhere work, and what a budget allows of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.config.encoders import ForeignConfig
from pipelines.config.run_config import RunConfig
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run


def probe_queries(config: RunConfig, folder: SeedFolder, encoder: str) -> int:
    """What it took to see whether an encoder from elsewhere works, and whether one behind an API is still the same."""
    if not isinstance(config.encoders[encoder], ForeignConfig):
        return 0
    record = describe(folder, encoder).record
    of_answers = record.answers.get("queries", 0) + 2 * record.decoding.get("images", 0)
    checks = sum(int(check["queries"]) for check in recorded_checks(folder, encoder))
    return 2 * probed_images(folder, encoder) + int(of_answers) + checks


def probed_images(folder: SeedFolder, encoder: str) -> int:
    """Images on which it was tried out."""
    return int(describe(folder, encoder).record.consistency["encoder"]["n"])


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
            f"budget.queries = {budget} is too small: checking that {names} works already takes {asked} queries; raise "
            "the budget"
        )


def attacked(runs: Sequence[Run]) -> set[str]:
    """The encoders that are under attack: those whose queries a budget bounds and a price is asked for."""
    return {attack.target for config, _ in runs for attack in config.attacks}
