"""Recognises the layout of a checkpoint: which keys are the backbone, which the heads, which neither.

`table.LAYOUTS` are the known layouts. The one whose keys fit the wanted backbone best is taken. Every key of the file
is used, named as ignored with the reason, or ends the run; what no file tells is named as assumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from mi_core.adoption.layouts.heads import ACTIVATIONS, gaps, head_weights, widths
from mi_core.adoption.layouts.looks import attention, look_at, plain
from mi_core.adoption.layouts.names import NAMINGS, State, prefixes_of, renamed, without_end
from mi_core.adoption.layouts.table import ENDS, LAYOUTS, Known
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import wrong_shapes

_POSITIONS = "encoder.pos_embedding"
_NORMALISATION = ("mean", "std")


@dataclass(frozen=True)
class Layout:
    """Weights sorted by what they are.

    Args:
        name: the layout in words.
        backbone: weights by the names of the wanted backbone.
        heads: weights of each head by output name, under the indices of its layers.
        activations: of each head that has any, a name of `ACTIVATIONS`.
        extras: ``mean`` and ``std`` of the normalisation, where the checkpoint holds them (this package's do).
        used: number of keys of the file by part, in words.
        ignored: the other keys, each group with the reason.
        assumed: what no file tells, and who says so.
    """

    name: str
    backbone: State
    heads: dict[str, State]
    activations: dict[str, str] = field(default_factory=dict)
    extras: State = field(default_factory=dict)
    used: str = ""
    ignored: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def recognise(
    state: State,
    backbone: nn.Module,
    *,
    name: str = "",
    activations: Mapping[str, str] | None = None,
) -> Layout:
    """Sort the weights of a checkpoint for a backbone.

    Args:
        state: from `files.read_weights`.
        backbone: of the wanted architecture; its weights are not touched.
        name: of the backbone in `ENCODERS`, with its patch size.
        activations: of heads by output name, where the user says them.

    Raises:
        ConfigError: no layout fits, and the message tells what the file looks like with its first missing and
            unexpected keys and shapes that differ; a key is not known; an activation or a number of attention heads is
            not known, or is another than the file's authors define; two layers of a head have one number; or a head
            does not read what comes before it.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> recognise({"backbone.weight": layer.weight, "backbone.bias": layer.bias}, layer).name
        'backbone.* state dict'
    """
    whole, merged = plain(state)
    wanted = backbone.state_dict()
    fitting = [known for known in LAYOUTS if known.fits([*whole, *merged])]
    readings = [(known, naming, renamed(whole, known.prefix, naming)) for known in fitting for naming in NAMINGS]
    # those that give most of the wanted names; ``names``: the key of the file of each new name
    known, naming, names = max(readings, key=lambda reading: len(reading[2].keys() & wanted.keys()))
    if not _needed(wanted) <= names.keys():
        below, beside = inner(state, wanted, NAMINGS, ENDS)
        if below.keys() != state.keys():
            found = recognise(below, backbone, name=name, activations=activations)
            return replace(found, ignored=(*found.ignored, *beside))
    own = {new: whole[key] for new, key in names.items() if new in wanted}
    used = {names[new] for new in own}
    heads, head_keys, aside = _heads(known, whole, used)
    extras = {part: state[part] for part in _NORMALISATION if set(_NORMALISATION) <= state.keys()}
    left = [key for key in whole if key not in used | head_keys and key not in extras]
    reasons = {key: aside.get(key) or known.why_ignored(key) for key in left}
    _check_fit(state, own, wanted, [key for key, reason in reasons.items() if reason is None], name)
    _check_widths(heads, backbone)
    chosen, assumed = _activations(known, heads, activations or {})
    heads_of_attention = attention(known, backbone, name, own.get(_POSITIONS))
    counts = {"backbone": len(used) + len(merged), **{output: len(weights) for output, weights in heads.items()}}
    counts |= {"normalisation": len(extras)} if extras else {}
    return Layout(
        known.name + (f" with {naming} names" if naming else ""),
        own,
        heads,
        chosen,
        extras,
        ", ".join(f"{part} {count}" for part, count in counts.items()),
        tuple(listed({key: reason for key, reason in reasons.items() if reason})),
        tuple(words for words in (heads_of_attention, *assumed, _strides(backbone, name)) if words),
    )


def inner(
    state: State, wanted: Collection[str], namings: Collection[str] = ("",), ends: Collection[str] = ()
) -> tuple[State, tuple[str, ...]]:
    """The part of a file that holds a network, without what stands before its names, and what is left out and why.

    A student beside a teacher is never taken: DINO releases the teacher. Of equal copies the first is taken.

    Args:
        state: weights of the file.
        wanted: names of the network.
        namings: of `names.NAMINGS`, in which it may have them.
        ends: last parts of a prefix that stay, those of known layouts.

    Returns:
        All as it is, and nothing left out, if the network stands nowhere, or before everything.

    Raises:
        ConfigError: the network is there several times, with other weights.
    """
    found = prefixes_of(plain(state)[0], wanted, namings)
    outer = {without_end(prefix, ends): prefix for prefix in found}
    if any("teacher" in key for key in state):
        outer = {start: prefix for start, prefix in outer.items() if "student" not in start}
    if len(outer) > 1 and not _all_equal(state, outer):
        raise ConfigError(
            f"the file holds the network {len(outer)} times, under {', '.join(outer.values())}; choose one with "
            f"weights_key = {next(iter(outer.values())).removesuffix('.')!r}"
        )
    start = next(iter(outer), "")
    left = {key: f"stands beside {start}*, which is the network" for key in state if not key.startswith(start)}
    return {key.removeprefix(start): one for key, one in state.items() if key not in left}, tuple(listed(left))


def _all_equal(state: State, prefixes: Iterable[str]) -> bool:
    """True if a file holds the same weights under all of some prefixes, whatever else stands under them."""
    parts = [{key.removeprefix(start): key for key in state if key.startswith(start)} for start in prefixes]
    first = min(parts, key=len)
    return all(name in part and torch.equal(state[first[name]], state[part[name]]) for name in first for part in parts)


def listed(reasons: Mapping[str, str]) -> list[str]:
    """Keys in words, those of one reason together.

    Example:
        >>> listed({"queue": "negatives", "key.fc.weight": "a copy", "key.fc.bias": "a copy"})
        ['queue (negatives)', 'key.*, 2 keys (a copy)']
    """
    groups: dict[str, list[str]] = {}
    for key, reason in reasons.items():
        groups.setdefault(reason, []).append(key)
    return [f"{_label(keys)} ({reason})" for reason, keys in groups.items()]


def _label(keys: list[str]) -> str:
    first = list(dict.fromkeys(key.split(".")[0] + (".*" if "." in key else "") for key in keys))
    last = list(dict.fromkeys(key.rpartition(".")[2] for key in keys))
    telling = len(last) <= 3 and not {"weight", "bias"} & set(last)
    shown = first if len(first) <= 3 else last if telling else [*first[:3], "..."]
    return ", ".join(shown) + (f", {len(keys)} keys" if len(keys) > len(shown) or "..." in shown else "")


def _heads(known: Known, state: State, used: Collection[str]) -> tuple[dict[str, State], set[str], dict[str, str]]:
    """Weights of each head by output name, the keys they came from, and keys of heads that are left aside, and why."""
    heads: dict[str, State] = {}
    taken: set[str] = set()
    aside: dict[str, str] = {}
    for output, prefixes in known.heads.items():
        start = next((start for start in prefixes if any(key.startswith(start) for key in state)), None)
        if start is None:
            continue
        keys = [key for key in state if key.startswith(start) and key not in used and known.why_ignored(key) is None]
        if output == "logits" and heads:
            aside |= dict.fromkeys(keys, "a classifier beside the projection")
        elif output == "prototypes" and {key.removeprefix(start) for key in keys} != {"weight_g", "weight_v"}:
            aside |= dict.fromkeys(keys, "prototypes without their lengths or directions")
        elif keys:
            heads[output] = head_weights({key.removeprefix(start): state[key] for key in keys})
            taken |= set(keys)
    return heads, taken, aside


def _needed(wanted: Collection[str]) -> set[str]:
    """Names without the counters of batches, which older files lack."""
    return {key for key in wanted if not key.endswith("num_batches_tracked")}


def _check_fit(state: State, own: State, wanted: Mapping[str, torch.Tensor], unknown: list[str], name: str) -> None:
    missing = [key for key in wanted if key in _needed(wanted) and key not in own]
    shapes = wrong_shapes(own, wanted)
    target = f"checkpoint:{name}" if name else "the backbone"
    if missing or shapes:
        raise ConfigError(
            f"weights do not fit {target}; {look_at(state).sentence()}; missing {missing[:3]} ({len(missing)}), "
            f"unexpected {unknown[:3]} ({len(unknown)}), wrong shape {shapes[:3]} ({len(shapes)})"
        )
    if unknown:
        raise ConfigError(
            f"{len(unknown)} keys are neither the backbone nor a known head, first {unknown[:3]}: {target} is filled, "
            f"but the file may hold another network; {look_at(state).sentence()}; if they are not needed, save the "
            "file without them"
        )


def _check_widths(heads: Mapping[str, State], backbone: nn.Module) -> None:
    before, width = "backbone", getattr(backbone, "width", None)
    for output, weights in heads.items():
        own = widths(weights)
        if own is not None:
            if width is not None and own[0] != width:
                raise ConfigError(f"the {output} reads {own[0]} numbers, but the {before} gives {width}")
            before, width = output, own[1]


def _activations(
    known: Known, heads: Mapping[str, State], given: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The activation of every head that has a place for one, and in words who says so."""
    absent = sorted(set(given) - set(heads))
    if absent:
        raise ConfigError(
            f"heads.{absent[0]}.activation is given, but the file has the heads: {', '.join(heads) or 'none'}"
        )
    chosen, words = {}, []
    for output, weights in heads.items():
        places = gaps(weights)
        if not places:
            if output in given:
                raise ConfigError(
                    f"heads.{output}.activation is given, but the {output} has no place for one; leave it out"
                )
            continue
        if output not in given and (known.activation is None or 0 in places):
            raise ConfigError(
                f"heads.{output}.activation is missing: layers {', '.join(map(str, places))} of the {output} have no "
                f"weights, and the file ({known.name}) does not tell what they do; give one of {', '.join(ACTIVATIONS)}"
            )
        chosen[output] = given.get(output) or str(known.activation)
        by = "as the config says" if output in given else f"as the code behind a {known.name} has it"
        words.append(f"activation {chosen[output]} in the {output}, {by}")
    return chosen, words


def _strides(backbone: nn.Module, name: str) -> str | None:
    """The strides of a small first layer, which no weight tells, in words; None: nothing is assumed."""
    first = getattr(backbone, "conv1", None)
    small = isinstance(first, nn.Conv2d) and first.kernel_size == (3, 3)
    if small or name.startswith("mobilenet"):
        return f"strides and pooling of the first layers as {name or 'the backbone'} has them"
    return None
