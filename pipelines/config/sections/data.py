"""The section ``data`` of a config: sources, decoding, attributes and roles of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mi_core.checks import check_choice
from mi_core.images import Decoder
from pipelines.config.paths import LONGEST, shortened
from pipelines.config.roles import CANARY_ROLE, COINS
from pipelines.config.sections.attributes import AttributeConfig, GroupConfig
from pipelines.config.sections.section import Section
from pipelines.config.sections.sources import SourceConfig
from pipelines.files.digest import digest

_BLEND = 0.5  # of noise in a blended canary


class RoleConfig(Section):
    """The samples of a role: an exact count, a fraction, those of a list, or (none of these) a whole source."""

    source_name: str = Field(alias="from", description="a source, or a drawn role to take a part of")
    count: int | None = Field(default=None, ge=1, description="exact number of samples, by rank of the seeded hash")
    fraction: float | None = Field(default=None, gt=0, le=1, description="share of the source, by threshold")
    classes: tuple[int, ...] | None = Field(default=None, min_length=1, description="samples of these classes only")
    keys: str | None = Field(
        default=None,
        min_length=1,
        description="file with the keys of the samples: .txt, .csv, .parquet, or uids (.npy)",
    )
    key_column: str | None = Field(
        default=None, min_length=1, description="column of the keys in a CSV or Parquet file"
    )
    kind: Literal["plain", "mislabelled", "blended"] | None = Field(
        default=None,
        description="of the role canary: plain samples (default); mislabelled: each with a wrong class, drawn by a "
        "hash; blended: each mixed with noise of its own",
    )
    blend: float | None = Field(
        default=None, gt=0, le=1, description="share of noise in a blended canary; default: 0.5"
    )

    @model_validator(mode="after")
    def _one_size(self) -> RoleConfig:
        sizes = [name for name in ("count", "fraction", "keys") if getattr(self, name) is not None]
        if len(sizes) > 1:
            raise ValueError(f"{' and '.join(sizes)} are both given; keep one")
        if self.key_column is not None and not self.is_listed:
            raise ValueError("key_column is given without keys, the file that has the column")
        if self.blend is not None and self.kind != "blended":
            raise ValueError(f"blend = {self.blend:g} is given, but only canaries of kind blended have noise")
        if self.classes is not None and not self.is_drawn:
            raise ValueError("classes are chosen for a drawn role; give its count or fraction")
        return self

    @property
    def is_drawn(self) -> bool:
        """Tell whether the role is drawn; otherwise the user gives its samples."""
        return self.count is not None or self.fraction is not None

    @property
    def noise(self) -> float | None:
        """The share of noise that its images are mixed with; None: they are left as they are."""
        return (self.blend or _BLEND) if self.kind == "blended" else None

    @property
    def is_listed(self) -> bool:
        """Tell whether a list of keys gives the role."""
        return self.keys is not None

    @property
    def whole(self) -> bool:
        """Tell whether the role is a whole source."""
        return not self.is_drawn and not self.is_listed


_COIN = RoleConfig(source_name=CANARY_ROLE, fraction=0.5)


class CaptionWords(Section):
    """Words for the captions of one class, where images have no captions of their own."""

    name: str = Field(min_length=1)
    attributes: tuple[str, ...] = Field(min_length=2)


class DataConfig(Section):
    """Sources, decoding, attributes and roles of the samples."""

    sources: dict[str, SourceConfig] = Field(min_length=1)
    image_size: int = Field(
        ge=4, le=4096, description="side of the decoded image in pixels; default: the loaded encoder's own"
    )
    channels: int = Field(default=3, description="1 (grey) or 3")
    interpolation: str | None = Field(default=None, description="bilinear (default) or bicubic, antialiased")
    fit: str | None = Field(
        default=None,
        description="centre (default): the centre square in one step; shortest: shorter side to resize, then cut; "
        "squash: both sides to resize, then cut",
    )
    resize: int | None = Field(default=None, description="side before the cut; default: image_size")
    decode: Literal["full", "scaled"] = Field(
        default="full",
        description="full: all pixels; scaled: large JPEGs are shrunk while they are decoded, to twice the wanted size "
        "at least",
    )
    orientation: Literal["turned", "stored"] = Field(
        default="turned",
        description="turned: upright, as EXIF data ask; stored: as the pixels stand in the file, for an encoder whose "
        "training did not turn images",
    )
    depth: Literal[8, 10, 12, 14, 16] = Field(default=16, description="bits that grey values of 16-bit files use")
    roles: dict[str, RoleConfig] = Field(min_length=1)
    captions: dict[int, CaptionWords] = Field(
        default_factory=dict, description="name and attributes per class, for images without captions of their own"
    )
    attributes: dict[str, AttributeConfig] = Field(
        default_factory=dict, description="properties of samples with a few values each"
    )
    group_by: GroupConfig | None = Field(
        default=None, description="group of a sample (person, album, burst): json:<field>, or part of the key"
    )
    shards: float | None = Field(
        default=None,
        gt=0,
        description="shards of every source that are read, drawn by a hash of their names: a number from 2, or a "
        "fraction below 1; default: all",
    )
    shuffled: bool = Field(
        default=False,
        description="samples stand in shards at random; if not, a shard counts as one where `shards` are drawn",
    )
    near_duplicates: NearDuplicatesConfig | None = Field(
        default=None, description="look for near-copies and keep one of each; {} for the defaults"
    )
    label: str | None = Field(default=None, description="attribute that classifiers learn; default: the class")
    max_rejected: float = Field(default=0.01, ge=0, le=1, description="largest share of unusable samples")

    @field_validator("roles", mode="before")
    @classmethod
    def _with_coins(cls, value: Any) -> Any:
        """The role of canaries with its halves; a config may have been spelled out before."""
        if not isinstance(value, dict) or CANARY_ROLE not in value:
            return value
        return {name: {"from": CANARY_ROLE, "fraction": 0.5} for name in COINS} | value

    @field_validator("shards")
    @classmethod
    def _whole_or_fraction(cls, value: float | None) -> float | None:
        if value is not None and value >= 1 and (value < 2 or value % 1):
            raise ValueError(f"shards = {value:g}, allowed: a number from 2, or a fraction below 1")
        return value

    @model_validator(mode="after")
    def _check(self) -> DataConfig:
        self.decoder()
        for name in (*self.sources, *self.roles, *self.attributes):
            if not name.replace("-", "").replace("_", "").isalnum() or len(name.encode()) > LONGEST:
                raise ValueError(
                    f"the name {shortened(name)} may hold letters, digits, - and _ only, {LONGEST} bytes at most"
                )
        if self.label is not None and self.label not in self.attributes:
            raise ValueError(
                f"label = {self.label!r}, allowed: {', '.join(self.attributes) or 'none without attributes'}"
            )
        for name, attribute in self.attributes.items():
            for source in attribute.sources or ():
                check_choice(f"attributes.{name}.sources", source, self.sources)
        both = [name for name in self.roles if name in self.sources]
        if both:
            raise ValueError(f"{both[0]!r} names a source and a role; rename one")
        parts: dict[str, dict[str, RoleConfig]] = {}
        for name, role in self.roles.items():
            place, origin = f"roles.{name}", role.source_name
            check_choice(f"{place}.from", origin, [*self.sources, *self.roles])
            if origin in self.roles and self.roles[origin].source_name not in self.sources:
                raise ValueError(f"{place}.from = {origin!r} is itself a part; take a part of a role")
            if origin in self.roles and not role.is_drawn:
                keys = ", and keys for roles of a source" if role.is_listed else ""
                raise ValueError(f"{place} is a part of {origin}; give its count or fraction{keys}")
            parts.setdefault(origin, {})[name] = role
        self._check_canaries()
        for origin, roles in parts.items():
            self._check_parts(origin, roles)
        return self

    def _check_parts(self, origin: str, parts: Mapping[str, RoleConfig]) -> None:
        """Raise ValueError if roles do not fit into the source or role that they are parts of."""
        names, roles = ", ".join(parts), list(parts.values())
        if any(role.whole for role in roles) and len(roles) > 1:
            raise ValueError(f"roles {names} share {origin}, so each needs a count or a fraction, or a list of keys")
        if {role.count is None for role in roles if role.is_drawn} == {True, False}:
            raise ValueError(f"roles {names} of {origin} mix count and fraction; use one of them")
        share = sum(role.fraction or 0 for role in roles)
        if share > 1 + 1e-9:
            raise ValueError(f"roles {names} ask for {share:g} of {origin}, more than 1")
        count = sum(role.count or 0 for role in roles)
        there = self.roles[origin].count if origin in self.roles else None
        if there is not None and count > there:
            raise ValueError(f"roles {names} ask for {count} of the {there} samples of {origin}")

    def _check_canaries(self) -> None:
        """Raise ValueError if canaries are not a drawn role of a source, each with a coin of its own."""
        role = self.roles.get(CANARY_ROLE)
        kinds = [name for name, other in self.roles.items() if other.kind is not None and name != CANARY_ROLE]
        if kinds:
            raise ValueError(f"roles.{kinds[0]}.kind is given, but only the role {CANARY_ROLE} has a kind")
        given = [name for name in COINS if name in self.roles and self.roles[name] != _COIN]
        if given or (role is None and any(name in self.roles for name in COINS)):
            name = given[0] if given else COINS[0]
            raise ValueError(f"roles.{name} is drawn by fair coins from the role {CANARY_ROLE}; give that role alone")
        if role is None:
            return
        if role.count is None or role.source_name not in self.sources:
            raise ValueError(f"roles.{CANARY_ROLE} is drawn from a source; give its count")
        if self.group_by is not None:
            raise ValueError(
                f"roles.{CANARY_ROLE} with data.group_by: every canary needs a coin of its own, but a group goes into "
                "one role; remove group_by"
            )

    @property
    def scan_digest(self) -> str:
        """Hash of the settings of a scan; roles do not count."""
        parts = {"sources", "attributes", "group_by", "label"}
        parts |= {"shards"} if self.shards is not None else set()
        own = self.model_dump(mode="json", include=parts)
        return digest(own, self.decoder().digest(), self.near_duplicates is not None)

    def attributes_in(self, source: str) -> dict[str, AttributeConfig]:
        """The attributes that the samples of a source have."""
        return {name: one for name, one in self.attributes.items() if one.sources is None or source in one.sources}

    def meaning_of(self, *names: str | None) -> dict[str, Any]:
        """Definitions of some attributes as plain values, by name; without None."""
        return {name: self.attributes[name].model_dump(mode="json") for name in names if name is not None}

    @property
    def by_shard(self) -> bool:
        """Tell whether shards are drawn whose samples may be alike."""
        return self.shards is not None and not self.shuffled and self.group_by is None

    @property
    def grouped(self) -> bool:
        """Tell whether some samples count as one in intervals and tests."""
        return self.group_by is not None or self.by_shard

    def decoder(self) -> Decoder:
        """The one decoder of the run."""
        own = self.model_dump(include={one.name for one in fields(Decoder)})
        return Decoder(**own, scaled=self.decode == "scaled" or None)


class NearDuplicatesConfig(Section):
    """Near-copies: images with close perceptual hashes and similar detail.

    Re-compressed, resized and brightened copies count. Mirrored copies, cropped ones (5 % a side is enough) and those
    with a caption bar mostly do not.
    """

    distance: int | None = Field(
        default=None,
        ge=0,
        le=8,
        description="bits of 64 in which the perceptual hashes may differ; default: 8, or 4 above a million images",
    )
    least: float = Field(default=0.92, ge=-1, le=1, description="least correlation of 8 x 8 grey levels")
