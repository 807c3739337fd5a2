"""How numbers are spread over members and non-members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mi_core.records import BoolArray, FloatArray


@dataclass(frozen=True)
class Spread:
    """Numbers of members and of non-members.

    Args:
        values: (N,) float.
        member: (N,) bool.
    """

    values: FloatArray
    member: BoolArray

    @classmethod
    def joined(cls, spreads: Sequence[Spread]) -> Spread:
        """Several as one."""
        values, member = (np.concatenate([getattr(one, name) for one in spreads]) for name in ("values", "member"))
        return cls(values.astype(np.float64), member)

    @property
    def n_member(self) -> int:
        """Members."""
        return int(self.member.sum())

    @property
    def n_nonmember(self) -> int:
        """Non-members."""
        return int((~self.member).sum())

    def in_order(self) -> Iterator[FloatArray]:
        """The values of members, then of non-members, ascending."""
        for side in (self.member, ~self.member):
            yield np.sort(self.values[side])
