"""The samples of one shard that a pass asks for, found from the roles where the shard is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipelines.data.splits import Splits


@dataclass(frozen=True)
class Selection:
    """Some samples of one shard: those of some roles, or given ones.

    Args:
        folder: of the seed that the roles are drawn in.
        roles, without: roles or parts whose samples are asked for, less the samples of others.
        count: number of samples.
        digest: which samples these are; equal selections of a shard have equal digests.
        given: class by key, None where there is no class; None: the roles tell the samples.
    """

    folder: str
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
        splits = Splits.load(self.folder)
        classes = splits.classes(source, item, self.roles)
        for key in splits.keys(source, item, self.without) if self.without else ():
            classes.pop(key, None)
        return classes

    def bare(self) -> Selection:
        """The selection without the samples that were given: all that a chunk of it needs to know."""
        return replace(self, given=None)
