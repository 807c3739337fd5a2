"""Plans of configs whose images are not drawn, and what these plans ask of encoders."""

from __future__ import annotations

from mi_core.features import Measure
from pipelines.config.run_config import RunConfig
from pipelines.plan.items import Item, Plan, Query, items_in
from pipelines.plan.resolve import resolve, roles_in_config


def plan_in(config: RunConfig, seed: int = 0) -> Plan:
    """The plan of a config for one seed, of roles that nobody has drawn."""
    return resolve(config, seed, roles_in_config(config))


def asked_in(whole: Item) -> dict[tuple[str, str], dict[str, set[Measure]]]:
    """The measures that the queries of an item ask for, by encoder and output, and by role."""
    asked: dict[tuple[str, str], dict[str, set[Measure]]] = {}
    for query in items_in(whole, Query):
        (role,) = query.samples.roles
        by_role = asked.setdefault((query.encoder.name, query.output), {})
        by_role.setdefault(role.name, set()).add(query.measure)
    return asked
