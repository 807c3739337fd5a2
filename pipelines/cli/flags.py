"""An audit that is described by flags: the settings of a config from a few answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, signature
from typing import Any, get_type_hints

from mi_core.auditing.config_text import FAMILY, audit_settings, reference_settings
from pipelines.cli.options import (
    Adapter,
    ApiKeyEnv,
    Candidates,
    Captions,
    Controls,
    Encoder,
    EncoderUrl,
    Known,
    Nonce,
    Objective,
    Quick,
    Reference,
    ReferenceWeights,
    Size,
    Weights,
)
from pipelines.errors import UserError

_CODE = ("python", "torchscript")
_WITHOUT_FILE = ("python",)
_FOLDERS = ("transformers:", "open_clip:hf-hub:", "timm:hf_hub:", "timm:hf-hub:")  # the Hub has their weights


@dataclass(frozen=True)
class Flags:
    """The answers that describe an audit.

    Args:
        encoder: kind:architecture; None: the encoder is behind an API.
        url: of the API.
        adapter: shape of the API's requests and answers.
        api_key_env: name of the environment variable with the API's key.
        weights: file or folder of the weights; a model of the Hub needs none.
        candidates, controls, known: folders of images, or patterns of shards (``.tar``, ``.parquet``).
        captions: whether images have captions.
        objective: pre-training framework whose views the queries imitate; None: ``clip`` for CLIP and
            SigLIP, else ``simclr``.
        size: side of the images; None: the published one, else 224.
        references: encoders that saw neither group, kind:architecture; None: small ones are trained here.
        reference_weights: their weights, in the same order, as far as they need any.
        quick: no references.
        nonce: of the queries; None: drawn when the audit starts.
    """

    encoder: Encoder = None
    url: EncoderUrl = None
    adapter: Adapter = None
    api_key_env: ApiKeyEnv = None
    weights: Weights = None
    candidates: Candidates = None
    controls: Controls = None
    known: Known = None
    captions: Captions = False
    objective: Objective = None
    size: Size = None
    references: Reference = None
    reference_weights: ReferenceWeights = None
    quick: Quick = False
    nonce: Nonce = None

    @property
    def names_encoder(self) -> bool:
        """Tell whether an encoder is named by a flag."""
        return self.encoder is not None or self.url is not None

    def settings(self) -> dict[str, Any]:
        """The settings of a config.

        Raises:
            UserError: a flag is missing, or two contradict each other.
        """
        if self.encoder is not None and self.url is not None:
            raise UserError("--encoder and --encoder-url are both given; keep the one to audit")
        if not self.names_encoder:
            raise UserError("--encoder is missing; give kind:architecture, or --encoder-url for an API")
        for name in ("candidates", "controls"):
            if getattr(self, name) is None:
                raise UserError(f"--{name} is missing; give the folder of the images")
        kind = (self.encoder or "").partition(":")[0]
        target = self._encoder(kind)
        captioned, decoding = self._published_decoding()
        sources = {"candidates": self.candidates, "controls": self.controls}
        sources |= {} if self.known is None else {"known": self.known}
        return audit_settings(
            target,
            self._references(decoding.get("image_size")),
            {name: _source(str(path)) for name, path in sources.items()},
            objective=self.objective or ("clip" if captioned else "simclr"),
            data=decoding,
            output="projection" if captioned else "backbone",
            views=10,
            nonce=self.nonce,
            seed=0,
            known=self.known is not None,
            captions=self.captions,
        )

    def check_files(self) -> None:
        """Raise UserError if a file of weights is not there; it can be seen before anything is loaded."""
        from pipelines.files.storage import is_missing

        for flag, paths in (("--weights", [self.weights]), ("--reference-weights", self.reference_weights or [])):
            for path in paths:
                if path is not None and is_missing(path):
                    raise UserError(f"{flag} {path} is no file; give that of the encoder's weights")

    def _published_decoding(self) -> tuple[bool, dict[str, Any]]:
        """Tell whether the encoder learned from captions, and how images come to it; empty where its name says that."""
        from mi_core.adoption.builders import usual_settings
        from mi_core.checks import ConfigError
        from pipelines.files.storage import file_or_none

        try:
            return usual_settings(self.encoder or "", self.weights, self.size, file_or_none)
        except ConfigError as error:
            raise UserError(f"--encoder {self.encoder}: {error}") from error

    def _encoder(self, kind: str) -> Mapping[str, Any]:
        """Settings of the encoder."""
        if self.url is not None:
            own = {"url": self.url, "adapter": self.adapter, "api_key_env": self.api_key_env}
            return {"endpoint": {name: value for name, value in own.items() if value is not None}}
        return _loaded(self.encoder or "", self.weights, "--weights", self.encoder or "")

    def _references(self, side: int | None) -> dict[str, Mapping[str, Any]]:
        """Settings of the references: those given, or a family that is trained here on images of that side."""
        if self.quick:
            if self.references:
                raise UserError("--quick leaves references out, but --reference is given; keep one of the two")
            return {}
        if not self.references:
            if self.reference_weights:
                raise UserError("--reference-weights is given without --reference; name the encoder that they are of")
            return {FAMILY: reference_settings(side)}
        weights = list(self.reference_weights or ())
        found: dict[str, Mapping[str, Any]] = {}
        for number, one in enumerate(self.references):
            needs = one.partition(":")[0] not in _WITHOUT_FILE and not one.startswith(_FOLDERS)
            own = weights.pop(0) if needs and weights else None
            found[f"{FAMILY}-{number}"] = _loaded(one, own, "--reference-weights", one)
        if weights:
            raise UserError(f"--reference-weights {weights[0]} belongs to no --reference; give one for each")
        return found


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has the fields of `Flags` as options, in place of its parameter ``flags``."""
    hints = get_type_hints(Flags, include_extras=True)
    options = [
        Parameter(one.name, Parameter.POSITIONAL_OR_KEYWORD, default=one.default, annotation=hints[one.name])
        for one in fields(Flags)
    ]

    @wraps(command)
    def wrapped(**given: Any) -> None:
        described = {one.name: given.pop(one.name) for one in options}
        command(flags=Flags(**described), **given)

    own = signature(command, eval_str=True)
    shown = [part for one in own.parameters.values() for part in (options if one.name == "flags" else [one])]
    wrapped.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in shown}
    return wrapped


def _loaded(named: str, weights: str | None, flag: str, of: str) -> dict[str, Any]:
    """Settings of an encoder by its name and the file of its weights."""
    own: dict[str, Any] = {"load": named} | ({"weights": weights} if weights else {})
    if named.partition(":")[0] in _CODE:
        return own | {"trust_code": True}
    if weights is None and not named.startswith(_FOLDERS):
        raise UserError(f"{flag} is missing; give the file of the weights of {of}")
    return own


def _source(path: str) -> dict[str, str]:
    """A source of images: tars and Parquet files by their suffix, anything else a folder."""
    kinds = {"shards": (".tar", ".tar.gz", ".tgz"), "parquet": (".parquet",)}
    kind = next((kind for kind, suffixes in kinds.items() if path.endswith(suffixes)), "imagefolder")
    return {"kind": kind, "path": path}
