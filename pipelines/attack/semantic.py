"""A check by what reference encoders see in the images: a classifier on their embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mi_core.metrics.delong import auc
from mi_core.records import Estimate
from mi_core.validity.blind import semantic_scores
from mi_core.validity.bursts import find_bursts
from pipelines.data.draw.splits import Splits, in_roles
from pipelines.extract.features import read
from pipelines.files import storage
from pipelines.plan.items import Semantic
from pipelines.run.folder import SeedFolder


def semantic_path(folder: SeedFolder) -> str:
    """The file of the scores of the classifier on embeddings."""
    return f"{folder.path}/validity/semantic.parquet"


def run_references(semantic: Semantic, folder: SeedFolder) -> None:
    """Classify the audited images by what the references of the primary attack see in them."""
    splits = Splits.load(folder.path)
    parts = [read(folder, reading) for reading in semantic.readings]
    others = [set(part.ids.tolist()) for part in parts[1:]]
    ids = [name for name in parts[0].ids.tolist() if all(name in other for other in others)]
    rows = splits.samples(ids)
    embeddings = np.concatenate([part.at(ids).values["embedding"] for part in parts], axis=1)
    member, hashes = in_roles(rows, [semantic.audited[0].name]), [one.hex() for one in rows["sha256"].to_pylist()]
    groups = splits.groups_of(rows)
    scores = semantic_scores(embeddings, member, hashes, seed=folder.seed, groups=groups)
    if groups is None:
        groups = find_bursts(embeddings, member)
    columns = {"id": ids, "member": member, "score": scores} | ({} if groups is None else {"group": groups})
    storage.write_table(semantic_path(folder), pa.table(columns))


def _classified(folder: SeedFolder) -> pa.Table | None:
    """The table of `run_references`; None: there are no references."""
    return storage.read_table(semantic_path(folder)) if storage.exists(semantic_path(folder)) else None


def groups_of(folder: SeedFolder, ids: Sequence[str]) -> npt.NDArray[np.int64] | None:
    """The group or burst of each of some samples; None where there are neither, or not of all of them."""
    table = _classified(folder)
    if table is None or "group" not in table.column_names:
        return None
    group_of = dict(zip(table["id"].to_pylist(), table["group"].to_pylist(), strict=True))
    if not group_of.keys() >= set(ids):
        return None
    return np.array([group_of[name] for name in ids], dtype=np.int64)


def semantic_auc(folder: SeedFolder, ids: Sequence[str]) -> Estimate | None:
    """The AUC of the classifier on embeddings, on some samples; None: there are no references."""
    table = _classified(folder)
    if table is None:
        return None
    table = table.filter(pc.is_in(table["id"], pa.array(ids, table.schema.field("id").type)))
    groups = np.asarray(table["group"]) if "group" in table.column_names else None
    return auc(np.asarray(table["score"]), np.asarray(table["member"]), groups)
