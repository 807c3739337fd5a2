"""The audit of candidates against controls on one encoder, in this process: the same steps and numbers as a run of
``encoder-audit audit`` with the config that `Found.config` writes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from mi_core.attacks.mean_cosine import MeanCosine
from mi_core.auditing.found import Found
from mi_core.auditing.images import items_of
from mi_core.auditing.models import Model, Preparation, control_of, device_of, given_control, model_of
from mi_core.auditing.reading import CANDIDATES, CONTROLS, MAX_REJECTED, Samples, decoded, read
from mi_core.auditing.record import Measured
from mi_core.augmentations import AUGMENTATIONS
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError, check_choice, check_range
from mi_core.encoders.averaging import averaged
from mi_core.encoders.builders import folder_preprocessing, of_captions
from mi_core.encoders.folding import for_queries
from mi_core.encoders.model_folder import Definition, folder_kind
from mi_core.encoders.published import PUBLISHED, published
from mi_core.encoders.weight_sources import definition_of, read_local
from mi_core.images import Decoder
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.querying.precision import precision_on
from mi_core.querying.sanity import view_consistency
from mi_core.records import Features, LabelledFeatures
from mi_core.streams import sample_streams, stream_keys
from mi_core.validity.blind import blind_scores, telling
from mi_core.validity.file_features import FILE_FEATURES, pixel_names

CHUNK = 256  # images that are decoded and queried together
PROBED = 256  # images on which the encoder is tried out
BLIND = 10_000  # images of a side that the blind classifier sees, at most
LEAST = 100
"""Controls to ask for. 30 % of them, drawn one by one, fix the threshold; a false-positive rate of 5 % takes 19.
Of 100 controls fewer are drawn in one case of 200, of 64 in 43 of 100."""
_SIZE = 224


def audit(
    model: Any,
    candidates: Any,
    controls: Any,
    *,
    size: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    control: Any = None,
    control_weights: str | os.PathLike[str] | None = None,
    objective: str | None = None,
    augmentation: Mapping[str, Any] | None = None,
    output: str | None = None,
    views: int = 10,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    endpoint: Mapping[str, Any] | None = None,
    key: str | None = None,
    trust_code: bool = False,
    fdr: float = 0.05,
    max_rejected: float = MAX_REJECTED,
    seed: int = 0,
    progress: bool = True,
) -> Found:
    """Tell whether images were used to train an encoder.

    The attack is mean-cosine: embeddings of an image's views lie closer together if the image was trained on. Its score
    counts only against two controls on the same images: a blind classifier that never asks the encoder, and the same
    attack on an encoder that saw neither group. Nothing is trained. Random draws depend on ``seed`` and keys alone.

    Args:
        model: an ``nn.Module``; a function of images (B, C, H, W) float32 in [0, 1] to embeddings (B, D); the name of
            an architecture with ``weights``, such as ``"open_clip:ViT-B-32"``; or the address of an API.
        candidates: images in question: a folder, a list of files, bytes, PIL images or arrays, an array or tensor
            (N, H, W), (N, H, W, C) or (N, C, H, W), a torch or Hugging Face data set.
        controls: images of the same kind that were surely not trained on, at least 100 of them.
        size: side of the images as the encoder gets them; None: the published one of a named encoder, else 224.
        weights: of a named encoder: a file, ``"hf://org/name/file"``, or a folder for the models of transformers. A
            model of the Hub needs none: ``"transformers:org/name"``, ``"open_clip:hf-hub:org/name"``.
        control: an encoder that saw neither group, as ``model``; None: the same network with fresh weights, or a fresh
            ResNet-18 where ``model`` is a function or an API. Nothing of ``model`` but the size reaches a control by
            name or address: an API is asked with default settings and no key; wrap another one in a function.
        control_weights: of a named control, as ``weights``.
        objective: pre-training framework whose views the queries imitate; None: ``clip`` for CLIP and SigLIP,
            else ``simclr``.
        augmentation: settings of these views, for example ``{"crop_scale": (0.4, 1.0)}``; None: the framework's own.
        output: embedding that is attacked; None: ``projection`` for CLIP and SigLIP, else ``backbone``.
        views: of each image, at least 2.
        mean, std: normalisation per channel of what a network, a function or a named encoder gets; None: the published
            one of a named encoder, else none.
        endpoint: settings of an API, as ``EndpointParameters`` has them, for example ``{"adapter": "openai"}``.
        key: its secret key; None: the one in the environment variable that ``endpoint`` names as ``api_key_env``.
        trust_code: run the code of a TorchScript file or Python module.
        fdr: share of wrongly flagged images among the flagged, in (0, 1).
        max_rejected: largest share of images that cannot be used, in [0, 1]; above it the audit ends.
        seed: of all random draws.
        progress: show a bar.

    Returns:
        The verdict with its evidence.

    Raises:
        ConfigError: an argument is impossible or of no use to this ``model``, an image is on both sides, too many
            images cannot be used, or the encoder does not answer.
        ShapeError: the encoder does not answer with one row per image.
        NumericError: an embedding is not finite; the message names the images.
    """
    check_range("views", views, 2)
    check_range("fdr", fdr, 0, 1, open_low=True, open_high=True)
    check_range("max_rejected", max_rejected, 0, 1)
    named = model if isinstance(model, str) else ""
    files = definition_of(named, None if weights is None else str(weights), read_local)
    captioned = of_captions(named, files)
    objective = objective or ("clip" if captioned else "simclr")
    recipe = recipe_of(objective, augmentation or {})
    output = output or ("projection" if captioned else "backbone")
    given = {CANDIDATES: items_of(candidates, CANDIDATES), CONTROLS: items_of(controls, CONTROLS)}
    decoder = _decoder(named, size, files)
    how = Preparation(decoder.image_size, weights, mean, std, endpoint or {}, key, trust_code, seed)
    if control is None and control_weights is not None:
        raise ConfigError("control_weights are given without a control; give control=NAME, or leave them out")
    with _evaluating(model, control), _bar(progress) as bar:
        target = model_of(model, how)
        beside = control_of(model, target, how) if control is None else given_control(control, how, control_weights)
        for name, one in (("model", target), ("control", beside)):
            if output not in one.encoder.outputs:
                fresh = name == "control" and control is None
                which = f"the control, a fresh {one.load}," if fresh else name
                remedy = "; give a control that has this output" if fresh else ""
                raise ConfigError(f"output = {output!r}: {which} has {', '.join(one.encoder.outputs)}{remedy}")
        tick = bar.begin("reading", sum(map(len, given.values())))
        samples = read(given, decoder, seed, tick, max_rejected=max_rejected)
        _check_numbers(samples, seed)
        setup = _Setup(decoder, recipe, output, views, seed, device_of(model), bar)
        shown = setup.consistency(target, samples)
        features = setup.features(target, beside, samples)
        scores = _scored(features, samples, seed)
    sources = {CANDIDATES: candidates, CONTROLS: controls}
    return Found.of(
        Measured(samples, scores, target, beside, shown, sources),
        objective=objective,
        augmentation=augmentation or {},
        output=output,
        views=views,
        data=_decoding(named, size, files) | ({} if max_rejected == MAX_REJECTED else {"max_rejected": max_rejected}),
        fdr=fdr,
        seed=seed,
        grid=setup.grid(samples),
    )


def recipe_of(objective: str, settings: Mapping[str, Any]) -> SimCLRAugmentation:
    """The recipe of the views that queries imitate.

    Args:
        objective: pre-training framework.
        settings: of its views, in place of its own.

    Raises:
        ConfigError: no such framework or setting.
    """
    recipe = AUGMENTATIONS[check_choice("objective", objective, AUGMENTATIONS)]
    for name in settings:
        check_choice("augmentation", name, (field.name for field in fields(recipe)))
    given: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in settings.items()}
    return recipe(**given)


def _publishes(named: str) -> bool:
    """Whether a config knows by the name how images reach an encoder."""
    return named.partition(":")[0] in PUBLISHED and folder_kind(named) is None


def _decoder(named: str, size: int | None, files: Definition) -> Decoder:
    """As the publisher of a named encoder decodes, unless a size is given."""
    how = _decoding(named, size, files)
    if not how:
        found = published(named)
        assert found is not None
        how = found.preprocessing.decoding()
    return Decoder(**{**how, "image_size": how["image_size"] or _SIZE})


def _decoding(named: str, size: int | None, files: Definition) -> dict[str, Any]:
    """Decoding as a config says it; empty where the encoder's name says it already."""
    folder = folder_kind(named)
    if size is not None:
        return {"image_size": size}
    if folder is not None:
        return folder_preprocessing(folder, files).decoding()
    return {} if _publishes(named) else {"image_size": _SIZE}


