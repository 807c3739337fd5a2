"""The audit of candidates against controls on one encoder, in this process: the same steps and numbers as a run of
``encoder-audit audit`` with the config that `Found.config` writes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np
from torch import nn

from mi_core.auditing.asking import COMMAND, Bar, RegistrationFile, Setup
from mi_core.auditing.attacks import attacks_of, scores_of
from mi_core.auditing.config_text import reference_settings
from mi_core.auditing.found import Found
from mi_core.auditing.images import items_of
from mi_core.auditing.judging import Measured, conclude
from mi_core.auditing.models import check_enough, device_of, evaluating, given_reference, model_of, tried_out
from mi_core.auditing.questions import Question, check_arguments, question_of
from mi_core.auditing.reading import CANDIDATES, CONTROLS, MAX_REJECTED, AuditedImages, read
from mi_core.checks import ConfigError
from mi_core.registration import PLAN, ROLES, START
from mi_core.report.model.as_json import part_as_json
from mi_core.validity.verdict import CLASSIFIED, FACTOR

LEAST = 100
"""Controls to ask for. 30 % of them, drawn one by one, fix the threshold; a false-positive rate of 5 % takes 19.
Of 100 controls fewer are drawn in one case of 200, of 64 in 43 of 100."""


def audit(
    model: Any,
    candidates: Any,
    controls: Any,
    *,
    size: int | None = None,
    channels: int = 3,
    decoding: Mapping[str, Any] | None = None,
    weights: str | os.PathLike[str] | None = None,
    weights_key: str | None = None,
    references: Sequence[Any] | None = None,
    quick: bool = False,
    attacks: Sequence[Any] = (),
    objective: str | None = None,
    augmentation: Mapping[str, Any] | None = None,
    output: str | None = None,
    views: int = 10,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    endpoint: Mapping[str, Any] | None = None,
    key: str | None = None,
    trust_code: bool = False,
    near_duplicates: bool = True,
    fdr: float = 0.05,
    max_rejected: float = MAX_REJECTED,
    factor: float = FACTOR,
    nonce: str | None = None,
    seed: int = 0,
    registration: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Found:
    """Tell whether images were used to train an encoder.

    The attack of the verdict is mean-cosine: embeddings of an image's views lie closer together if the image was
    trained on. Its score counts only against checks on the same images: a blind classifier that never asks the encoder,
    the same attack on reference encoders that saw neither group, and a classifier on what these see. Somebody chose the
    two groups, so the verdict is that by choice of `mi_core.validity.verdict`. Views depend on pixels, ``seed`` and
    ``nonce``: no name, path or order has an effect.

    Args:
        model: an ``nn.Module``; a function of images (B, C, H, W) float32 in [0, 1] to embeddings (B, D); the name of
            an architecture with ``weights``, such as ``"open_clip:ViT-B-32"``; or the address of an API.
        candidates: images in question: a folder, a list of files, bytes, PIL images or arrays, an array or tensor
            (N, H, W), (N, H, W, C) or (N, C, H, W), a torch or Hugging Face data set, or anything that yields images.
        controls: images of the same kind that were surely not trained on, at least 100 of them.
        size: side of the images as the encoder gets them; None: the published one of a named encoder, else 224.
        channels: of the images as the encoder gets them, 3 or 1 (grey).
        decoding: how files become pixels, in place of the encoder's own way, as ``Decoder`` has it: ``interpolation``,
            ``fit``, ``resize``, ``depth``, and ``{"orientation": "stored"}`` for a training that did not turn images
            as their EXIF data ask.
        weights: of a named encoder: a file, ``"hf://org/name/file"``, or a folder for the models of transformers. A
            model of the Hub needs none: ``"transformers:org/name"``, ``"open_clip:hf-hub:org/name"``.
        weights_key: of the entry of that file that holds the weights, such as ``"model_ema"``, where it holds several;
            None: the usual one.
        references: trained encoders that saw neither group, each as ``model``, or a pair of a name and the file of its
            weights; None: small ones are trained here, each on half of all candidates and controls, the halves by lot.
            Nothing of ``model`` but the size reaches a reference by name or address: an API is asked with default
            settings and no key; wrap another one in a function.
        quick: leave the references out. The verdict can then not be ``leak``.
        attacks: further ones beside mean-cosine: names such as ``"lira"``, dictionaries of a name and parameters
            (``{"attack": "combined", "penalty": 3.0}``), your own classes of `mi_core.attacks.base.Attack`, or
            instances. They are fitted on the controls that fix the threshold, on the judged images, or as LiRA on the
            references that are trained here, whatever each can. The verdict does not rest on them.
        objective: pre-training framework whose views the queries imitate; None: ``clip`` for CLIP and SigLIP,
            else ``simclr``.
        augmentation: settings of these views, for example ``{"crop_scale": (0.4, 1.0)}``; None: the framework's own.
        output: embedding that is attacked; None: ``projection`` for CLIP and SigLIP, else ``backbone``.
        views: of each image, at least 2.
        mean, std: normalisation per channel of what a network, a function or a named encoder gets, for pixels in
            [0, 1]; None: the published one of a named encoder, else none.
        endpoint: settings of an API, as ``EndpointParameters`` has them, for example ``{"adapter": "openai"}``.
        key: its secret key; None: the one in the environment variable that ``endpoint`` names as ``api_key_env``.
        trust_code: run the code of a TorchScript file or Python module.
        near_duplicates: leave out images that are nearly another one; images of few pixels may be alike without that.
        fdr: share of wrongly flagged images among the flagged, in (0, 1).
        max_rejected: largest share of images that cannot be used, in [0, 1]; above it the audit ends.
        factor: least robustness of a leak, at least 1.
        nonce: what makes the views unforeseeable beside the pixels; None: drawn once the images are read. Give that of
            an earlier audit to repeat it, or a number of the other party.
        seed: of all random draws, from 0.
        registration: a file of this question, such as ``"looks.jsonl"``: images and plan are written to it before the
            encoder is asked about an image, then every look with what it found. Give every audit of the same images and
            encoder the same file. None: nothing records how often these images are looked at, and the result says so.
        progress: show a bar.

    Returns:
        The verdict with its evidence.

    Raises:
        ConfigError: arguments are impossible (all are named at once) or of no use to this ``model``, an image is on
            both sides, too many images cannot be used, the encoder does not answer to each image by itself, or the
            file of the registration is damaged.
        ShapeError: the encoder does not answer with one row per image.
        NumericError: an embedding is not finite; the message names the images.
    """
    plain = check_arguments(**locals())  # nothing but the arguments so far
    seed, views, fdr, max_rejected, factor = (
        plain[name] for name in ("seed", "views", "fdr", "max_rejected", "factor")
    )
    if quick and references is not None:
        raise ConfigError("references are given with quick=True, which leaves them out; keep one of the two")
    if references is not None and (not isinstance(references, list | nn.ModuleList) or not len(references)):
        raise ConfigError("references are no list of encoders; give one, or quick=True for an audit without any")
    file = RegistrationFile(registration)
    question = question_of(**{name: plain[name] for name in signature(question_of).parameters})
    question = replace(
        question,
        data=dict(question.data)
        | ({} if max_rejected == MAX_REJECTED else {"max_rejected": max_rejected})
        | ({} if near_duplicates else {"near_duplicates": None}),
    )
    decoder, how, output = question.decoder, question.how, question.output
    given = {CANDIDATES: items_of(candidates, CANDIDATES), CONTROLS: items_of(controls, CONTROLS)}
    with evaluating(model, *(references or ())), Bar(progress) as bar:
        target = model_of(model, how)
        given_ones = [given_reference(one, how, number) for number, one in enumerate(references or ())]
        if output not in target.encoder.outputs:
            raise ConfigError(f"output = {output!r}: model has {', '.join(target.encoder.outputs)}")
        chosen = attacks_of(attacks, seed=seed, output=output, no_shadows=_no_shadows(question, quick, references))
        tick = bar.begin("reading", sum(map(len, given.values())))
        samples = read(given, decoder, seed, tick, max_rejected=max_rejected, near_duplicates=near_duplicates)
        _check_numbers(samples, seed)
        if references is None and not quick:
            check_enough(len(samples.items))  # before the first query, which may be paid for
        target, *given_ones = (tried_out(one, decoder.image_size) for one in (target, *given_ones))
        file.add(ROLES, {"roles": {str(seed): part_as_json(samples.roles(seed))}})
        nonce, origin = file.nonce(nonce)  # drawn once the images are settled
        setup = Setup(chosen, question, views, fdr, factor, seed, nonce, origin, device_of(model), bar)
        own_references = given_ones if quick or references is not None else None
        file.add(PLAN, setup.plan(target, own_references))
        file.add(START, {"command": COMMAND})
        shown = setup.consistency(target, samples)
        beside = setup.references(own_references, samples)
        seen = np.zeros(len(samples.items), dtype=bool)
        seen[samples.first(CLASSIFIED, seed)] = True
        scores = scores_of(chosen, setup.ask(target, beside, samples, seen), beside, samples, seen, seed)
        sources = {CANDIDATES: candidates, CONTROLS: controls}
        return conclude(Measured(samples, scores, target, beside, shown, sources, setup, setup.grid(samples), file))


def _no_shadows(question: Question, quick: bool, references: Sequence[Any] | None) -> str:
    """What to do so that the references are shadows of the target; empty: they are."""
    if quick or references is not None:
        return f"leave {'quick' if quick else 'references'} out, so that references are trained here"
    own = str(reference_settings()["objective"])
    return "" if question.objective == own else f"those trained here are {own}'s, the target {question.objective}'s"


def _check_numbers(samples: AuditedImages, seed: int) -> None:
    known, controls = int(samples.known(seed).sum()), int((~samples.candidate).sum())
    if known < 19 or controls - known < 5:
        raise ConfigError(
            f"{controls} controls are left, of which {known} would fix the threshold; that takes 19, so give at least "
            f"{LEAST} controls"
        )
    if (candidates := len(samples.items) - controls) < 5:
        raise ConfigError(f"{candidates} candidates are left; give at least 5")
