"""What tests of attacks with a bank share: anchors in a config, the bank of a run, its views, and stored features."""

from __future__ import annotations

from typing import Any

import torch

from pipelines.config.run_config import RunConfig
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.extract.division.passes import recorded_passes
from pipelines.files import storage
from pipelines.run.folder import SeedFolder
from tests.conftest import small_config


def with_anchors(*attacks: dict[str, Any]) -> dict[str, Any]:
    """The small config with some attacks, and 12 anchors of a source of their own: other roles stay the same."""
    raw = small_config(attacks=list(attacks))
    raw["data"]["sources"]["noise"] = {"kind": "noise", "options": {"count": 50, "size": 8}}
    raw["data"]["roles"]["anchor"] = {"from": "noise", "count": 12}
    return raw


def bank_of_ten(config: RunConfig, splits: Splits) -> tuple[torch.Tensor, list[str]]:
    """Pixels (10, C, S, S) uint8 and names of the anchors that make a bank of 10."""
    anchors, first = load_images(config.data, splits, ["anchor"]), splits.first(["anchor"], 10, 0)
    row_of = {name: row for row, name in enumerate(anchors.ids)}
    return torch.from_numpy(anchors.images[[row_of[name] for name in first]]), first


def stored_column(folder: SeedFolder, column: str, epoch: int = 3) -> dict[str, Any]:
    """The stored features of the target at an epoch, by key."""
    records = [record for record in recorded_passes(folder.store) if record.content["encoder"] == "target"]
    paths = [path for record in records for file in record.files for path in file.paths(record.folder, epoch)]
    tables = [storage.read_table(path) for path in paths if storage.exists(path)]
    return {
        key: value
        for table in tables
        if column in table.column_names
        for key, value in zip(table["key"].to_pylist(), table[column].to_pylist(), strict=True)
    }
