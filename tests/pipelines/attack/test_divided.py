"""Scores in parts say what all scores at once say: the same run, attacked both ways."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mi_core.metrics.delong import design_effect
from mi_core.validity.verdict import Validity
from pipelines.attack import divided, scores, summed
from pipelines.attack.fitting import Scored
from pipelines.attack.tasks import Task, tasks
from pipelines.audit import run as audit
from pipelines.config.demands import Asking
from pipelines.config.load import parse
from pipelines.config.run_config import RunConfig
from pipelines.data import tasks as data_tasks
from pipelines.data.draw import draw
from pipelines.data.scan import scan
from pipelines.data.splits import Splits
from pipelines.errors import UserError
from pipelines.extract import features
from pipelines.run.folder import RunFolder
from tests.pipelines import staged
from tests.pipelines.tars import image_bytes, tar_bytes

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
        "queries": {"views": 3, "outputs": ["backbone"]},
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
    return config, next(iter(tasks(config, folder))), splits


def test_an_attack_is_divided_by_the_samples_that_it_counts(
    counted: tuple[RunConfig, Task, Splits], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, task, splits = counted
    assert splits.count(config.audited) == 2 * SHARDS * EACH
    for most, parted in ((4, False), (3, True)):
        monkeypatch.setattr(divided, "EXACT", most)
        assert divided.is_divided(config, task) is parted


def test_a_part_without_a_counted_sample_is_empty(
    counted: tuple[RunConfig, Task, Splits], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, task, splits = counted
    monkeypatch.setattr(features, "_sources_of", lambda *_: ())
    asked = set(splits.first(config.audited, 2, 0))
    bare = [place for place in splits.sums.shards if not asked & set(splits.at([place]).ids(config.audited))]

    def score(config: RunConfig, task: Task, splits: Splits, fitted: Any) -> Scored:
        if set(splits.sums.shards) <= set(bare):
            features.load_features(
                config, task.folder, Asking("target", count=2), 0, "backbone", [], config.audited, splits
            )
        table = pa.table({"id": ["a"], "member": [True], "score": [0.5], "item": ["x"]})
        return Scored(table, None, 3)

    fitted: Any = None
    monkeypatch.setattr(divided, "score", score)
    full = next(place for place in splits.sums.shards if place not in bare)
    scored = [divided._score(config, task, fitted, number, [place]) for number, place in enumerate((bare[0], full))]
    assert [part.samples for part in scored] == [0, 1]
    paths = [scores.part_path(task, number) for number in range(2)]
    divided._fill(task, scored, paths)
    assert pq.read_table(paths[0]).schema.equals(pq.read_table(paths[1]).schema)
    assert divided._score(config, task, fitted, 0, [bare[0]]).samples == 0  # when the run is started again
    summed.add_up(task, 0, paths, 0.0)
    assert scores.ScoreSums.load(scores.chunk_path(task, 0)).called == (1, 0)
    with pytest.raises(UserError, match=r"attacks\.0: no sample that mean-cosine counts was queried"):
        divided._fill(task, scored[:1], paths[:1])


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
        patched.setattr(divided, "EXACT", 0)
        patched.setattr(data_tasks, "AT_ONCE", EACH)
        patched.setattr(scores, "AT_ONCE", 3)
        audit.run(config, str(parts), force="attack")
        yield config, whole, parts


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


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


def test_parts_say_what_the_whole_says(both: tuple[RunConfig, Path, Path]) -> None:
    config, whole, parts = both
    grouped = config.data.group_by is not None
    (attacked,) = (parts / "seed-0" / "attacks").iterdir()
    assert not (attacked / "scores.parquet").exists()
    assert len(list((attacked / "scores").glob("*.parquet"))) == 2 * SHARDS
    together = pa.concat_tables([pq.read_table(path) for path in (attacked / "scores").glob("*.parquet")])
    before = pq.read_table(whole / "seed-0" / "attacks" / attacked.name / "scores.parquet")
    assert together.sort_by("id").equals(before.sort_by("id"))
    assert scores.ScoreSums.load(str(attacked / "sums.npz")).parts == 2 * SHARDS

    told = json.loads((attacked / "result.json").read_text())
    assert ("design_effect" in told) is grouped
    if grouped:
        expected = design_effect(*(np.asarray(before[name]) for name in ("score", "member", "group")))
        assert told["design_effect"] == pytest.approx(expected, rel=1e-6)

    first, second = report_of(whole), report_of(parts)
    compared = ("attacks", "pooled", "validity", "evidence", "classes", "caveats")
    loose = ("tpr_at_fpr", "permutation", "seconds", "file", "posterior", "created", "samples")
    told = dict(numbers_of({name: second.get(name) for name in compared}))
    for place, value in numbers_of({name: first.get(name) for name in compared}):
        if not any(name in place for name in loose) and not place.endswith(("/p", "/holm_p")):  # of permutations, too
            assert told[place] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), place
    for one, two in zip(first["attacks"], second["attacks"], strict=True):
        for fpr, rate in one["tpr_at_fpr"].items():
            assert two["tpr_at_fpr"][fpr]["value"] == rate["value"]
            if not grouped:
                assert two["tpr_at_fpr"][fpr]["ci95"] == pytest.approx(rate["ci95"], abs=1e-9)
    assert (parts / "report.html").stat().st_size > 10_000


def test_every_candidate_is_answered_once(both: tuple[RunConfig, Path, Path]) -> None:
    config, whole, parts = both
    grouped = config.data.group_by is not None
    found, again = (report_of(folder)["evidence"] for folder in (whole, parts))
    (one,), (two,) = found["samples"], again["samples"]
    answers = pq.read_table(whole / one["file"]).to_pandas().set_index("id").sort_index()
    files = sorted((parts / two["file"]).glob("*.parquet"))
    in_parts = pa.concat_tables([pq.read_table(path) for path in files]).to_pandas().set_index("id").sort_index()
    assert list(answers.index) == list(in_parts.index)
    assert in_parts["score"].to_numpy() == pytest.approx(answers["score"].to_numpy())
    assert one["n_candidate"] == two["n_candidate"]
    assert one["n_control"] == two["n_control"]
    if not grouped:  # the control that is drawn from each group is another one
        assert in_parts["p_value"].to_numpy() == pytest.approx(answers["p_value"].to_numpy())
        assert in_parts["q_value"].to_numpy() == pytest.approx(answers["q_value"].to_numpy())
        assert (in_parts["flagged"] == answers["flagged"]).all()
        assert [row["id"] for row in one["top"]] == [row["id"] for row in two["top"]]
        assert np.abs(in_parts["posterior"] - answers["posterior"]).max() < 0.2  # folds differ on 120 samples
    listed = [(folder / "seed-0/validity/flagged.csv").read_text().splitlines()[1:] for folder in (whole, parts)]
    assert grouped or [line.split(",")[0] for line in listed[0]] == [line.split(",")[0] for line in listed[1]]


def test_a_run_that_was_ended_goes_on_with_the_parts_that_are_missing(both: tuple[RunConfig, Path, Path]) -> None:
    config, _, parts = both
    before = report_of(parts)
    (attacked,) = (parts / "seed-0" / "attacks").iterdir()
    (attacked / "result.json").unlink()
    there = sorted((attacked / "scores").glob("*.parquet"))
    stamps = {path: path.stat().st_mtime_ns for path in there}
    there[3].unlink()
    audit.run(config, str(parts))
    assert {path for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp} == {there[3]}
    for one, two in zip(before["attacks"], report_of(parts)["attacks"], strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}
