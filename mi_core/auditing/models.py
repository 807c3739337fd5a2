"""Encoders in any of the forms that Python programs have them in, untrained ones for comparison, and references.

References made here are small encoders that learn what is typical among the images of an audit, and no group. Each is
trained on half of all candidates and controls, the halves by lot; an image counts on those that did not see it. So they
know the images and, thanks to the lot, cannot know the groups. Watson et al., "On the importance of difficulty
calibration in membership inference attacks" (ICLR 2022), train such models on other data; here there is none.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from mi_core.adoption.builders import CODE, LOADERS
from mi_core.adoption.code import CodeBackbone, GivenNetwork
from mi_core.adoption.foreign import adopt, untrained
from mi_core.adoption.model_folder import folder_kind
from mi_core.adoption.soundness import Answers, check_answers
from mi_core.adoption.weight_sources import read_local, read_weights_of
from mi_core.auditing.config_text import FAMILY, reference_settings
from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import Encoder, channelwise, fingerprint, seeded
from mi_core.encoders.remote.client import Client
from mi_core.encoders.remote.encoder import Endpoint
from mi_core.encoders.remote.meter import Meter
from mi_core.encoders.remote.parameters import EndpointParameters, secrets_of
from mi_core.hashing import digest64, digests64, half_of, half_purpose
from mi_core.records import BoolArray
from mi_core.report.model.attacks import EncoderPart
from mi_core.training.data import ResidentImages, by_content
from mi_core.training.loop import Pretrainer, PretrainingParameters, audited_encoder
from mi_core.training.optimizers import OptimizerParameters

FEWEST = 128  # images of both sides together, of which a half fills a batch


@dataclass(frozen=True)
class Model:
    """An encoder of an audit.

    Args:
        encoder: in evaluation mode.
        part: what a report says of it before it is tried out.
        settings: what a config says of it; None: a config cannot name it.
        reference: an untrained network of the same kind, for a test that it works; None: there is none.
        answers: what trying it out has shown of them.
    """

    encoder: Encoder
    part: EncoderPart
    settings: Mapping[str, Any] | None = None
    reference: Encoder | None = field(default=None, repr=False)
    answers: Answers = field(default_factory=Answers)


@dataclass(frozen=True)
class Preparation:
    """How images reach an encoder.

    Args:
        image_size: side S of the images.
        weights: file or folder of the weights, for an encoder that is named; see `weight_sources`.
        mean, std: normalisation per channel; None: the encoder's own, or none.
        endpoint: settings of `EndpointParameters`, for an encoder behind an API.
        key: secret that the API asks for; None: the one in the environment variable that ``endpoint`` names, if any.
        trust_code: run the code of TorchScript files and Python modules.
        seed: of fresh weights.
        weights_key: of the entry of the file that holds the weights; None: the usual one.
        channels: C of the images, 1 or 3.
    """

    image_size: int
    weights: str | os.PathLike[str] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    endpoint: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    trust_code: bool = False
    seed: int = 0
    weights_key: str | None = None
    channels: int = 3

    @property
    def normalisation(self) -> dict[str, Any]:
        """Settings that replace the encoder's own."""
        return {name: tuple(given) for name in ("mean", "std") if (given := getattr(self, name)) is not None}

    def check_used(self, kind: str, *used: str, name: str = "model") -> None:
        """Raise ConfigError if an argument is given that an encoder of this kind has no use for."""
        prefix = "" if name == "model" else f"{name}: "
        for argument in ("weights", "weights_key", "mean", "std", "endpoint", "key"):
            value = getattr(self, argument)
            given = bool(value) if argument == "endpoint" else value is not None
            if given and argument not in used:
                raise ConfigError(f"{prefix}{argument} is given, but {name} is {kind}; leave it out")


