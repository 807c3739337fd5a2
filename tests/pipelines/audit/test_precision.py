"""A run's precision is settled once: plan, files and resumption have it, whatever another machine would choose."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from pipelines.audit import run as precision
from pipelines.audit.run import run
from pipelines.plan.load import parse
from tests.conftest import small_config

pytestmark = pytest.mark.ray


def settled(folder: Path) -> str:
    found: str = yaml.safe_load((folder / "config.yaml").read_text())["queries"]["precision"]
    return found


def test_it_is_settled_at_the_first_start_and_kept(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = parse(small_config(sweep={"queries.views": [2, 4]}), "small.yaml")
    monkeypatch.setattr(precision, "_all_nodes_have_bfloat16", lambda: True)
    monkeypatch.setattr(precision, "_tried", lambda _: "bfloat16")
    run(config, str(tmp_path / "run"), last="data")
    assert settled(tmp_path / "run") == settled(tmp_path / "run/sweep/queries.views/2") == "bfloat16"
    assert '"precision": "bfloat16"' in (tmp_path / "run/plan.json").read_text()
    assert "queries.precision: bfloat16" in capsys.readouterr().err
    monkeypatch.setattr(precision, "_all_nodes_have_bfloat16", lambda: False)  # resumed on an old machine
    run(config, str(tmp_path / "run"), last="data")
    assert settled(tmp_path / "run") == "bfloat16"
    assert "changed" not in capsys.readouterr().err
    run(config, str(tmp_path / "other"), last="data")
    assert settled(tmp_path / "other") == "float32"


def test_each_architecture_is_tried_once_as_a_worker_would_ask_it(monkeypatch: pytest.MonkeyPatch) -> None:
    encoders = small_config()["encoders"]
    encoders["shadow"]["backbone"] = "resnet8"
    encoders["further"] = {"like": "target", "train_on": "shadow-nonmember"}
    config = parse(small_config(encoders=encoders, validity={"references": ["further"]}), "small.yaml")
    monkeypatch.setattr("mi_core.querying.precision_trial.has_bfloat16", lambda: True)
    assert precision._tried(config) in ("bfloat16", "float32")
    alike = Mock(return_value=True)
    monkeypatch.setattr("mi_core.querying.precision_trial._is_alike", alike)
    assert precision._tried(config) == "bfloat16"
    assert [call.args[1:] for call in alike.call_args_list] == [(1, 8)] * 2
