"""How long attacks take to fit and to score, on random features of the size that real ones have.

Fitting a network for hundreds of epochs on many samples takes hours on a CPU, so an epoch is measured and the rest is
arithmetic: ``fit_seconds`` = preparation + epochs x seconds per epoch, the latter from fits of 1 and of 3 epochs.
"""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import Any

import numpy as np

from mi_core.attacks import ATTACKS
from mi_core.attacks.base import Attack
from mi_core.attacks.lira import shadow_row
from mi_core.checks import check_choice
from mi_core.features import asked, parse_need
from mi_core.records import Features, LabelledFeatures

VIEWS, WIDTH, CLASSES, ANCHORS, SHADOWS = 10, 128, 10, 2000, 4
_WARM = 200


def attack_benchmark(name: str, samples: int, *, width: int = WIDTH, anchors: int = ANCHORS) -> dict[str, Any]:
    """Time one attack with its default settings.

    Args:
        name: key of `ATTACKS`.
        samples: N, half of them members; as many are scored.
        width: D of the embeddings; of classifiers it is 10 classes.
        anchors: A, for attacks that take anchors.

    Returns:
        ``fit_seconds``, of which ``prepare_seconds``; for networks ``epochs`` and ``epoch_seconds``; ``score_seconds``;
        ``dominates``: what takes most of the fit.
    """
    check_choice("attack", name, ATTACKS)
    method = ATTACKS[name]
    width = CLASSES if method.outputs == ("logits",) else width
    parameters = method.Parameters()
    reference, scored = _features(method, samples, width, anchors, 0), _features(method, samples, width, anchors, 1)
    epochs = _epochs(parameters)
    warm = parameters if epochs is None else replace(parameters, epochs=1)
    _fit(method(warm), _features(method, _WARM, width, anchors, 0))  # what the first fit of a process pays once
    result: dict[str, Any] = {"samples": samples, "width": width}
    if epochs is None:
        attack, seconds = _fit(method(parameters), reference)
        result |= {"prepare_seconds": seconds, "fit_seconds": seconds}
        epoch_seconds = 0.0
    else:
        attack, once = _fit(method(replace(parameters, epochs=1)), reference)
        _, thrice = _fit(method(replace(parameters, epochs=3)), reference)
        epoch_seconds = (thrice - once) / 2
        prepare = max(0.0, once - epoch_seconds)
        result |= {"epochs": epochs, "epoch_seconds": epoch_seconds, "prepare_seconds": prepare}
        result["fit_seconds"] = prepare + epochs * epoch_seconds
    started = time.perf_counter()
    attack.score(scored.features)
    result["score_seconds"] = time.perf_counter() - started
    trains = epoch_seconds * (epochs or 0) > result["prepare_seconds"]
    result["dominates"] = "training the network" if trains else "reading the features"
    return {key: round(value, 7) if isinstance(value, float) else value for key, value in result.items()}


def _epochs(parameters: Any) -> int | None:
    if hasattr(parameters, "training"):
        return int(parameters.training().epochs)
    return parameters.epochs if "epochs" in {field.name for field in fields(parameters)} else None


def _fit(attack: Attack, reference: LabelledFeatures) -> tuple[Attack, float]:
    started = time.perf_counter()
    attack.fit(reference)
    return attack, time.perf_counter() - started


def _features(method: type[Attack], samples: int, width: int, anchors: int, seed: int) -> LabelledFeatures:
    """Random features of the shapes that an attack needs, with a weak leak."""
    generator = np.random.default_rng(seed)
    member = np.arange(samples) % 2 == 0
    ids = np.array([f"pool/{row:07d}" for row in range(samples)])
    if "shadows" in method.reference and seed == 0:
        member = np.concatenate([(np.arange(samples) + number) % 2 == 0 for number in range(SHADOWS)])
        ids = np.array([shadow_row(name, str(number)) for number in range(SHADOWS) for name in ids])
    values = {}
    for need in method().needs:
        feature, setting = parse_need(need)
        queries = feature.queries(setting, VIEWS)
        shapes: dict[str, tuple[int, ...]] = {
            "pairwise": (VIEWS * (VIEWS - 1) // 2,),
            "patches": (queries - 1,),
            "parts": (2 * (queries - 1),),
            "embedding": (width,),
            "view-embeddings": (VIEWS, width),
            "adversarial": (queries, width),
        }
        kind = "embedding" if need == "caption:embedding" else need.partition(":")[0]
        shape = (len(ids), *shapes.get(kind, ()))
        drawn = np.tanh(generator.normal(0.5, 0.3, shape) + 0.1 * member.reshape(-1, *[1] * (len(shape) - 1)))
        values[need] = (drawn + (asked(need) == "clean")).astype(np.float32)
    others = generator.normal(size=(anchors, width)).astype(np.float32) if method.anchored else None
    labels = generator.integers(0, width, len(ids)) if method.labelled else None
    return LabelledFeatures(Features(ids, values, others, labels), member)
