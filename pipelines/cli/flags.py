"""An audit that is described by flags: the settings of a config from a few answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mi_core.auditing.config_text import OTHER_CONTROL, audit_settings
from pipelines.errors import UserError

_CODE = ("python", "torchscript")
_FOLDERS = ("transformers:", "open_clip:hf-hub:", "timm:hf_hub:", "timm:hf-hub:")  # the Hub has their weights
_SIZE = 224


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
    """

    encoder: str | None = None
    url: str | None = None
    adapter: str | None = None
    api_key_env: str | None = None
    weights: str | None = None
    candidates: str | None = None
    controls: str | None = None
    known: str | None = None
    captions: bool = False
    objective: str | None = None
    size: int | None = None

    @property
    def given(self) -> bool:
        """Whether an encoder is named by a flag."""
        return self.encoder is not None or self.url is not None

    def settings(self) -> dict[str, Any]:
        """The settings of a config.

        Raises:
            UserError: a flag is missing, or two contradict each other.
        """
        if self.encoder is not None and self.url is not None:
            raise UserError("--encoder and --encoder-url are both given; keep the one to audit")
        if not self.given:
            raise UserError("--encoder is missing; give kind:architecture, or --encoder-url for an API")
        for name in ("candidates", "controls"):
            if getattr(self, name) is None:
                raise UserError(f"--{name} is missing; give the folder of the images")
        kind = (self.encoder or "").partition(":")[0]
        target, control = self._encoders(kind)
        captioned, decoding = self._of_publisher()
        sources = {"candidates": self.candidates, "controls": self.controls}
        sources |= {} if self.known is None else {"known": self.known}
        return audit_settings(
            target,
            control,
            {name: _source(str(path)) for name, path in sources.items()},
            objective=self.objective or ("clip" if captioned else "simclr"),
            data=decoding,
            output="projection" if captioned else "backbone",
            views=10,
            seed=0,
            known=self.known is not None,
            captions=self.captions,
        )

    def _of_publisher(self) -> tuple[bool, dict[str, Any]]:
        """Whether the encoder learned from captions, and how images come to it; empty where its name says that."""
        from mi_core.checks import ConfigError
        from mi_core.encoders.builders import folder_preprocessing, of_captions
        from mi_core.encoders.model_folder import folder_kind
        from mi_core.encoders.published import PUBLISHED
        from mi_core.encoders.weight_sources import definition_of
        from pipelines.files.storage import file_or_none

        named = self.encoder or ""
        folder = folder_kind(named)
        try:
            files = definition_of(named, self.weights, file_or_none)
            captioned = of_captions(named, files)
            if self.size is not None:
                return captioned, {"image_size": self.size}
            if folder is not None:
                return captioned, folder_preprocessing(folder, files).decoding()
        except ConfigError as error:
            raise UserError(f"--encoder {named}: {error}") from error
        return captioned, {} if named.partition(":")[0] in PUBLISHED else {"image_size": _SIZE}

    def _encoders(self, kind: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Settings of the encoder and of its control."""
        other = {"load": OTHER_CONTROL, "fresh": True}
        if self.url is not None:
            own = {"url": self.url, "adapter": self.adapter, "api_key_env": self.api_key_env}
            return {"endpoint": {name: value for name, value in own.items() if value is not None}}, other
        named: dict[str, Any] = {"load": self.encoder} | ({"weights": self.weights} if self.weights else {})
        if kind in _CODE:
            return named | {"trust_code": True}, other
        if self.weights is None and not (self.encoder or "").startswith(_FOLDERS):
            raise UserError(f"--weights is missing; give the file of the weights of {self.encoder}")
        return named, named | {"fresh": True}


def _source(path: str) -> dict[str, str]:
    """A source of images: tars and Parquet files by their suffix, anything else a folder."""
    kinds = {"shards": (".tar", ".tar.gz", ".tgz"), "parquet": (".parquet",)}
    kind = next((kind for kind, suffixes in kinds.items() if path.endswith(suffixes)), "imagefolder")
    return {"kind": kind, "path": path}
