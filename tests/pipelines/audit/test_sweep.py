"""A run of many attacks with sweeps, for real: what points share is made once, every number is where it belongs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest

from mi_core.attacks.threshold import best_threshold
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.metrics.delong import auc
from mi_core.report.contents import schema
from pipelines.audit import run as audit
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import plan_of
from pipelines.extract.division.passes import recorded_passes
from pipelines.plan.items import Query, items_in
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder
from pipelines.run.points import Point, points
from tests.conftest import report_of, small_config
from tests.pipelines import staged
from tests.pipelines.columns import columns

pytestmark = pytest.mark.ray


def wide() -> dict[str, Any]:
    config = small_config()
    config["data"]["sources"]["noise"] = {"kind": "noise", "options": {"count": 50, "size": 8}}
    config["data"]["roles"] |= {
        "anchor": {"from": "noise", "count": 30},
        "known-nonmember": {"from": "noise", "count": 12},
    }
    config["attacks"] = [
        {"attack": ["encodermi-t", "patch-similarity"]},
        {"attack": "lpla", "reference": "known"},
        {"attack": "sd-mi", "reference": "known", "epochs": 4},
    ]
    config["sweep"] = {
        "attacks.*.views": [2, 4],
        "attacks.*.p": [0, 2],
        "known": [{"label": 6, "data.roles.known-member.count": 6, "data.roles.known-nonmember.count": 6}],
        "attacks.*.reference_count": [5],
    }
    return config


@pytest.fixture(scope="module")
def swept(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = staged.prepare(wide(), trained_run, tmp_path_factory.mktemp("runs") / "wide")
    audit.run(parse(wide(), "wide.yaml"), str(folder))
    return folder


def swept_points(folder: Path) -> list[Point]:
    """The points that are no run of their own."""
    run = RunFolder(str(folder))
    return [point for point in points(parse(wide(), "wide.yaml"), run) if point.folder != run]


def row(folder: Path, attack: str, output: str = "projection", epoch: int = 3) -> dict[str, Any]:
    found = [
        entry
        for entry in report_of(folder)["attacks"]
        if (entry["attack"], entry["output"], entry["epoch"]) == (attack, output, epoch)
    ]
    assert len(found) == 1
    return found[0]


def test_every_point_is_a_whole_run(swept: Path) -> None:
    points = ["attacks.-.views/2", "attacks.-.views/4", "attacks.-.p/0", "known/6", "attacks.-.reference_count/5"]
    for point in points:
        place = swept / "sweep" / point
        jsonschema.validate(report_of(place), schema())
        assert (place / "report.html").is_file()
    assert not (swept / "sweep" / "attacks.-.p" / "2").exists()  # p is 2 anyway: that point is the run itself
    whole = report_of(swept)
    jsonschema.validate(whole, schema())
    labels = {sweep["name"]: [point["label"] for point in sweep["points"]] for sweep in whole["sweeps"]}
    assert labels == {
        "attacks.*.views": ["2", "4"],
        "attacks.*.p": ["0", "2"],
        "known": ["6"],
        "attacks.*.reference_count": ["5"],
    }
    assert {"sweep-attacks._.views.svg"} <= {path.name for path in (swept / "figures").iterdir()}


def test_what_points_share_is_made_once(swept: Path) -> None:
    point = swept / "sweep" / "known" / "6"
    for name in ("target", "shadow"):
        own, copied = (place / "seed-0" / "encoders" / name for place in (swept, point))
        assert (own / "encoder.json").read_bytes() == (copied / "encoder.json").read_bytes()
        assert not (copied / "state").exists()  # it was not trained there
    recorded = recorded_passes(f"{swept}/features")  # of all points: they have no features of their own
    assert not list((swept / "sweep").rglob("features"))
    by_run: dict[str, set[str]] = {}
    for record in recorded:
        by_run.setdefault(record.content["run"], set()).update(record.keys)
        assert record.finished
        assert record.content["run"] == "" or record.content["epochs"] == [3]  # points ask the last checkpoint alone
    assert by_run.keys() == {"", "sweep/attacks.-.p/0", "sweep/known/6"}  # another norm, and other known images
    assert sum(len(record.keys) for record in recorded) == len(set().union(*by_run.values()))  # each query once
    planned = [plan_of(point.config, point.folder.seed(0)) for point in swept_points(swept)]
    of_point = {folder.run: {query.key for query in items_in(plan, Query)} for plan, folder in planned}
    assert of_point["sweep/attacks.-.views/2"] < by_run[""]
    assert of_point["sweep/attacks.-.reference_count/5"] < by_run[""]
    for run in ("sweep/attacks.-.p/0", "sweep/known/6"):
        assert of_point[run] - by_run[""] == by_run[run]
        assert len(by_run[run]) < len(of_point[run]) / 2
    asked = sum(entry["queries"] for entry in report_of(swept)["queries"]["entries"])
    made = sum(entry["views"] for entry in RunFolder(str(swept)).manifest["extraction"])
    assert asked <= made < asked * 1.2  # another draw of known images asks a few more


def test_the_first_views_are_used(swept: Path) -> None:
    """The attack at two views, recomputed from the first pair of the four views that were drawn."""
    config, place = parse(wide(), "wide.yaml"), RunFolder(str(swept)).seed(0)

    def means(encoder: str, roles: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        found = columns(config, place, encoder, 3, "projection", [PairwiseSimilarity()], roles)
        members = set(Splits.load(place.path).ids(roles[:1]))
        values = PairwiseSimilarity().first_views(found[PairwiseSimilarity()], 4, 2)
        return values.mean(axis=1, dtype=np.float64), np.array([name in members for name in found.ids])

    threshold = best_threshold(*means("shadow", ("shadow-member", "shadow-nonmember")))
    scores, member = means("target", ("target-member", "target-nonmember"))
    found = row(swept / "sweep" / "attacks.-.views" / "2", "encodermi-t")
    assert found["auc"]["value"] == pytest.approx(auc(scores, member).value)
    assert found["accuracy"]["value"] == pytest.approx(((scores >= threshold) == member).mean())
    assert found["queries"] == {"per_sample": 2, "attack_training": 2 * 120, "evaluation": 2 * 120}
    assert row(swept, "encodermi-t")["queries"]["per_sample"] == 4


def test_every_attack_states_what_it_spends(swept: Path) -> None:
    spent = {entry["attack"]: entry["queries"] for entry in report_of(swept)["attacks"]}
    assert spent["patch-similarity"]["per_sample"] == 9
    assert spent["lpla"] == {"per_sample": 1, "attack_training": 24, "evaluation": 108}  # 12 of the members are known
    assert spent["sd-mi"] == {"per_sample": 1, "attack_training": 24 + 30, "evaluation": 108}
    few = row(swept / "sweep" / "attacks.-.reference_count" / "5", "sd-mi")
    assert few["queries"]["attack_training"] == 10 + 30
    assert few["n_member"] == row(swept, "sd-mi")["n_member"]  # judged on the same samples, however few it learned from


def test_what_does_not_apply_is_said_and_stops_nothing(swept: Path) -> None:
    """The 0-norm of a dense embedding counts its coordinates: the same for every image."""
    point = report_of(swept / "sweep" / "attacks.-.p" / "0")
    left_out = {(entry["attack"], entry["output"]) for entry in point["not_applicable"]}
    assert ("lpla", "projection") in left_out
    assert not any(entry["attack"] == "lpla" and entry["output"] == "projection" for entry in point["attacks"])
    assert "leave lpla out" in (swept / "sweep" / "attacks.-.p" / "0" / "report.html").read_text()


def test_noise_as_non_members_comes_with_a_warning(swept: Path) -> None:
    assert any("random pixels" in caveat for caveat in report_of(swept)["caveats"])


def test_results_as_a_table(swept: Path) -> None:
    table = pq.read_table(swept / "results.parquet").to_pylist()
    whole = report_of(swept)
    assert len([entry for entry in table if not entry["sweep"]]) == len(whole["pooled"])
    assert len(table) == len(whole["pooled"]) + sum(len(p["rows"]) for s in whole["sweeps"] for p in s["points"])
    mine = next(
        entry
        for entry in table
        if (entry["point"], entry["attack"], entry["output"]) == ("2", "encodermi-t", "projection")
    )
    found = row(swept / "sweep" / "attacks.-.views" / "2", "encodermi-t")
    assert mine["auc"] == found["auc"]["value"]
    assert [mine["auc_low"], mine["auc_high"]] == found["auc"]["ci95"]
    assert mine["auc_sd"] is None  # one seed
    assert (mine["knows_distribution"], mine["knows_algorithm"], mine["queries_per_sample"]) == (True, True, 2)


def test_results_in_short(swept: Path) -> None:
    short = json.loads((swept / "results.json").read_text())
    found = {(entry["attack"], entry["output"]): entry["accuracy"]["value"] for entry in short["rows"]}
    for entry in report_of(swept)["pooled"]:
        if entry["epoch"] == 3:
            assert found[entry["attack"], entry["output"]] == round(entry["accuracy"]["value"], 4)
    assert {entry["attack"] for entry in short["sweeps"]["attacks.*.views"]["2"]} == {"encodermi-t"}
    assert short["sweeps"]["attacks.*.views"]["4"] == []  # what the run does anyway


def test_a_swept_run_is_not_done_again_and_lost_results_come_back(swept: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    shutil.copytree(swept, folder)
    lost = next((folder / "seed-0" / "attacks").glob("encodermi-t-*-projection-0003"))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    scores = (lost / "scores.parquet/00000.parquet").read_bytes()
    shutil.rmtree(lost)
    audit.run(parse(wide(), "wide.yaml"), str(folder), last="attack")
    assert (lost / "scores.parquet/00000.parquet").read_bytes() == scores
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    longer = wide()
    longer["sweep"]["attacks.*.views"] = [2, 3, 4]
    audit.run(parse(longer, "wide.yaml"), str(folder), last="attack")  # a value may be added
    assert (folder / "sweep" / "attacks.-.views" / "3" / "seed-0" / "attacks").is_dir()
