"""What a run proves beyond rates: computed again from its files; withheld where candidates and controls differ."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator
from PIL import Image

from mi_core.report.contents import schema
from mi_core.validity.conformal import conformal_p_values, flagged_at, q_values
from mi_core.validity.sets.dataset import dataset_test
from mi_core.validity.verdict import Validity
from pipelines.data.draw.splits import Splits
from pipelines.errors import UserError
from pipelines.plan.load import parse
from pipelines.report.finished import FinishedRun
from pipelines.report.run import run as write_report
from pipelines.run.folder import RunFolder
from pipelines.run.registration import registered_nonce
from tests.pipelines import staged

pytestmark = pytest.mark.ray


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    Draft202012Validator(schema()).validate(report)
    return report


def scores_of(folder: Path, pattern: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    (place,) = (folder / "seed-0" / "attacks").glob(pattern)
    table = pq.read_table(place / "scores.parquet").to_pydict()
    return np.array(table["score"]), np.array(table["member"]), table["id"]


def test_the_tests_are_those_of_the_scores(finished_run: Path) -> None:
    found = report_of(finished_run)["evidence"]
    assert found["exchangeable"]
    assert (found["n_candidate"], found["n_control"]) == (60, 60)
    assert found["fpr_floor"] == pytest.approx(10 / 60)
    for row in found["tests"]:
        score, member, _ = scores_of(finished_run, f"{row['attack']}-?-{row['output']}-0003")
        again = dataset_test(score, member, seed=0)
        assert row["welch_p"] == pytest.approx(again.welch_p)
        assert row["permutation_p"] == pytest.approx(again.permutation_p)
        assert row["effect"]["value"] == pytest.approx(again.effect.value)
    assert [row["family"] for row in found["tests"]] == [len(found["tests"])] * len(found["tests"])
    assert sum(row.get("primary", False) for row in found["tests"]) == 1


def test_single_candidates_are_answered_from_the_primary_attack(finished_run: Path) -> None:
    report = report_of(finished_run)
    (samples,) = report["evidence"]["samples"]
    row = next(row for row in report["evidence"]["tests"] if row.get("primary"))
    score, member, ids = scores_of(finished_run, f"{row['attack']}-0-{row['output']}-0003")
    table = pq.read_table(finished_run / samples["file"]).to_pydict()
    inside = [name for name, one in zip(ids, member, strict=True) if one]
    assert sorted(table["id"]) == sorted(inside)
    p_values = conformal_p_values(score[member], score[~member])
    of_id = dict(zip(inside, p_values, strict=True))
    assert table["p_value"] == pytest.approx([of_id[name] for name in table["id"]])
    assert table["p_value"] == sorted(table["p_value"])
    assert sum(table["flagged"]) == samples["flagged"] == flagged_at(q_values(p_values), 0.05).sum()
    with (finished_run / "seed-0" / "validity" / "flagged.csv").open() as lines:
        flagged = [line["id"] for line in csv.DictReader(lines)]
    assert set(flagged) == {name for name, one in zip(table["id"], table["flagged"], strict=True) if one}
    assert [one["id"] for one in samples["top"]] == table["id"][:48]
    assert [one["id"] for one in samples["lowest"]] == table["id"][::-1][:48]


def folder_of(place: Path, name: str, count: int, start: int, **save: Any) -> dict[str, str]:
    """Smooth random pictures saved in one way."""
    (place / name).mkdir(parents=True)
    for number in range(count):
        noise = np.random.default_rng(start + number).normal(128, 60, (5, 5, 3))
        picture = Image.fromarray(np.clip(noise, 0, 255).astype(np.uint8)).resize((24, 24), Image.Resampling.BICUBIC)
        picture.save(place / name / f"{number // 3:03d}-{number % 3}.jpg", **save)
    return {"kind": "imagefolder", "path": str(place / name)}


def audited(place: Path, quality: int, **data: Any) -> dict[str, Any]:
    """Random weights and an attack without shadows on two folders of like pictures."""
    sources = {
        "mine": folder_of(place, "mine", 60, 0, quality=90),
        "rest": folder_of(place, "rest", 90, 1000, quality=quality),
    }
    roles = {
        "candidate": {"from": "mine"},
        "control": {"from": "rest"},
        "known-nonmember": {"from": "control", "fraction": 0.4},
    }
    fresh = {"load": "checkpoint:conv4", "fresh": True, "objective": "simclr"}
    return {
        "name": "given",
        "data": {"sources": sources, "image_size": 24, "roles": roles} | data,
        "encoders": {"target": fresh, "fresh": fresh},
        "queries": {"views": 3, "outputs": ["backbone"], "nonce": "a"},  # a drawn one would err in a run of forty
        "attacks": [{"attack": "mean-cosine", "target": "target", "reference": "nonmembers"}],
        "validity": {"references": ["fresh"]},
    }


def test_controls_that_were_saved_otherwise_are_no_controls(local_ray: None, tmp_path: Path) -> None:
    """Random weights know nothing, and the files differ: confounded, no p-value, nobody flagged, and why is said."""
    config = parse(audited(tmp_path, quality=30), "given.yaml")
    staged.judge(config, tmp_path / "run")
    stale = tmp_path / "run" / "seed-0" / "validity" / "candidates.parquet" / "00000.parquet"
    stale.parent.mkdir()
    stale.write_bytes(b"of a report before")
    folder = RunFolder(str(tmp_path / "run"))
    write_report(FinishedRun.at(config.with_queries(nonce=registered_nonce(folder)), folder))
    report = report_of(tmp_path / "run")
    assert report["validity"]["verdict"] == "confounded"
    found = report["evidence"]
    assert not found["exchangeable"]
    assert "tests" not in found
    assert "samples" not in found
    assert found["telling"][0]["auc"] > 0.99
    assert not stale.exists()
    page = (tmp_path / "run" / "report.html").read_text()
    assert "not exchangeable" in page
    assert found["telling"][0]["feature"] in page


def test_groups_count_as_one_and_known_members_tell_the_share(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Validity, "withheld_because", None)  # random weights leak nothing, and their numbers are wanted
    config = audited(tmp_path, quality=90, group_by={"from": "key", "pattern": "^([0-9]+)-"})
    with pytest.raises(UserError, match="share the group '000'"):
        staged.judge(parse(config, "given.yaml"), tmp_path / "torn")
    for path in (tmp_path / "rest").iterdir():
        path.rename(path.with_name(f"9{path.name}"))
    known = folder_of(tmp_path, "known", 30, 5000, quality=90)
    for path in (tmp_path / "known").iterdir():
        path.rename(path.with_name(f"8{path.name}"))
    config["data"]["sources"]["known"] = known
    config["data"]["roles"]["calibration-member"] = {"from": "known"}
    staged.judge(parse(config, "given.yaml"), tmp_path / "run")
    report = report_of(tmp_path / "run")
    found = report["evidence"]
    assert found["grouped"]
    assert found["n_candidate"] == 20
    assert 12 <= found["n_control"] <= 24  # of 30 groups, without those known
    asked = {entry["role"] for entry in report["queries"]["entries"] if entry["encoder"] == "target"}
    assert "calibration-member" in asked
    (row,) = found["tests"]
    assert row["groups"] == found["n_candidate"] + found["n_control"]
    assert not row["share"].get("supported", True) or row["share"]["ci95"][0] <= 0.5


def test_scores_are_calibrated_by_known_images_of_a_role_of_their_own(local_ray: None, tmp_path: Path) -> None:
    config = audited(tmp_path, quality=90)
    config["data"]["sources"]["known"] = folder_of(tmp_path, "known", 40, 5000, quality=90)
    config["data"]["roles"]["known-nonmember"] = {"from": "known"}
    seed_0 = staged.judge(parse(config, "given.yaml"), tmp_path / "run") / "seed-0"
    table = pq.read_table(next((seed_0 / "attacks").rglob("00000.parquet")))
    assert (Splits.load(str(seed_0)).count(["known-nonmember"]), table.num_rows) == (40, 150)
    assert all(np.isfinite(table[name].to_numpy()).all() for name in ("control", "calibrated"))