def _check_numbers(samples: Samples, seed: int) -> None:
    candidate, known = samples.candidate, samples.known(seed)
    controls = int((~candidate).sum())
    if int(known.sum()) < 19 or controls - int(known.sum()) < 5:
        raise ConfigError(
            f"{controls} controls are left, of which {int(known.sum())} would fix the threshold; that takes 19, so "
            f"give at least {LEAST} controls"
        )
    if int(candidate.sum()) < 5:
        raise ConfigError(f"{int(candidate.sum())} candidates are left; give at least 5")


@dataclass(frozen=True)
class _Setup:
    """How the encoders are asked."""

    decoder: Decoder
    recipe: SimCLRAugmentation
    output: str
    views: int
    seed: int
    device: torch.device
    bar: _Bar

    def features(self, target: Model, control: Model, samples: Samples) -> tuple[Features, Features]:
        """Similarities of the views of all images, on the target and on the control."""
        encoders = {"target": target.encoder, "fresh": control.encoder}
        ready = {name: averaged(for_queries(one, self.device), 1) for name, one in encoders.items()}
        alike = len({one.size for one in ready.values()}) == 1
        together = [ready] if alike else [{name: ready[name]} for name in ready]
        plan = self._plan()
        extractors = [Extractor(some, plan, self.recipe, self.device) for some in together]
        need = MeanCosine(seed=self.seed).needs[0]
        parts: dict[str, list[np.ndarray]] = {name: [] for name in ready}
        tick = self.bar.begin("asking the encoders", len(samples.items))
        for rows, pixels in decoded(samples, self.decoder, CHUNK):
            names = samples.ids[rows]
            streams = sample_streams(self.seed, "query", [_split(name) for name in names])
            for extractor in extractors:
                for name, columns in extractor(torch.from_numpy(pixels), streams, names).items():
                    parts[name].append(columns[f"{self.output}.{need}"])
            tick(len(names))
        ids = np.array(samples.ids)
        first, second = (Features(ids, {need: np.concatenate(parts[name])}) for name in ("target", "fresh"))
        return first, second

    def _plan(self) -> QueryPlan:
        needs = MeanCosine(seed=self.seed).needs
        return QueryPlan(needs, (self.output,), self.views, precision=precision_on(self.device.type, "auto"))

    @torch.inference_mode()
    def consistency(self, target: Model, samples: Samples) -> dict[str, Any]:
        """Whether the encoder recognises images in two different views."""
        names = sorted(samples.ids[:], key=lambda name: (not name.startswith(CANDIDATES), name))[:PROBED]
        row_of = {name: row for row, name in enumerate(samples.ids)}
        chosen = samples.at([row_of[name] for name in names])
        images = np.concatenate([pixels for _, pixels in decoded(chosen, self.decoder, CHUNK)])
        reference = None if target.reference is None else target.reference.to(self.device)
        return view_consistency(
            target.encoder.to(self.device),
            reference,
            torch.from_numpy(images),
            sample_streams(self.seed, "probe", [_split(name) for name in names]),
            self.recipe,
            device=self.device,
        )

    def grid(self, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        """The first candidates (N, C, S, S) and their views (N, V, C, S, S), uint8."""
        from mi_core.augmentations.views import make_views

        names = sorted(name for name in samples.ids if name.startswith(f"{CANDIDATES}/"))[:4]
        row_of = {name: row for row, name in enumerate(samples.ids)}
        chosen = samples.at([row_of[name] for name in names])
        (images,) = (pixels for _, pixels in decoded(chosen, self.decoder, CHUNK))
        streams = stream_keys(self.seed, "query", CANDIDATES, [_split(name)[1] for name in names])
        drawn = make_views(torch.from_numpy(images), streams, self.recipe, views=self.views)
        return images, (drawn * 255).round().to(torch.uint8).numpy()


def _split(name: str) -> tuple[str, str]:
    side, _, key = name.partition("/")
    return side, key


def _scored(features: tuple[Features, Features], samples: Samples, seed: int) -> dict[str, Any]:
    """Scores of the attack, of the control and of the blind classifier on the judged images."""
    known, candidate = samples.known(seed), samples.candidate
    blind = _blind(samples, seed)
    judged = ~known
    found: dict[str, Any] = {"member": candidate[judged], "blind": blind[0][judged], "seen": blind[1][judged]}
    for name, own in zip(("score", "control"), features, strict=True):
        method = MeanCosine(seed=seed)
        method.fit(LabelledFeatures(own.take(known), np.zeros(int(known.sum()), dtype=bool)))
        found[name] = method.score(own.take(judged))
        if name == "score":
            found |= {"threshold": method.threshold, "statistic": method.statistic(own.take(judged))}
    return found | {"known": int(known.sum()), "telling": blind[2]}


def _blind(samples: Samples, seed: int) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Scores (N,) of the blind classifier, whom it saw (N,), and the single features that tell the sides apart best."""
    seen, ids = samples.first(BLIND, seed), np.array(samples.ids)
    rows = np.flatnonzero(seen)
    rows = rows[np.argsort(ids[rows])]  # its folds follow the order of the ids
    member, scores = samples.candidate[rows], np.zeros(len(ids))
    scores[rows] = blind_scores(samples.summaries[rows], samples.pixels[rows], member, seed=seed)
    return scores, seen, telling(samples.summaries[rows], (*FILE_FEATURES, *pixel_names(3)), member)


@contextmanager
def _evaluating(*models: Any) -> Iterator[None]:
    """Networks of the user are in evaluation mode for the duration of the block, and then as they were."""
    modes = [(part, part.training) for one in models if isinstance(one, nn.Module) for part in one.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


class _Bar:
    """A progress bar, or nothing."""

    def __init__(self, shown: Progress | None) -> None:
        self.shown = shown

    def begin(self, title: str, total: int) -> Any:
        """Begin a task; returns a function that counts."""
        if self.shown is None:
            return lambda count=1: None
        bar, task = self.shown, self.shown.add_task(title, total=total)
        return lambda count=1: bar.advance(task, count)


@contextmanager
def _bar(wanted: bool) -> Iterator[_Bar]:
    if not wanted:
        yield _Bar(None)
        return
    columns = TextColumn("{task.description:>20}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield _Bar(shown)
