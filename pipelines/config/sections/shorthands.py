"""Shorthands in the encoders of a config, spelled out: ``like: other``, ``defends: other`` and ``halves: N``."""

from __future__ import annotations

from typing import Any

from pipelines.config.names import shortened

_OF_TRAINING = ("checkpoints", "save_every", "start")  # what a defended encoder does not have of the one it defends
_FARTHEST = 100  # encoders that one is ``like``, each like the next
_MOST_HALVES = 1024


def spell_out(encoders: dict[str, Any]) -> dict[str, Any]:
    """The encoders of a config as written, one by one.

    ``like: other`` stands for the settings of the other encoder, overridden by the own ones; ``defends: other`` for
    those of the other encoder, from which it starts; ``halves: N`` for N encoders.

    Raises:
        ValueError: there is no such other, or they go in a circle.
    """

    def stated(name: str, trail: tuple[str, ...], word: str = "like") -> dict[str, Any]:
        if name not in encoders:
            raise ValueError(f"{word} = {name!r}, allowed: {', '.join(encoders)}")
        if len(trail) > _FARTHEST:
            raise ValueError(f"{word} = {name!r}: more than {_FARTHEST} encoders follow each other; name the first")
        if name in trail:
            raise ValueError(f"{word} goes in a circle: {' -> '.join((*trail, name))}")
        own = {key: value for key, value in encoders[name].items() if key != "like"}
        model = encoders[name].get("like")
        return own if model is None else {**stated(model, (*trail, name)), **own}

    def resolve(name: str, trail: tuple[str, ...] = ()) -> dict[str, Any]:
        own = stated(name, trail, "defends") if trail else stated(name, ())
        base = own.get("defends")
        if base is None:
            return own
        whole = resolve(base, (*trail, name))
        return {**{key: value for key, value in whole.items() if key not in _OF_TRAINING}, "start": base, **own}

    resolved = {name: resolve(name) for name in encoders}
    return {name: settings for family, whole in resolved.items() for name, settings in _halves(family, whole)}


def _halves(family: str, settings: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """``halves: N`` stands for N encoders ``family-0`` ..., each trained on a random half of the same samples."""
    if "halves" not in settings:
        return [(family, settings)]
    count = settings["halves"]
    if not isinstance(count, int) or not 2 <= count <= _MOST_HALVES or count % 2:
        raise ValueError(f"encoders.{family}.halves = {shortened(count)}, allowed: an even number, 2 to {_MOST_HALVES}")
    own = {key: value for key, value in settings.items() if key != "halves"}
    return [(f"{family}-{number}", {**own, "half": number}) for number in range(count)]
