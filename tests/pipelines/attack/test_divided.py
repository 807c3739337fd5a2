"""Scores in parts say what all scores at once say: the same run, attacked both ways."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mi_core.validity.verdict import Validity
from pipelines.attack import score, scores
from pipelines.attack.fit import Scored
from pipelines.attack.results import Task, tasks
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.data import database as data_tasks
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import plan_of
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from pipelines.extract import features
from pipelines.plan.load import parse
from pipelines.plan.rules import ThreatModel
from pipelines.report.caveats import caveats
from pipelines.report.finished import FinishedRun
from pipelines.run.folder import RunFolder
from tests.conftest import report_of
from tests.pipelines import staged
from tests.pipelines.tars import image_bytes, tar_bytes

pytestmark = pytest.mark.ray

SHARDS, EACH = 5, 24


def config_of(place: Path, *, grouped: bool) -> RunConfig:
    """Candidates and controls of the same kind in several shards, an encoder with random weights."""
    for name, start in (("mine", 0), ("rest", 10_000)):
        (place / name).mkdir(parents=True)
        for shard in range(SHARDS):
            numbers = range(start + shard * EACH, start + (shard + 1) * EACH)
            members = [(f"{number // 3:05d}-{number % 3}.png", image_bytes(number, size=16)) for number in numbers]
            (place / name / f"{name}-{shard:03d}.tar").write_bytes(tar_bytes(members))
    sources = {name: {"kind": "shards", "path": str(place / name / "*.tar")} for name in ("mine", "rest")}
    roles = {
        "candidate": {"from": "mine"},
        "control": {"from": "rest"},
        "known-nonmember": {"from": "control", "fraction": 0.3},
    }
    data = {"sources": sources, "image_size": 16, "roles": roles}
    data |= {"group_by": {"from": "key", "pattern": "^([0-9]+)-"}} if grouped else {}
    fresh = {"load": "checkpoint:conv4", "fresh": True, "objective": "simclr"}
    raw = {
        "name": "given",
        "data": data,
        "encoders": {"target": fresh, "fresh": fresh},
        "queries": {"views": 3, "outputs": ["backbone"], "nonce": "n"},
        "attacks": [{"attack": "mean-cosine", "target": "target", "reference": "nonmembers"}],
        "validity": {"references": ["fresh"], "fdr": 0.9},
    }
    return parse(raw, "given.yaml")


@pytest.fixture
def counted(tmp_path: Path) -> tuple[RunConfig, Task, Splits]:
    """A run whose attack counts two samples of each role, with its splits."""
    config = config_of(tmp_path, grouped=False)
    config = config.model_copy(update={"attacks": [config.attacks[0].model_copy(update={"count": 2})]})
    folder = RunFolder(str(tmp_path / "run")).seed(0)
    splits = draw(config.data, scan(config.data), 0, folder.path)
    return config, tasks(plan_of(config, folder))[0], splits


def test_an_attack_is_divided_by_the_samples_that_it_counts(
    counted: tuple[RunConfig, Task, Splits], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, task, splits = counted
    assert splits.count(ThreatModel(config).audited_roles) == 2 * SHARDS * EACH
    for most, parted in ((4, False), (3, True)):
        monkeypatch.setattr(score, "ONE_PART", most)
        assert score.is_divided(task) is parted


def test_a_part_without_a_counted_sample_has_no_scores(
    counted: tuple[RunConfig, Task, Splits], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, task, splits = counted
    monkeypatch.setattr(features, "found_in", lambda *_: [])
    asked = set(splits.first(ThreatModel(config).audited_roles, 2, 0))
    bare = [
        place
        for place in splits.sums.shards
        if not asked & set(splits.at([place]).ids(ThreatModel(config).audited_roles))
    ]

    def scored_of(task: Task, splits: Splits, fitted: Any) -> tuple[pa.Table, Scored]:
        if set(splits.sums.shards) <= set(bare):
            features.read(task.folder, task.judge.score.reading, splits)
        table = pa.table({"id": ["a"], "member": [True], "score": [0.5], "item": ["x"]})
        return table, Scored(1, 3)

    fitted: Any = None
    monkeypatch.setattr(score, "score", scored_of)
    full = next(place for place in splits.sums.shards if place not in bare)
    parts = [score._score(task, fitted, number, [place]) for number, place in enumerate((bare[0], full))]
    assert [part.samples for part in parts] == [0, 1]
    assert scores.parts_of(task) == [scores.part_path(task, 1)]
    assert score._score(task, fitted, 1, [full]) == parts[1]  # when the run is started again
    with pytest.raises(UserError, match=r"attacks\.0: no sample that mean-cosine counts was queried"):
        score._finish(task, fitted, parts[:1], 0.0)


@pytest.fixture(scope="module", params=[False, True], ids=["samples", "groups"])
def both(
    request: pytest.FixtureRequest, local_ray: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunConfig, Path, Path]]:
    """A run attacked at once, and its copy attacked in parts."""
    place = tmp_path_factory.mktemp("divided")
    config = config_of(place, grouped=request.param)
    whole, parts = place / "whole", place / "parts"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Validity, "withheld_because", None)  # random weights leak nothing, and their numbers are wanted
        staged.judge(config, whole)
        shutil.copytree(whole, parts)
        patched.setattr(score, "ONE_PART", 0)
        patched.setattr(data_tasks, "AT_ONCE", EACH)
        patched.setattr(scores, "_AT_ONCE", 3)
        audit.run(config, str(parts), force="attack")
        yield config, whole, parts


def numbers_of(entry: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """All plain values of a report, by where they stand."""
    if isinstance(entry, dict):
        for name, part in entry.items():
            yield from numbers_of(part, f"{place}/{name}")
    elif isinstance(entry, list):
        for number, part in enumerate(entry):
            yield from numbers_of(part, f"{place}/{number}")
    else:
        yield place, entry


@pytest.mark.slow
def test_parts_say_what_the_whole_says(both: tuple[RunConfig, Path, Path]) -> None:
    """To the last bit: metrics are computed from the columns of all parts."""
    _, whole, parts = both
    (attacked,) = (parts / "seed-0" / "attacks").iterdir()
    assert len(list((attacked / "scores.parquet").iterdir())) == 2 * SHARDS
    before, together = (
        pq.read_table(folder / "seed-0" / "attacks" / attacked.name / "scores.parquet") for folder in (whole, parts)
    )
    assert together.equals(before)
    first, second = report_of(whole), report_of(parts)
    compared = ("attacks", "pooled", "validity", "evidence", "classes", "caveats")
    told = dict(numbers_of({name: second.get(name) for name in compared}))
    for place, value in numbers_of({name: first.get(name) for name in compared}):
        assert told[place] == value or "seconds" in place, place
    assert (parts / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_that_metrics_are_of_some_samples_is_told(both: tuple[RunConfig, Path, Path], tmp_path: Path) -> None:
    config, whole, _ = both
    shutil.copytree(whole, tmp_path / "run")
    folder = RunFolder(str(tmp_path / "run"))
    assert not [one for one in caveats(FinishedRun.at(config, folder)) if "hash of their ids" in one]
    task = tasks(plan_of(config, folder.seed(0)))[0]
    path = Path(task.path) / "result.json"
    result = json.loads(path.read_text())
    judged = len(pq.read_table(scores.scores_folder(task)))
    assert result["scored"] == judged
    path.write_text(json.dumps(result | {"scored": 400_000_000}))
    (told,) = (one for one in caveats(FinishedRun.at(config, folder)) if "hash of their ids" in one)
    assert told.startswith(f"Metrics are of {judged} of 400,000,000 scored samples")


@pytest.mark.slow
def test_a_run_that_was_ended_goes_on_with_the_parts_that_are_missing(both: tuple[RunConfig, Path, Path]) -> None:
    config, _, parts = both
    before = report_of(parts)
    (attacked,) = (parts / "seed-0" / "attacks").iterdir()
    (attacked / "result.json").unlink()
    there = sorted((attacked / "scores.parquet").iterdir())
    stamps = {path: path.stat().st_mtime_ns for path in there}
    there[3].unlink()
    audit.run(config, str(parts))
    assert {path for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp} == {there[3]}
    for one, two in zip(before["attacks"], report_of(parts)["attacks"], strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}
