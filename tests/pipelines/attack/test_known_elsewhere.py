"""Known non-members that are no part of the audited images: they too tell how scores follow those on references."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipelines.data.draw.splits import Splits
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from tests.conftest import small_config
from tests.pipelines import staged

pytestmark = pytest.mark.ray


def test_scores_are_calibrated_by_a_role_of_its_own(local_ray: None, tmp_path: Path) -> None:
    raw = small_config()
    given = {name: {"from": "digits", "count": 60} for name in ("candidate", "control")}
    raw["data"]["roles"] = given | {"known-nonmember": {"from": "digits", "count": 40}}
    fresh = {"load": "checkpoint:conv4", "fresh": True, "mean": [0.5], "std": [0.5]}
    raw["encoders"] = {"target": fresh, "shadow": fresh}
    raw["queries"] |= {"outputs": ["backbone"]}
    raw["attacks"] = [{"attack": "mean-cosine", "reference": "nonmembers"}]
    raw["validity"] = {"references": ["shadow"]}
    staged.judge(parse(raw, "x"), tmp_path / "run")
    place = RunFolder(str(tmp_path / "run")).seed(0)
    paths = storage.list_files(f"{place.path}/attacks")
    (table,) = [storage.read_table(path) for path in paths if path.endswith("00000.parquet")]
    known = Splits.load(place.path).count(["known-nonmember"])
    assert (known, table.num_rows) == (40, 120)
    assert np.isfinite(table["control"].to_numpy()).all()
    assert np.isfinite(table["calibrated"].to_numpy()).all()