def model_of(model: Any, how: Preparation, name: str = "model") -> Model:
    """An encoder from what the user has.

    Args:
        model: a network, a function of images (B, C, H, W) in [0, 1] to embeddings (B, D), a name ``kind:architecture``
            with ``weights``, or the address of an API.
        how: images reach it.
        name: of the encoder, for messages: ``model`` or ``references[0]``.

    Raises:
        ConfigError: it is none of these, its weights do not fit, or it does not answer.
        ShapeError: it answers with something else than one row per image.
    """
    if isinstance(model, str):
        return _of_url(model, how, name) if is_address(model) else _of_name(model, how, name)
    if isinstance(model, Encoder):
        how.check_used("an encoder of mi_core, which prepares images itself", name=name)
        part = EncoderPart(load="an encoder of mi_core", **_AS_GIVEN, fingerprint=fingerprint(model))
        own = copy.deepcopy(model).eval()
        return Model(own, replace(part, preprocessing="it prepares images itself"), reference=_reset(model, how))
    if not callable(model):
        raise ConfigError(f"{name} is a {type(model).__name__}; give a network, a function, a name or an address")
    is_network = isinstance(model, nn.Module)
    kind, called = "network" if is_network else "function", getattr(model, "__name__", type(model).__name__)
    how.check_used(f"a Python {kind}", "mean", "std", name=name)
    if is_network and any(not torch.is_tensor(one) or one.is_quantized for one in model.state_dict().values()):
        raise ConfigError(f"{name} is a quantised network, whose weights cannot be read; give its forward, a function")
    encoder, answers = _of_code(model, how)
    told = [f"{name} {', '.join(f'{one:.4g}' for one in values)}" for name, values in how.normalisation.items()]
    part = EncoderPart(
        load=f"the Python {kind} {called}",
        **_AS_GIVEN,
        preprocessing=f"{how.image_size} px, {'; '.join(told) or 'pixels in [0, 1] without normalisation'}",
        fingerprint=fingerprint(model) if is_network else hashlib.sha256(repr(called).encode()).hexdigest(),
    )
    return Model(encoder, part, reference=_reset(model, how) if is_network else None, answers=answers)


def given_reference(reference: Any, how: Preparation, number: int) -> Model:
    """A reference that the user has. Weights, endpoint and key of the audited encoder never reach it.

    Args:
        reference: as `model_of` takes it, or a pair of a name and the file of its weights; a name gets its published
            normalisation, an address default settings and no key.
        how: images reach the audited encoder; a network or function gets its normalisation.
        number: of the reference, for messages.

    Raises:
        ConfigError, ShapeError: as `model_of`.
    """
    weights: str | os.PathLike[str] | None = None
    if isinstance(reference, tuple) and len(reference) == 2 and isinstance(reference[0], str):
        reference, weights = reference
    own = replace(how, weights=weights, weights_key=None, endpoint={}, key=None)
    if isinstance(reference, str | Encoder):
        own = replace(own, mean=None, std=None)
    return model_of(reference, own, f"references[{number}]")


def tried_out(model: Model, side: int) -> Model:
    """The model, its answers tried out if it is behind an API: others were when they were made.

    Args:
        side: of the images.

    Raises:
        ConfigError: the answer to an image depends on the others of its batch, or the API cannot be asked.
        AnswerError, ShapeError: as `Client.embed`.
    """
    if not isinstance(model.encoder, Endpoint):
        return model
    return replace(model, answers=check_answers(model.encoder, 3, side))


