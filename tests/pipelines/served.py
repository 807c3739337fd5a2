"""A small run whose target is behind a live server, as several test modules start from it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.remote.meter import Spent
from mi_core.features.embedding import LpNorm
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from pipelines.config.run_config import RunConfig
from pipelines.encoders.access import spent
from pipelines.encoders.adopt import REPEATED
from pipelines.encoders.stored import describe
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from tests.conftest import small_config
from tests.endpoints import FaultyServer
from tests.pipelines.columns import columns

ROLES = ("target-member", "target-nonmember")
AUDITED = 120
PROBE = 6 * AUDITED + 2 * REPEATED + 1  # six views of each audited image, some images twice, one of them alone
ASKED = AUDITED * 5  # four views of each audited image, and the image as it is


def trained(folder: Path) -> Any:
    return for_queries(describe(RunFolder(str(folder)).seed(0), "target").load(3), "cpu")


def raw_config(server: FaultyServer, endpoint: Mapping[str, Any] = {}, **sections: Any) -> dict[str, Any]:
    """The small run with its target behind the server."""
    config = small_config(**sections)
    target = config["encoders"]["target"]
    served = {"url": f"{server.url}/json", "outputs": ["backbone", "projection"], "retries": 0, **endpoint}
    config["encoders"] |= {
        "target": {"endpoint": served, "augmentation": target["augmentation"]},
        "shadow": {**target, "train_on": "shadow-member"},
    }
    return config


def config_of(server: FaultyServer, endpoint: Mapping[str, Any] = {}, **sections: Any) -> RunConfig:
    """The same, with a nonce that a test can repeat."""
    return parse(raw_config(server, endpoint, **sections), "served.yaml").with_queries(nonce="n")


def prepare(folder: Path, trained_run: Path, config: RunConfig) -> Path:
    """A run whose roles are drawn and whose shadow is trained."""
    for part in ("scan", "seed-0/splits", "seed-0/encoders/shadow"):
        shutil.copytree(trained_run / part, folder / part)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", by_alias=True)))
    return folder


def charged(folder: Path, server: FaultyServer) -> Spent:
    return spent(str(folder), f"{server.url}/json")


def features(config: RunConfig, folder: Path, output: str, epoch: int) -> dict[str, np.ndarray]:
    place = RunFolder(str(folder)).seed(0)
    return dict(columns(config, place, "target", epoch, output, [PairwiseSimilarity(), LpNorm()], ROLES).values)
