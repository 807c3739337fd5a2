"""The whole chain on real digits: what it leaves, what it skips, what it refuses; a planted leak and none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.metrics import roc_auc_score, roc_curve
from typer.testing import CliRunner

from mi_core.metrics.delong import auc
from mi_core.records import Estimate
from mi_core.registration import faults_of, is_after_looking
from mi_core.report.contents import schema
from pipelines.audit import run as audit
from pipelines.audit.run import is_finished, with_settled_precision
from pipelines.cli.app import app
from pipelines.data.draw.splits import Splits
from pipelines.files import storage
from pipelines.plan.load import parse
from pipelines.report import index
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run
from pipelines.run.registration import lines_of
from tests.conftest import report_of, small_config

pytestmark = pytest.mark.ray


def run(folder: Path, last: str = "report", force: str | None = None, **sections: Any) -> dict[str, Any]:
    """Run the small config with other sections and return its report."""
    audit.run(parse(small_config(**sections), "small.yaml"), str(folder), last=last, force=force)
    return report_of(folder) if last == "report" else {}


def written(folder: Path) -> dict[str, int]:
    """Files of a run and when they were written, but those of every start."""
    always = {"manifest.json", "progress.json", "config.yaml", ".lock", "registration.jsonl", "finished.json"}
    always |= {"report.json", "report.html", "results.json", "results.parquet"}
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file() and path.name not in always and "figures" not in path.parts
    }


def test_the_report_keeps_its_contract(finished_run: Path) -> None:
    report = report_of(finished_run)
    jsonschema.Draft202012Validator(schema()).validate(report)
    assert len(report["attacks"]) == 2 * 2 * 2  # attacks x outputs x checkpoints
    by_attack = {(entry["attack"], entry["output"], entry["epoch"]): entry for entry in report["attacks"]}
    entry = by_attack["encodermi-t", "projection", 3]
    assert (entry["n_member"], entry["n_nonmember"], entry["primary"]) == (60, 60, True)
    assert entry["queries"] == {"per_sample": 4, "attack_training": 480, "evaluation": 480}
    known = by_attack["lpla", "backbone", 3]
    assert (known["n_member"], known["n_nonmember"]) == (48, 48)  # without those the attacker knows
    assert known["queries"] == {"per_sample": 1, "attack_training": 24, "evaluation": 96}
    assert set(report["timings"]) == {"ray_start", "data", "pretrain", "extract", "attack", "report"}
    assert [point["epoch"] for point in report["encoders"]["target"]["curve"]] == [1, 3]
    assert report["rejected_count"] == 0
    for name in (
        "report.html",
        *(f"figures/{figure}" for figure in ("loss.svg", "early-stopping.svg", "roc-projection.svg", "views.png")),
    ):
        assert (finished_run / name).stat().st_size > 1000


def test_its_numbers_and_figures_leave_as_files(finished_run: Path, tmp_path: Path) -> None:
    """Differences are those of the AUCs over the images that both attacks score, as scikit-learn has them."""
    out = CliRunner().invoke(app, ["report", str(finished_run), "--csv", str(tmp_path / "files")])
    assert out.exit_code == 0, out.exception
    attacks, scores = (pd.read_csv(tmp_path / "files" / f"{name}.csv") for name in ("attacks", "scores"))
    last = attacks[attacks.epoch == 3].set_index(["attack", "output"])
    assert len(scores) == 2 * (120 + 96)
    of = {key: rows.set_index("id") for key, rows in scores.groupby(["attack", "output"])}
    first = of["encodermi-t", "projection"]
    for key, mine in of.items():
        assert roc_auc_score(mine.member, mine.score) == pytest.approx(last.auc[key])
        both = mine.join(first.score.rename("of_first"), how="inner")
        apart = roc_auc_score(both.member, both.score) - roc_auc_score(both.member, both.of_first)
        assert key == ("encodermi-t", "projection") or last.difference[key] == pytest.approx(apart)
    assert np.isnan(last.difference["encodermi-t", "projection"])
    assert attacks[attacks.epoch == 1].difference.isna().all()
    figures = {path.name for path in (tmp_path / "files" / "figures").iterdir()}
    assert {f"roc-projection.{kind}" for kind in ("svg", "pdf", "csv")} < figures and "views.pdf" not in figures
    assert (tmp_path / "files" / "figures" / "roc-projection.pdf").read_bytes().startswith(b"%PDF")
    curve = pd.read_csv(tmp_path / "files" / "figures" / "roc-projection.csv")
    drawn = curve[curve.series.str.startswith("encodermi-t")]
    fpr, tpr, _ = roc_curve(first.member, first.score, drop_intermediate=False)
    assert np.allclose(drawn.y, tpr[np.searchsorted(fpr, drawn.x, side="right") - 1])


def test_an_index_shows_the_run(finished_run: Path, tmp_path: Path) -> None:
    found = index.write(str(finished_run), str(tmp_path / "all.html"))
    (shown,), validity = found.entries, report_of(finished_run)["validity"]
    assert shown.answer.verdict == validity["verdict"]
    assert shown.auc == Estimate.from_json(validity["attack_auc"])
    assert (shown.family, shown.link) == ("simclr, conv4", os.path.relpath(finished_run / "report.html", tmp_path))


def test_scores_in_the_run_give_the_reported_numbers(finished_run: Path) -> None:
    """AUC, accuracy and verdict, computed again from the files a third party would get."""
    report = report_of(finished_run)
    members = set(Splits.load(str(finished_run / "seed-0")).ids(["target-member"]))
    for entry in report["attacks"]:
        (place,) = (finished_run / "seed-0" / "attacks").glob(
            f"{entry['attack']}-?-{entry['output']}-{entry['epoch']:04d}"
        )
        table = pq.read_table(place / "scores.parquet").to_pydict()
        score, member = np.array(table["score"]), np.array(table["member"])
        assert [name in members for name in table["id"]] == table["member"]
        assert entry["auc"]["value"] == pytest.approx(auc(score, member).value)
        assert entry["accuracy"]["value"] == pytest.approx(np.mean((score >= entry["threshold"]) == member))
        if entry.get("primary") and entry["epoch"] == 3:
            assert report["validity"]["attack_auc"]["value"] == pytest.approx(auc(score, member).value)
            control = auc(np.array(table["control"]), member).value
            assert report["validity"]["control_auc"]["value"] == pytest.approx(control)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_is_known_without_ray(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    (folder / "statement.json").write_text("{}")
    monkeypatch.delattr(audit, "ray_cluster")
    before = contents(folder)
    run(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("change", ["damaged", "gone", "new", "other", "setting", "code"])
def test_a_run_that_changed_is_not_finished(
    change: str, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    table = next(path for path in folder.glob("seed-0/attacks/**/*.parquet") if path.is_file())
    config = small_config()
    if change == "damaged":
        (folder / "finished.json").write_text("{")
    elif change == "gone":
        table.unlink()
    elif change == "new":
        (folder / "seed-0" / "more").touch()
    elif change == "other":
        table.write_bytes(table.read_bytes()[:-1] + b"x")
    elif change == "setting":
        config["resources"] = config.get("resources", {}) | {"encoder_actors": 1, "object_store_mb": 99}
    else:
        monkeypatch.setattr("pipelines.run.registration.code_digest", dict)
    place = RunFolder(str(folder))
    assert not is_finished(Run(with_settled_precision(Run(parse(config, "small.yaml"), place)), place))


def test_what_is_done_is_not_done_again(finished_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    (folder / "finished.json").unlink()
    before, report = written(folder), report_of(folder)
    again = run(folder)
    assert written(folder) == before
    for name in ("attacks", "validity", "encoders", "queries", "data"):
        assert again[name] == report[name]
    assert len(RunFolder(str(folder)).manifest["runs"]) == 3
    events = [line["event"] for line in lines_of(RunFolder(str(folder)))]
    assert (events.count("roles"), events.count("plan")) == (1, 1)
    assert not faults_of(lines_of(RunFolder(str(folder)))) and not is_after_looking(lines_of(RunFolder(str(folder))))
    assert again["registration"]["reports"] == events.count("look") == report["registration"]["reports"] + 1


def leaking(epochs: int, learning_rate: float) -> dict[str, Any]:
    """The small config with encoders that learn as much as asked."""
    encoders = small_config()["encoders"]
    encoders["target"] |= {
        "epochs": epochs,
        "checkpoints": [],
        "batch_size": 60,
        "optimizer": {"learning_rate": learning_rate},
    }
    return {"encoders": encoders, "queries": {"views": 10}}


def test_a_planted_leak_is_found(local_ray: None, tmp_path: Path) -> None:
    """Sixty members seen 150 times: an encoder that remembers. A flipped sign would give AUC near 0."""
    report = run(tmp_path / "run", **leaking(150, 0.005))
    assert report["validity"]["attack_auc"]["value"] > 0.95
    assert report["validity"]["verdict"] == "leak"
    low, high = report["validity"]["control_auc"]["ci95"]
    assert low < 0.5 < high


@pytest.mark.slow
def test_shards_and_run_folder_on_an_object_store(s3: str, tmp_path: Path) -> None:
    """Import, audit and audit again, as a user with a bucket does it; workers read and write there themselves."""

    def command(*arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        code = [sys.executable, "-m", "pipelines.cli", *arguments]
        return subprocess.run(code, check=True, env=environment, capture_output=True, text=True).stderr

    command("shards", "import", "digits", f"{s3}/digits")
    data = small_config()["data"] | {"sources": {"digits": {"kind": "shards", "path": f"{s3}/digits/*.tar"}}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small_config(data=data)))
    command("audit", str(tmp_path / "small.yaml"), "--out", f"{s3}/run")
    report = json.loads(storage.read_bytes(f"{s3}/run/report.json"))
    jsonschema.Draft202012Validator(schema()).validate(report)
    assert len(report["attacks"]) == 8
    assert "finished: nothing has changed since" in command("audit", f"{s3}/run")
    storage.remove(f"{s3}/run/finished.json")
    assert "13 of 13 results already done" in command("audit", f"{s3}/run")