@contextmanager
def evaluating(*models: Any) -> Iterator[None]:
    """Networks are in evaluation mode for the duration of the block, or as it puts them, and then as they were."""
    modes = [(part, part.training) for one in models if isinstance(one, nn.Module) for part in one.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def is_address(model: Any) -> bool:
    """Whether a model is the address of an API."""
    return isinstance(model, str) and model.startswith(("http://", "https://"))


def _reset(network: nn.Module, how: Preparation) -> Encoder | None:
    """The same network with fresh weights; None: it cannot be copied or reset, or does not answer then."""
    try:
        fresh = seeded(digest64(how.seed, "encoder", "fresh"), lambda: reinitialised(network))
        return fresh if isinstance(fresh, Encoder) else _of_code(fresh, how)[0]
    except Exception:  # noqa: BLE001 - copying and resetting is the network's own code
        return None


def reinitialised(network: nn.Module) -> nn.Module:
    """A copy of a network with fresh weights.

    Layers of torch are reset. Parameters that belong to no such layer (class tokens, positions) are drawn from a normal
    distribution with their own standard deviation; constant ones stay. Buffers that no layer resets stay.

    Raises:
        ConfigError: a parameter that is not constant keeps its values.
    """
    copied = copy.deepcopy(network)
    reset: set[int] = set()
    for part in copied.modules():
        start = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if callable(start):
            start()
            reset |= {id(one) for one in part.parameters(recurse=False)}
    with torch.no_grad():
        for name, one in copied.named_parameters():
            before = network.get_parameter(name)
            spread = float(before.float().std()) if before.numel() > 1 else 0.0
            if id(one) not in reset and spread > 0:
                one.copy_(torch.randn_like(one, dtype=torch.float32) * spread)
            if spread > 0 and before.ndim > 1 and torch.equal(one, before):
                raise ConfigError(f"{name} keeps its trained values")
    return copied.eval()


_AS_GIVEN: dict[str, Any] = {"weights": "as given", "layout": "a Python object"}


def device_of(model: Any) -> torch.device:
    """Where an encoder works: a network where its weights are, anything else on a GPU if there is one."""
    if isinstance(model, nn.Module):
        return next((one.device for one in model.parameters()), torch.device("cpu"))
    plain = isinstance(model, str) and not is_address(model)
    return torch.device("cuda" if plain and torch.cuda.is_available() else "cpu")


def _of_code(function: Callable[[torch.Tensor], Any], how: Preparation) -> tuple[Encoder, Answers]:
    mean, std = how.normalisation.get("mean", (0.0,)), how.normalisation.get("std", (1.0,))
    notes: tuple[str, ...] = ()
    if isinstance(function, nn.Module):  # stays where it is, and as it is
        network = function.eval()
        # what it reads: the dtype of its first layer, else of its first parameter
        layers = (part.weight for part in network.modules() if isinstance(part, _ConvNd | nn.Linear))
        floating = (one for one in (*layers, *network.parameters()) if one.is_floating_point())
        dtype = next((one.dtype for one in floating), torch.float32)
        backbone = CodeBackbone(GivenNetwork(network, device_of(network), dtype))
        if dtype != torch.float32:
            notes = (f"images reach it as {str(dtype).removeprefix('torch.')}, in which it computes",)
    else:
        backbone = CodeBackbone(function)
    encoder = Encoder(backbone, {}, channelwise(mean, len(mean)), channelwise(std, len(std))).eval()
    answers = check_answers(encoder, how.channels, how.image_size)
    return encoder, replace(answers, notes=(*notes, *answers.notes))


def _of_name(load: str, how: Preparation, name: str) -> Model:
    kind = load.partition(":")[0]
    if kind not in LOADERS:
        raise ConfigError(f"{name} = {load!r}: give kind:architecture, a kind of {', '.join(LOADERS)}, or an address")
    how.check_used("a named encoder", "weights", "weights_key", "mean", "std", name=name)
    if kind in CODE and not how.trust_code:
        raise ConfigError(f"{name} = {load!r} runs code of others; give trust_code=True if you trust it")
    if how.weights is None and kind != "python" and folder_kind(load) is None:
        given = "weights=FILE" if name == "model" else "the pair (name, file of its weights)"
        raise ConfigError(f"{name} = {load!r} needs weights; give {given}")
    weights, own, side = None if how.weights is None else str(how.weights), how.normalisation, how.image_size
    data = read_weights_of(load, weights, read_local).content
    shape: dict[str, Any] = {"channels": how.channels, "image_size": side, "preprocessing": own}
    found = adopt(load, data, **shape, weights_key=how.weights_key)
    settings: dict[str, Any] = {"load": load}
    if weights is not None and data is not None:
        settings |= {"weights": weights} | ({} if how.weights_key is None else {"weights_key": how.weights_key})
    settings |= {name: list(values) for name, values in own.items()}
    settings |= {"trust_code": True} if kind in CODE else {}
    part = EncoderPart(
        load=load,
        weights=weights or ("of the Hub" if folder_kind(load) else "its own"),
        layout=found.layout,
        preprocessing=found.preprocessing.words(),
        fingerprint=found.fingerprint,
    )
    fresh = untrained(load, found, **shape)
    return Model(found.encoder, part, settings, fresh, found.answers)


def _of_url(url: str, how: Preparation, name: str) -> Model:
    how.check_used("an API, which prepares images itself", "endpoint", "key", name=name)
    parameters = EndpointParameters(url=url, **how.endpoint)
    key, query = secrets_of(parameters, "endpoint", how.key)
    client = Client(parameters, Meter(parameters.limits()), key=key, query=query)
    mark = hashlib.sha256(repr(sorted(parameters.identity().items())).encode()).hexdigest()
    part = EncoderPart(**parameters.words(), fingerprint=mark)
    return Model(Endpoint(client), part, {"endpoint": {"url": url, **how.endpoint}})


@dataclass(frozen=True)
class Reference:
    """A reference encoder.

    Args:
        name: in a config.
        model: the encoder.
        seen: (N,) which of the images it was trained on.
        given: whether the user gave it; else it was made here.
        output: that is read.
        consistency: whether it recognises images; empty: it was not tried out yet.
    """

    name: str
    model: Model
    seen: BoolArray
    given: bool = False
    output: str = ""
    consistency: Mapping[str, Any] = field(default_factory=dict)


def check_enough(images: int) -> None:
    """Raise ConfigError if there are too few images to train references on."""
    if images < FEWEST:
        raise ConfigError(
            f"{images} images are too few to train references on, which takes {FEWEST}; give references=..., or "
            "quick=True for an audit without any"
        )


def make_references(
    images: npt.NDArray[np.uint8],
    hashes: Sequence[str],
    *,
    seed: int,
    nonce: str,
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> list[Reference]:
    """Train the encoders.

    Args:
        images: (N, C, S, S) of both sides.
        hashes: of their pixels.
        seed, nonce: of the audit, by which halves are drawn.
        device: where they are trained.
        progress: called after every epoch.
    """
    settings = reference_settings(images.shape[-1])
    count, told = settings.pop("halves"), {name: settings[name] for name in ("objective", "backbone", "epochs")}
    parameters = PretrainingParameters(**settings | {"optimizer": OptimizerParameters(**settings["optimizer"])})
    made = []
    for index in range(count):
        name = f"{FAMILY}-{index}"
        own = digest64(seed, "encoder", name)
        seen = half_of(digests64((seed, half_purpose(index, nonce)), hashes), index, "both sides")
        half = torch.from_numpy(images[seen])
        order, names = by_content(half)
        half = half[order]
        data = ResidentImages(half, names, batch_size=parameters.batch_size, seed=own, device=device)
        trainer = Pretrainer(data, SimCLRAugmentation(), parameters, seed=own, device=device)
        for _ in range(parameters.epochs):
            trainer.train_epoch()
            progress()
        fresh = audited_encoder(parameters, images.shape[1], images.shape[2]).eval()
        encoder = trainer.encoder().eval()
        part = EncoderPart(**told, train_on="half of candidates and controls, by lot", fingerprint=fingerprint(encoder))
        made.append(Reference(name, Model(encoder, part, reference=fresh), seen))
    return made
