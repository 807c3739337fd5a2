"""The attacks of an audit: mean-cosine, on which the verdict rests, and those that the user adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from mi_core.attacks import ATTACKS
from mi_core.attacks.base import Attack
from mi_core.attacks.mean_cosine import MeanCosine
from mi_core.attacks.shadows import join_shadows
from mi_core.auditing.arguments import plain_value
from mi_core.auditing.config_text import FAMILY, MISSING
from mi_core.auditing.references import Reference
from mi_core.checks import ConfigError, check_choice
from mi_core.features import Measure
from mi_core.records import BoolArray, Features, LabelledFeatures

AUDITED, NONMEMBERS, SHADOWS = "audited", "nonmembers", "shadows"
_FITTED_ON = (NONMEMBERS, AUDITED, SHADOWS)  # the first that an attack can be fitted on is taken


@dataclass(frozen=True)
class AuditAttack:
    """An attack of an audit.

    Args:
        method: not fitted.
        reference: ``nonmembers`` (the controls that fix the threshold), ``audited`` (all images), or
            ``shadows`` (the references that are trained here on halves of the images).
        given: parameters that the user gave, by name.
    """

    method: Attack
    reference: str
    given: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.method.name

    def settings(self) -> dict[str, Any]:
        """The attack as a config has it."""
        kind, reference = type(self.method), FAMILY if self.reference == SHADOWS else self.reference
        named: dict[str, Any] = {"attack": self.name}
        if ATTACKS.get(self.name) is not kind:
            module = MISSING if kind.__module__ == "__main__" else kind.__module__
            named = {"attack": f"python:{module}:{kind.__qualname__}", "trust_code": True}
        return named | {"target": "target", "reference": reference, **self.given}

    def fitted(self, name: str, features: Mapping[str, Features], rows: Rows, beside: Sequence[Reference]) -> Attack:
        """The attack, fitted to score an encoder.

        Args:
            name: of the encoder.
            features: of all N images, by encoder.
            rows: what they are.
            beside: the references.

        Raises:
            NotApplicable: the features carry nothing to fit.
            ShapeError: there are too few images to learn from.
        """
        method = _unfitted(self.method, self.method.seed)
        if self.reference == NONMEMBERS:
            known = features[name].take(rows.known)
            method.fit(LabelledFeatures(known, np.zeros(len(known), dtype=bool)))
        elif self.reference == AUDITED:
            method.fit(LabelledFeatures(features[name], rows.candidate, audited=True))
        else:
            joined = join_shadows({one.name: method.condensed(features[one.name]) for one in beside})
            method.fit(LabelledFeatures(joined, np.concatenate([one.seen for one in beside])))
        return method

    def judges(self, rows: Rows) -> BoolArray:
        """(N,) the images that it judges: all but those that fix its threshold."""
        return ~rows.known if self.reference == NONMEMBERS else np.ones_like(rows.known)


@dataclass(frozen=True)
class Rows:
    """What the N images of an audit are.

    Args:
        known: (N,) controls that fix thresholds of attacks that need some.
        candidate: (N,) which are candidates.
    """

    known: BoolArray
    candidate: BoolArray


def needs_of(attacks: Sequence[AuditAttack]) -> tuple[Measure, ...]:
    """All features that some attacks read, each once."""
    return tuple(dict.fromkeys(need for one in attacks for need in one.method.needs))


def attacks_of(given: Any, *, seed: int, output: str, no_shadows: str) -> tuple[AuditAttack, ...]:
    """Mean-cosine, and the attacks that the user adds.

    Args:
        given: names of attacks, dictionaries with such a name under ``attack`` and parameters beside it, classes, or
            instances.
        seed: of everything random in their fits.
        output: that is attacked.
        no_shadows: what to do so that references are trained here by the target's framework; empty: they are.

    Raises:
        ConfigError: no such attack or parameter, an attack stands twice, or it needs what an audit of images in Python
            does not have; the message names the attack and the remedy.
    """
    if not isinstance(given, list | tuple):
        raise ConfigError(f"attacks = {given!r}; give a list, such as ['lira']")
    first = AuditAttack(MeanCosine(seed=seed), NONMEMBERS, {})
    chosen = [first]
    for one in given:
        attack = _read(one, seed, no_shadows)
        if any(attack.name == other.name for other in chosen):
            raise ConfigError(f"attacks: {attack.name} stands twice, or is that of the verdict; leave it out")
        if lack := _lack(attack.method, output):
            raise ConfigError(f"attacks: {attack.name} {lack}; leave it out here, and run it from a config")
        chosen.append(attack)
    return tuple(chosen)


def _read(given: Any, seed: int, no_shadows: str) -> AuditAttack:
    parameters: dict[str, Any] = {}
    if isinstance(given, Attack):
        method = _unfitted(given, seed)
        defaults = {one.name: one.default for one in fields(given.parameters)}
        values = {name: plain_value(f"{given.name}.{name}", getattr(given.parameters, name)) for name in defaults}
        parameters = {name: value for name, value in values.items() if value != defaults[name]}
        wanted = None
    else:
        entry = dict(given) if isinstance(given, Mapping) else {"attack": given}
        kind, wanted = entry.pop("attack", None), entry.pop("reference", None)
        if not (isinstance(kind, type) and issubclass(kind, Attack)):
            if not isinstance(kind, str):
                raise ConfigError(f"attacks: {given!r} is no attack; give a name, a class of Attack, or a dictionary")
            kind = ATTACKS[check_choice("attacks", kind, ATTACKS)]
        for name in entry:
            check_choice(f"attacks: parameter of {kind.name}", name, [one.name for one in fields(kind.Parameters)])
        parameters, method = entry, kind(kind.Parameters(**entry), seed=seed)
    possible = [one for one in _FITTED_ON if one in method.reference and not (no_shadows and one == SHADOWS)]
    if not possible:
        needed = " or ".join(sorted(method.reference))
        remedy = no_shadows if SHADOWS in method.reference else ""
        raise ConfigError(
            f"attacks: {method.name} is fitted on {needed}, which this audit does not have; "
            f"{remedy or 'run it from a config'}"
        )
    reference = possible[0] if wanted is None else check_choice(f"reference of {method.name}", wanted, possible)
    return AuditAttack(method, reference, plain_value(method.name, parameters))


def _unfitted(method: Attack, seed: int) -> Attack:
    return type(method)(method.parameters, seed=seed)


def _lack(method: Attack, output: str) -> str:
    """What an attack takes that is not at hand; empty: nothing."""
    needs = method.needs
    if method.outputs and output not in method.outputs:
        return f"reads {' or '.join(method.outputs)}, not {output}"
    for taken, words in (
        (any(need.captions for need in needs), "reads captions"),
        (method.labelled, "needs the classes of the images"),
        (method.populated or method.anchored or method.bank_size, "needs further images"),
        (method.updated, "needs an earlier version of the encoder"),
        (method.sequential, "decides while it asks"),
    ):
        if taken:
            return words
    return ""
