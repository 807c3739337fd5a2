"""Where images come from: kinds of sources and their settings."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from mi_core import plugins
from mi_core.checks import check_choice, check_range
from pipelines.config.paths import check_braces, shortened
from pipelines.config.sections.parameters import build
from pipelines.config.sections.section import Section

TORCHVISION = "torchvision:"
NOISE = "noise"
PLUGGED_IN = tuple(plugins.names("sources"))
KINDS = ("digits", NOISE, "imagefolder", "shards", "parquet", *PLUGGED_IN)
SHARDED = ("shards", "parquet")  # kinds whose shards may repeat a key
SETTINGS = (
    {"shard_in_key": SHARDED} | dict.fromkeys(("key", "image", "end_marker"), ("shards",)) | {"columns": ("parquet",)}
)
"""The kinds that a setting of files is for."""
ON_FILES = ("imagefolder", *SHARDED)  # kinds that need a path


class ColumnsConfig(Section):
    """Columns of Parquet files; a column without a name here is found by its usual names."""

    image: str | None = Field(
        default=None, min_length=1, description="bytes of the image: a binary column, or a struct with a field bytes"
    )
    label: str | None = Field(default=None, min_length=1, description="class of the image, a whole number")
    caption: str | None = Field(default=None, min_length=1, description="caption of the image, a text")
    key: str | None = Field(
        default=None,
        min_length=1,
        description="name of the sample, a text or whole number, such as image.path; default: file and row",
    )


class SourceConfig(Section):
    """Where images come from."""

    kind: str = Field(
        description="digits, imagefolder, shards, parquet, noise, torchvision:<Name>, or one that a package brings"
    )
    path: str | tuple[str, ...] | None = Field(
        default=None, description="folder; or tars or Parquet files: paths, {000..009} ranges, globs, URIs"
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="arguments of a torchvision data set, of noise (see NoiseOptions), or of what a package brings",
    )
    key: Literal["first-dot", "last-dot"] = Field(
        default="first-dot", description="where the key ends in a name of a tar; first-dot is WebDataset's rule"
    )
    image: str | None = Field(
        default=None, min_length=1, description="suffix of the image where samples of a tar hold several, such as jpg"
    )
    end_marker: Literal["required", "optional"] = Field(
        default="required", description="optional: tars without end marker are whole (their writer leaves it out)"
    )
    shard_in_key: bool = Field(
        default=False,
        description="keys begin with the name of their tar or Parquet file and a slash; for files with the same keys",
    )
    columns: ColumnsConfig = Field(default=ColumnsConfig(), description="columns of Parquet files")

    @field_validator("kind")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in KINDS and not value.startswith(TORCHVISION):
            raise ValueError(f"kind = {value!r}, allowed: {', '.join(KINDS)}, {TORCHVISION}<Name>")
        if value.startswith(TORCHVISION):
            known_dataset(value.removeprefix(TORCHVISION))
        return value

    @model_validator(mode="after")
    def _has_path(self) -> SourceConfig:
        if self.kind in ON_FILES and not self.path:
            raise ValueError(f"path is missing for a source of kind {self.kind}")
        for pattern in self.patterns:
            check_braces(pattern)
        if self.kind == NOISE:
            noise_options(self)
        elif self.options and not self.kind.startswith(TORCHVISION) and self.kind not in PLUGGED_IN:
            raise ValueError(f"options are for {TORCHVISION}<Name> and {NOISE}, not for {self.kind}")
        for name, kinds in SETTINGS.items():
            if name not in self._defaults and self.kind not in kinds:
                raise ValueError(f"{name} is for {' and '.join(kinds)}, not for {self.kind}")
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave settings of files out at their defaults, so that the hash of a source stays as it was without them."""
        return {name: value for name, value in handler(self).items() if name not in self._defaults}

    @property
    def _defaults(self) -> set[str]:
        """Settings of shards and of Parquet files that have their default."""
        fields = type(self).model_fields
        return {name for name in SETTINGS if getattr(self, name) == fields[name].default}

    @property
    def patterns(self) -> list[str]:
        """The paths as given."""
        return [self.path] if isinstance(self.path, str) else list(self.path or ())

    def describe(self) -> str:
        """The source in words, for the report."""
        kind = "scikit-learn's handwritten digits" if self.kind == "digits" else self.kind
        return f"{kind} {', '.join(self.patterns)}".rstrip()


@dataclass(frozen=True)
class NoiseOptions:
    """Images of random pixels (LpLA, AsiaCCS 2025, section 4.2, as non-members that need no data).

    Args:
        count: of the images.
        size: side in pixels; give data.image_size, or resizing will smooth them.
        distribution: ``uniform`` over 0 to 255, or ``gaussian`` around the middle with a deviation of 64.
    """

    count: int
    size: int
    distribution: str = "uniform"

    def __post_init__(self) -> None:
        check_range("options.count", self.count, 1)
        check_range("options.size", self.size, 1)
        check_choice("options.distribution", self.distribution, ("uniform", "gaussian"))


def noise_options(source: SourceConfig) -> NoiseOptions:
    """The options of a source of random pixels. Raises ValueError: they are wrong."""
    try:
        return build(NoiseOptions, source.options)
    except ValueError as error:
        raise ValueError(f"options of noise: {error}") from error


def known_dataset(name: str) -> str:
    """The name of a data set of torchvision. Raises ValueError if there is none."""
    if name not in _dataset_names():
        raise ValueError(f"torchvision has no data set {shortened(name)}, allowed: {', '.join(_dataset_names())}")
    return name


@lru_cache(maxsize=1)
def _dataset_names() -> tuple[str, ...]:
    """Data sets that torchvision exports, read off its source: importing it takes seconds."""
    (folder,) = importlib.util.find_spec("torchvision").submodule_search_locations  # type: ignore[union-attr,misc]
    for statement in ast.parse((Path(folder) / "datasets" / "__init__.py").read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return tuple(sorted(ast.literal_eval(statement.value)))
    raise RuntimeError("torchvision.datasets lists no __all__")
