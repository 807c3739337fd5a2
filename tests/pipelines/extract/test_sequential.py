"""Asking the target no longer than it takes: a whole run in which a rule, fitted on the reference, ends the asking."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from mi_core.attacks.sequential import EncoderMISequential, SequentialParameters
from mi_core.features.embedding import Embedding
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.features.sequential import by_views, stopped
from mi_core.records import LabelledFeatures
from mi_core.report.contents import schema
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import plan_of
from pipelines.errors import UserError
from pipelines.extract import run as extract
from pipelines.extract.division.passes import recorded_passes
from pipelines.extract.features import read
from pipelines.files import storage
from pipelines.plan.items import Judge, Query, items_in
from pipelines.plan.load import parse
from pipelines.plan.resolve import resolve, roles_in_config
from pipelines.plan.rules import ThreatModel
from pipelines.run.folder import RunFolder
from tests.conftest import report_of, small_config
from tests.pipelines.columns import columns, seed_0

pytestmark = pytest.mark.ray

VIEWS = 6
SEQUENTIAL = {"attack": "encodermi-sequential", "tolerance": 0.2, "outputs": ["projection"]}


def config_with(queries: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    attacks = [
        {"attack": "encodermi-t", "outputs": ["projection"]},
        SEQUENTIAL,
        {**SEQUENTIAL, "reference": "known", "tolerance": 0.1},
    ]
    plan = {"views": VIEWS, "chunk": 32, **(queries or {})}
    return parse(small_config(queries=plan, **{"attacks": attacks, **sections}), "small.yaml")


@pytest.fixture(scope="module")
def finished(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all views for encodermi-t, and as many as it takes for the others; look, do not touch."""
    folder = tmp_path_factory.mktemp("runs") / "sequential"
    shutil.copytree(trained_run, folder)
    audit.run(config_with(), str(folder))
    return folder


def judge_of(config: RunConfig, folder: Path, position: int, epoch: int) -> Judge:
    """One attack on the projection."""
    plan, _ = plan_of(config, seed_0(folder))
    wanted = (position, "projection", epoch)
    (judge,) = (judge for judge in plan.judges if (judge.position, judge.output, judge.epoch) == wanted)
    return judge


def queries_of_images(config: RunConfig, folder: Path, position: int = 1, epoch: int = 3) -> dict[str, np.ndarray]:
    """Views asked and their statistic by sample."""
    found = read(seed_0(folder), judge_of(config, folder, position, epoch).score.reading)
    return dict(zip(found.ids.tolist(), found.values["sequential"], strict=True))


def seen(config: RunConfig, folder: Path, encoder: str, roles: tuple[str, ...], epoch: int = 3) -> LabelledFeatures:
    """Similarities of all views."""
    place = seed_0(folder)
    found = columns(config, place, encoder, epoch, "projection", [PairwiseSimilarity()], roles)
    members = set(Splits.load(place.path).ids(roles[:1]))
    return LabelledFeatures(found, np.array([name in members for name in found.ids]))


def assert_same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    """The same views asked of the same samples; an encoder hardly trained has cosines so near 1 that rounding shows."""
    assert one.keys() == two.keys()
    first, second = np.array([one[name] for name in one]), np.array([two[name] for name in one])
    np.testing.assert_array_equal(first[:, 0], second[:, 0])
    np.testing.assert_allclose(first[:, 1], second[:, 1], atol=5e-3)


def rules(folder: Path) -> dict[str, bytes]:
    """All stopping rules by the tag of their pass."""
    return {path.parent.name: path.read_bytes() for path in (folder / "features").glob("*/rule.json")}


@pytest.mark.slow
def test_the_target_is_asked_what_a_rule_of_the_shadow_alone_asks(finished: Path) -> None:
    config = config_with()
    for epoch in (1, 3):
        attack = EncoderMISequential(SequentialParameters(tolerance=0.2))
        attack.fit(seen(config, finished, "shadow", ("shadow-member", "shadow-nonmember"), epoch))
        target = seen(
            config, finished, "target", ThreatModel(config).audited_roles, epoch
        ).features  # of encodermi-t, which asks for all
        expected = stopped(by_views(target.values["pairwise:cosine"]), attack.stopping_rule())
        found = queries_of_images(config, finished, epoch=epoch)
        assert_same(found, dict(zip(target.ids.tolist(), expected, strict=True)))
        assert 2 < expected[:, 0].mean() < VIEWS
        name = f"encodermi-sequential-1-projection-{epoch:04d}"
        table = storage.read_table(f"{finished}/seed-0/attacks/{name}/scores.parquet/00000.parquet")
        scores = dict(zip(table["id"].to_pylist(), table["score"].to_pylist(), strict=True))
        np.testing.assert_allclose([scores[name] for name in target.ids], attack.score(target), atol=0.02)


