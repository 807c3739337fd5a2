"""What a config asks of its encoders, each query once, however many attacks and measurements read the answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from mi_core.encoders.checkpoint import OUTPUTS
from mi_core.features import asked, consumes
from pipelines.artifacts import digest
from pipelines.attack_config import ANCHOR_ROLE
from pipelines.layers import Demand, Recipe

if TYPE_CHECKING:
    from pipelines.config import RunConfig


@dataclass
class _Asked:
    """One set of queries of one encoder for one role, with everything that is read off the answers."""

    outputs: set[str] = field(default_factory=set)
    needs: set[str] = field(default_factory=set)


def demands_of(config: RunConfig) -> tuple[Demand, ...]:
    """Everything that extraction must compute, one entry per encoder, set of outputs and recipe of views.

    What reads the same queries joins: an embedding asked by one attack on the projection, by another on the backbone,
    is one query. What consumes no views goes with the first recipe, to be queried in one pass.
    """
    wanted: dict[tuple[str, str, str, str], _Asked] = {}
    recipes: dict[str, Recipe] = {}

    def want(
        encoder: str, outputs: Sequence[str], needs: Iterable[str], roles: Sequence[str], recipe: str = ""
    ) -> None:
        for need in needs:
            own = recipe if consumes(need) == "views" else ""
            for role in roles:
                found = wanted.setdefault((encoder, own, asked(need), role), _Asked())
                found.outputs |= set(outputs)
                found.needs.add(need)

    for attack in config.attacks:
        needs, outputs, recipe = attack.needs(), config.outputs_of(attack), config.recipe(attack)
        key = digest(asdict(recipe))
        recipes[key] = recipe
        shadows = config.shadows(attack)
        own = [] if shadows else config.whole_roles(config.reference_roles(attack))
        queried: dict[str, Sequence[str]] = {attack.target: [*config.audited, *own]}
        queried |= dict.fromkeys(shadows, config.reference_roles(attack))
        control = config.control_of(attack)
        if control is not None:
            queried[control] = [*queried.get(control, []), *config.audited, *own]
        for name, roles in queried.items():
            want(name, outputs, needs, roles, key)
            if attack.method().anchored:
                want(name, outputs, ("embedding",), config.whole_roles([ANCHOR_ROLE]))
    for name in config.encoders:
        for roles in config.utility_roles(name):
            want(name, ("backbone",), ("embedding",), roles)
        for roles in config.classifier_roles(name):
            want(name, ("logits",), ("embedding",), roles)
    return tuple(_joined(wanted, recipes))


def _joined(wanted: dict[tuple[str, str, str, str], _Asked], recipes: dict[str, Recipe]) -> Iterable[Demand]:
    """Sets of queries of one encoder and the same outputs in one pass per recipe."""
    passes: dict[tuple[str, tuple[str, ...]], dict[str, dict[str, set[str]]]] = {}
    for (encoder, recipe, _, role), found in wanted.items():
        outputs = tuple(output for output in OUTPUTS if output in found.outputs)
        by_role = passes.setdefault((encoder, outputs), {}).setdefault(recipe, {})
        by_role.setdefault(role, set()).update(found.needs)
    for (encoder, outputs), by_recipe in passes.items():
        plain = by_recipe.pop("", {})
        first = next(iter(by_recipe), "")
        of_first = by_recipe.setdefault(first, {})
        for role, needs in plain.items():
            of_first.setdefault(role, set()).update(needs)
        for recipe, by_role in by_recipe.items():
            yield Demand(encoder, outputs, by_role, recipes.get(recipe))
