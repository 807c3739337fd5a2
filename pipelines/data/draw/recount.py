"""The samples of every role counted anew, which shows whether roles still stand for the images they were drawn from."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pipelines.data.draw.splits import Splits
from pipelines.data.draw.sums import SUMS, Sums, sums_of


def recounted(splits: Splits) -> dict[str, dict[str, Any]]:
    """Number (``n``) and digest (``sha256``) of every role and part, from the samples of every shard.

    Raises:
        UserError: the samples of a shard are gone or changed, as `Splits.shard`.
    """
    fresh = splits.at(splits.sums.shards)  # it remembers no shard that was read before
    shards = [sums_of(fresh.shard(*place), *place) for place in splits.sums.shards]
    sums = Sums(pa.concat_tables([SUMS.empty_table(), *shards]))
    rows = {role: sums.rows([role]) for role in splits.roles}
    return {role: {"n": sums.count(mine), "sha256": sums.digest(mine)} for role, mine in rows.items()}
