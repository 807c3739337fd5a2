"""The samples of one shard that a pass asks for, found from the roles where the shard is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mi_core.images import Decoder
from pipelines.data.draw.images import Blend, blend_of
from pipelines.data.draw.splits import Splits
from pipelines.data.read.samples import Sample
from pipelines.files.digest import digest


@dataclass(frozen=True)
class Selection:
    """Some samples of one shard: those of some roles, or given ones.

    Args:
        folder: of the seed that the roles are drawn in; empty where none are.
        drawn: when they were drawn, as `storage.stamp` tells it.
        roles, without: roles or parts whose samples are asked for, less the samples of others.
        count: number of samples.
        digest: which samples these are; equal selections of a shard have equal digests.
        given: class by key, None where there is no class; None: the roles tell the samples.
    """

    folder: str
    drawn: str
    roles: tuple[str, ...]
    without: tuple[str, ...]
    count: int
    digest: str
    given: Mapping[str, int | None] | None = None

    def classes(self, source: str, item: str) -> Mapping[str, int | None]:
        """The samples: key to class, None where there is none.

        Raises:
            UserError: the shard was read again since the roles were drawn, and changed.
        """
        if self.given is not None:
            return self.given
        splits = _splits(self.folder, self.drawn)
        classes = splits.classes(source, item, self.roles)
        for key in splits.keys(source, item, self.without) if self.without else ():
            classes.pop(key, None)
        return classes

    def blend(self, source: str, item: str, decoder: Decoder) -> Blend:
        """The change of the samples' images before they are decoded: none where no roles were drawn."""
        return blend_of(_splits(self.folder, self.drawn), source, item, decoder) if self.folder else _as_it_is

    @classmethod
    def given_as(cls, classes: Mapping[str, int | None], folder: str = "", drawn: str = "") -> Selection:
        """The selection of given samples; ``folder`` and ``drawn`` where they have roles."""
        return cls(folder, drawn, (), (), len(classes), digest(sorted(classes)), classes)

    def bare(self) -> Selection:
        """The selection without the samples that were given: all that a chunk of it needs to know."""
        return replace(self, given=None)


def _as_it_is(sample: Sample) -> Sample:
    return sample


@lru_cache(maxsize=4)
def _splits(folder: str, _drawn: str) -> Splits:
    """The splits of a folder, looked up once per process and not once per shard."""
    return Splits.load(folder)
