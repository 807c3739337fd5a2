"""Queries that are spent on trying out encoders from elsewhere, and the budget for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.config.sections.encoders import ForeignConfig
from pipelines.encoders.stored import describe
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.items import Encoder
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run


def probe_queries(folder: SeedFolder, encoder: Encoder) -> int:
    """Queries that tried an encoder from elsewhere out, and that checked whether an API is still the same."""
    if not isinstance(encoder.settings, ForeignConfig):
        return 0
    record = describe(folder, encoder.name).record
    of_answers = record.answers.get("queries", 0) + 2 * record.decoding.get("images", 0)
    checks = sum(int(check["queries"]) for check in recorded_checks(folder, encoder.name))
    return int(record.consistency["queries"]) + int(of_answers) + checks


def probed_images(folder: SeedFolder, encoder: str) -> int:
    """Images on which an encoder from elsewhere was tried out."""
    return int(describe(folder, encoder).record.consistency["encoder"]["n"])


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