@pytest.mark.slow
def test_queries_are_counted_as_they_were_made(finished: Path) -> None:
    found = report_of(finished)
    jsonschema.validate(found, schema())
    made = sum(entry["views"] for entry in RunFolder(str(finished)).manifest["extraction"])
    assert found["queries"]["total"] == made
    config = config_with()
    for entry in found["attacks"]:
        if entry["attack"] == "encodermi-sequential":
            position = 1 if entry["reference"] == "shadow" else 2
            views = [row[0] for row in queries_of_images(config, finished, position, entry["epoch"]).values()]
            assert entry["queries"]["evaluation"] == sum(views)
            assert entry["queries"]["mean_per_sample"] == pytest.approx(np.mean(views))
            assert entry["queries"]["per_sample"] == VIEWS
        else:
            assert "mean_per_sample" not in entry["queries"]
            assert entry["queries"]["evaluation"] == VIEWS * 120


@pytest.mark.slow
def test_what_was_lost_is_asked_again_by_the_same_rule(finished: Path, tmp_path: Path) -> None:
    """Committed features of the target are gone, then its rules too: they come back as they were."""
    for lost in (("epoch-*/**/*.parquet",), ("epoch-*/**/*.parquet", "rule.json")):
        folder = tmp_path / str(len(lost))
        shutil.copytree(finished, folder)
        of_target = [
            Path(record.folder)
            for record in recorded_passes(seed_0(folder).store)
            if record.content["encoder"] == "target"
        ]
        gone = [path for place in of_target for pattern in lost for path in place.glob(pattern)]
        assert any(path.name == "rule.json" for path in gone) == ("rule.json" in lost)
        for path in gone:
            path.unlink()
        audit.run(config_with(), str(folder), last="extract")
        assert rules(folder) == rules(finished)
        assert_same(queries_of_images(config_with(), finished), queries_of_images(config_with(), folder))


def test_equal_attacks_ask_once_and_others_each_for_themselves() -> None:
    config = config_with(attacks=[SEQUENTIAL, SEQUENTIAL, {**SEQUENTIAL, "tolerance": 0.1}])
    queries = [
        query
        for query in items_in(resolve(config, 0, roles_in_config(config)), Query)
        if query.encoder.name == "target"
    ]
    stopped_by = {query.stopping.key: query for query in queries if query.stopping is not None}.values()
    rules = [(query.stopping.attack.parameters().tolerance, query.epoch) for query in stopped_by]
    assert sorted(rules) == [(0.1, 1), (0.1, 3), (0.2, 1), (0.2, 3)]
    asked = [(query.stopping.key, query.samples.roles[0].name) for query in queries if query.stopping is not None]
    assert len(set(asked)) == len(asked) == 2 * len(rules)
    assert {query.measure for query in queries if query.stopping is None} == {Embedding()}  # for utility


def test_a_budget_is_checked_for_the_most_that_may_be_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attacks = [SEQUENTIAL]
    needed = 2 * (VIEWS * 120 + 240)  # of two checkpoints: every view of the audited images, and all images themselves
    short = config_with(attacks=attacks, budget={"queries": needed - 1})
    with pytest.raises(UserError, match=f"the attacks need {needed} queries of target"):
        audit.run(short, str(folder), last="extract")

    def asking(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(extract, "_answer", asking)
    with pytest.raises(InterruptedError):  # enough is enough
        audit.run(config_with(attacks=attacks, budget={"queries": needed}), str(folder), last="extract")


def test_a_rule_that_cannot_be_fitted_is_told_before_anything_starts() -> None:
    with pytest.raises(UserError, match="encodermi-sequential needs 66 known non-members with its fpr, not 60"):
        config_with(attacks=[{**SEQUENTIAL, "fpr": 0.015}])
