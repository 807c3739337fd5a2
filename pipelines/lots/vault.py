"""The files of the owner of a lot.

    LOT/
      published/            what may be shown: names, bytes and metadata as they were
      commitments.txt       a line for every release and question; to be posted, time-stamped or mailed
      header-001.json       what its commitment is the digest of, for those who claim together
      claims/ID/            statements of claims, to be handed over
      vault/                secret until a claim
        release-001/
          header.json       what the commitment is the digest of
          secret.json       salt, and the key that blinds the leaves
          source.json       how its images are read
          images/PART.parquet   name, pixels and unit of every image, part by part as they were read
          units.parquet     the units by number: pixels, stratum
          draw.json         the beacon, and when it was drawn
          held-back/        the images that are not published
          done/PART.json    parts that are published
        claims/ID/          what encoders were asked (registered.json), and what they answered
      stamps/               time stamps (RFC 3161) of numbers in commitments.txt, if the owner has some

A *part* is a shard, or a slice of a folder. Releases are numbered; a later one leaves out images of earlier ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.checks import ConfigError
from mi_core.lots.commitment import Header, Link, Question, Unit, blind_of, text_digest
from mi_core.lots.draw import Draw, Drawn, asking_order, draw, joined_draws
from mi_core.lots.merkle import root_of
from mi_core.provenance import now
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.columns import DESCRIPTOR, PHASH
from pipelines.data.read.samples import Portion
from pipelines.data.read.sources import Source
from pipelines.errors import UserError
from pipelines.files import storage

COMMITMENTS, PUBLISHED, VAULT = "commitments.txt", "published", "vault"
CLAIMS, STAMPS = "claims", "stamps"
REGISTERED = "registered.json"
_TEXT, _TEXTS = pa.string(), pa.list_(pa.string())
IMAGES = pa.schema(
    {
        "name": _TEXT,
        "sha256": _TEXT,
        "file": _TEXT,
        PHASH: pa.uint64(),
        DESCRIPTOR: pa.binary(),
        "captions": _TEXTS,
        "reason": _TEXT,
    }
)
"""Of a part: names; SHA-256 of the pixels and digest of the bytes as they were given; marks by which near-copies are
found; all captions or none; and why an image is not in the lot, or an
empty text."""
UNITS = pa.schema({"sha256": _TEXT, "stratum": pa.int64(), "captions": _TEXTS})
"""Of the units by number; captions as texts."""


@dataclass(frozen=True)
class Lot:
    """A lot with all its releases.

    Args:
        path: its folder, absolute.
    """

    path: str

    @classmethod
    def at(cls, path: str) -> Lot:
        """The lot in a folder, or in the folder around a vault.

        Raises:
            UserError: there is none.
        """
        place = storage.absolute(path)
        place = place.removesuffix(f"/{VAULT}") if not storage.exists(f"{place}/{VAULT}") else place
        cls(place).check_vault()
        if not storage.exists(f"{place}/{VAULT}"):
            raise UserError(f"{path} holds no lot; make one with encoder-audit lot IMAGES --out {path}")
        return cls(place)

    def check_vault(self) -> None:
        """Raise UserError if there was a lot here and its vault is gone."""
        left = [name for name in (COMMITMENTS, PUBLISHED) if storage.exists(f"{self.path}/{name}")]
        if left and not storage.exists(f"{self.path}/{VAULT}"):
            raise UserError(
                f"{self.path}/{VAULT} is gone, though {left[0]} is there: put the vault back from your backup; for "
                "other images choose another --out"
            )

    @property
    def claims(self) -> str:
        """The folder of the statements of claims, to be handed over."""
        return f"{self.path}/{CLAIMS}"

    @property
    def asked(self) -> str:
        """The folder of the questions and their answers, in the vault."""
        return f"{self.path}/{VAULT}/{CLAIMS}"

    @property
    def published(self) -> str:
        """The folder of what is published."""
        return f"{self.path}/{PUBLISHED}"

    def releases(self) -> list[Release]:
        """All releases, the first one first; the last may not be committed or drawn."""
        numbered = (Release(self, number) for number in count(1))
        return list(takewhile(lambda release: storage.exists(release.path), numbered))

    def chain(self) -> list[Link]:
        """The headers and questions in their order.

        Raises:
            UserError: a link is missing, altered, or one of two that follow the same one.
        """
        links: list[Link] = [release.header for release in self.releases() if release.is_committed]
        for path in storage.list_files(self.asked):
            if path.endswith(f"/{REGISTERED}"):
                try:
                    links.append(Question.from_json(storage.read_json(path)))
                except (ConfigError, ValueError) as error:
                    raise UserError(f"{path}: {error}") from error
        following = {link.previous: link for link in links}
        found: list[Link] = []
        while (link := following.get(found[-1].commitment if found else "")) is not None:
            found.append(link)
        if len(found) < len(links):
            raise UserError(
                f"{self.path}/{VAULT} holds {len(links)} releases and questions, of which {len(found)} follow each "
                "other; others are missing or altered: put them back from your backup"
            )
        return found

    def write_down(self, what: str, commitment: str, decided_by: str) -> None:
        """Add the line of a link to commitments.txt, unless it stands there."""
        path = f"{self.path}/{COMMITMENTS}"
        told = (storage.file_or_none(path) or b"").decode()
        if commitment not in told:
            line = f"{what}  {now()}  {commitment}  beacon: {decided_by or 'none'}\n"
            storage.write_atomic(path, (told + line).encode())

    def new_release(self) -> Release:
        """The release that is being made, or the next one."""
        made = self.releases()
        return made[-1] if made and not made[-1].is_written else Release(self, len(made) + 1)


@dataclass(frozen=True)
class Release:
    """One release of a lot, whose number counts from 1."""

    lot: Lot
    number: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Only its place goes to another process, not what was read of it."""
        return release_at, (self.lot.path, self.number)

    @property
    def path(self) -> str:
        """Its folder in the vault."""
        return f"{self.lot.path}/{VAULT}/release-{self.number:03d}"

    @property
    def held_back(self) -> str:
        """The folder of the images that are not published."""
        return f"{self.path}/held-back"

    @cached_property
    def earlier(self) -> set[str]:
        """The pixels of all images of the releases before this one."""
        return set(
            chain.from_iterable(other.units["sha256"].to_pylist() for other in self.lot.releases()[: self.number - 1])
        )

    @property
    def is_committed(self) -> bool:
        """Tell whether its commitment is made."""
        return storage.exists(f"{self.path}/header.json")

    @property
    def is_drawn(self) -> bool:
        """Tell whether its coins are drawn."""
        return storage.exists(f"{self.path}/draw.json")

    @property
    def is_written(self) -> bool:
        """Tell whether all of it is published or held back."""
        parts = [storage.list_files(f"{self.path}/{name}") for name in ("images", "done")]
        return self.is_drawn and len(parts[0]) == len(parts[1])

    @cached_property
    def header(self) -> Header:
        """Raises UserError: it is not committed, or its header is damaged."""
        path = f"{self.path}/header.json"
        try:
            return Header.from_json(storage.read_json(path))
        except FileNotFoundError as error:
            raise UserError(f"{path} is missing; run encoder-audit lot commit again") from error
        except ConfigError as error:
            raise UserError(f"{path}: {error}") from error

    @cached_property
    def secret(self) -> dict[str, str]:
        """``salt`` and ``key``; drawn from the operating system when they are first asked for."""
        path = f"{self.path}/secret.json"
        if not storage.exists(path):
            storage.write_json(path, {"salt": secrets.token_hex(32), "key": secrets.token_hex(32)})
            if not storage.is_uri(path):
                Path(path).chmod(0o600)
        return dict(storage.read_json(path))

    @cached_property
    def source(self) -> SourceConfig:
        """How its images are read."""
        return SourceConfig(**storage.read_json(f"{self.path}/source.json"))

    @cached_property
    def drawing(self) -> dict[str, Any]:
        """``beacon``, its value or an empty text, and ``drawn``, the time. Raises UserError: it is not drawn."""
        path = f"{self.path}/draw.json"
        if not storage.exists(path):
            raise UserError(f"{self.lot.path}: release {self.number} is not drawn; run encoder-audit lot draw")
        return dict(storage.read_json(path))

    @cached_property
    def draw(self) -> Draw:
        """How its coins fell."""
        return draw(self.header.design, self.secret["salt"], self.drawing["beacon"])

    @cached_property
    def units(self) -> pa.Table:
        """The units by number: a table of `UNITS`, with the names of the strata in its metadata."""
        return storage.read_table(f"{self.path}/units.parquet")

    @cached_property
    def digests(self) -> pa.Array:
        """The pixels (SHA-256) of the units by number."""
        return self.units["sha256"].combine_chunks()

    def numbers(self, images: pa.Table) -> npt.NDArray[np.int32]:
        """(N,) the units of some images, by their pixels; -1: they are in none."""
        return np.asarray(pc.fill_null(pc.index_in(images["sha256"], value_set=self.digests), -1))

    @property
    def strata(self) -> tuple[str, ...]:
        """The names of the strata."""
        return tuple((self.units.schema.metadata or {}).get(b"strata", b"").decode().split("\n"))

    def parts(self) -> list[str]:
        """The names of its parts."""
        paths = storage.list_files(f"{self.path}/images")
        return sorted(path.rpartition("/")[2].removesuffix(".parquet") for path in paths)

    def images(self, part: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The images of a part: a table of `IMAGES`, or some columns of it."""
        return storage.read_table(f"{self.path}/images/{part}.parquet", columns)

    def pictures(self, part: str, held: Mapping[str, bool]) -> Iterator[tuple[str, bytes]]:
        """The images of a part that are there, names and bytes; ``held``: by name, whether each is held back."""
        shown = [key for key, is_held in held.items() if not is_held]
        back = [key for key, is_held in held.items() if is_held]
        for folder, keys in ((self.lot.published, shown), (self.held_back, back)):
            if self.source.kind == "imagefolder":
                for key in sorted(keys):
                    data = storage.file_or_none(f"{folder}/{key}")
                    if data is not None:
                        yield key, data
            elif keys and storage.exists(path := f"{folder}/{part}.tar"):
                for sample in Source(self.source).read(Portion(part, path=path), set(keys)):
                    yield sample.key, sample.image

    def expected_files(self) -> Iterator[tuple[str, list[str]]]:
        """Its folders with the files of its units that stand in each."""
        held_back = self.draw.held_back
        for folder, is_held in ((self.lot.published, False), (self.held_back, True)):
            names: list[str] = []
            for part in self.parts():
                table = self.images(part, ["name", "sha256"])
                units = self.numbers(table)
                mine = (units >= 0) & (held_back[units] == is_held)
                if self.source.kind == "imagefolder":
                    names += table["name"].filter(pa.array(mine)).to_pylist()
                elif mine.any():
                    names.append(f"{part}.tar")
            yield folder, names

    def leaves(self) -> list[bytes]:
        """The digests of the leaves, by number of the unit."""
        return [unit.leaf(self.blind(number)) for number, unit in enumerate(contents_of(self.units))]

    def blind(self, number: int) -> bytes:
        """The blinding number of a leaf."""
        return blind_of(self.secret["key"], number)

    def root(self) -> str:
        """The Merkle root over the leaves."""
        return root_of(self.leaves()).hex()


def contents_of(units: pa.Table) -> Iterator[Unit]:
    """The contents that the leaves of some units bind, in their order."""
    for batch in units.select(["sha256", "captions"]).to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield Unit(row["sha256"], tuple(map(text_digest, row["captions"])))


@lru_cache(maxsize=4)
def release_at(path: str, number: int) -> Release:
    """A release, with what was read of it, once per process."""
    return Release(Lot(path), number)


def drawn_of(releases: Sequence[Release], *, captions: bool = True) -> Drawn:
    """The coins of some releases together; those of captions only where the encoder is asked about them."""
    designs = [release.header.design for release in releases]
    albums, draws = [release.strata for release in releases], [release.draw for release in releases]
    return joined_draws(designs, albums, draws, captions=captions)


def order_of(releases: Sequence[Release]) -> npt.NDArray[np.int64]:
    """(N,) numbers of the units of some releases in the order of asking."""
    return asking_order([one.header.commitment for one in releases], [len(one.units) for one in releases])
