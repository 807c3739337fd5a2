"""What is asked is counted, asked once whoever reads the answer, and never more than the budget."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mi_core.features.embedding import LpNorm
from mi_core.images import Decoder
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.queries import Recipe
from pipelines.data.plans import plan_of
from pipelines.data.read.samples import Portion
from pipelines.errors import UserError
from pipelines.extract import run as extraction
from pipelines.extract.actor import attempts
from pipelines.extract.actor.attempts import (
    DECODING,
    QUERYING,
    Attempt,
    Unpaid,
    begun_of,
    lost_queries,
    mark_attempt,
    marker_path,
)
from pipelines.extract.actor.worker import EncodeChunks
from pipelines.extract.division.jobs import ShardJob
from pipelines.extract.division.passes import Pass, recorded_passes
from pipelines.extract.division.readers import Selection
from pipelines.extract.features import rejected_samples
from pipelines.extract.ledger import LOST, count_queries
from pipelines.files import storage
from pipelines.plan.items import Protocol, Query, items_in
from pipelines.plan.load import parse
from pipelines.plan.resolve import resolve, roles_in_config
from pipelines.report import run as report
from pipelines.report.finished import FinishedRun
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.points import Run
from tests.conftest import config_with, small_config
from tests.pipelines import planned
from tests.pipelines.columns import seed_0
from tests.raising import refused

pytestmark = pytest.mark.ray

NEEDED = 2 * (120 * 4 + 240)  # of two checkpoints: views of 120 audited images, and each of 240 images itself


def asked_of_target(config: RunConfig, folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for encoder, role, _, queries in count_queries(plan_of(config, seed_0(folder))):
        if encoder == "target":
            found[role] = found.get(role, 0) + queries
    return found


def jobs_of(config: RunConfig, folder: Path) -> list[ShardJob]:
    return [job for job in planned.jobs_of(config, folder) if job.encoder == "target"]


def test_a_budget_is_never_exceeded(folder: Path, tmp_path: Path) -> None:
    short = config_with(budget={"queries": NEEDED - 1})
    told = f"budget.queries = {NEEDED - 1} is too small: the attacks need {NEEDED} queries of target"
    refused(UserError, told, audit.run, short, str(folder), last="extract")
    assert not list(folder.rglob("epoch-*/**/*.parquet"))
    assert not recorded_passes(seed_0(folder).store)  # so that fewer views may be tried in the same folder
    shutil.copytree(folder, tmp_path / "swept")
    swept = config_with(budget={"queries": NEEDED + 100}, sweep={"queries.views": [2, 4]})
    with pytest.raises(UserError, match="the attacks need"):  # points are paid for together
        audit.run(swept, str(tmp_path / "swept"), last="extract")
    config = config_with(budget={"queries": NEEDED})
    refused(UserError, "--force extract would spend budget.queries = ", audit.run, config, str(folder), force="extract")
    audit.run(config, str(folder), last="extract")
    asked = asked_of_target(config, folder)
    assert sum(asked.values()) == NEEDED
    assert LOST not in asked
    manifest = RunFolder(str(folder)).manifest["extraction"]
    assert sum(entry["views"] for entry in manifest) == NEEDED + 2 * (240 * 4 + 240)  # those of the shadow too


@pytest.mark.slow
def test_what_an_interruption_lost_is_paid_for_before_it_is_asked_again(folder: Path) -> None:
    config = config_with(budget={"queries": NEEDED})
    job = max(jobs_of(config, folder), key=lambda job: job.chunks)
    assert mark_attempt(job, 1, QUERYING)[0] == 0  # a worker that went no further
    assert mark_attempt(replace(job, begun={1: (1, 0)}, session="later"), 1, QUERYING)[0] == 0
    lost = 2 * job.queries_of(job.size(1))
    with pytest.raises(UserError, match=f"has lost {lost} more; raise the budget to {NEEDED + lost}, or start"):
        audit.run(config, str(folder), last="extract")
    enough = config_with(budget={"queries": NEEDED + lost})
    audit.run(enough, str(folder), last="extract")
    assert rejected_samples(*plan_of(enough, seed_0(folder))) == []
    asked = asked_of_target(enough, folder)
    assert asked.pop(LOST) == 2 * job.queries_of(job.size(1))
    assert sum(asked.values()) == NEEDED
    audit.run(enough, str(folder), last="attack")  # nothing is left to ask
    report.run(FinishedRun.at(enough, RunFolder(str(folder))))
    entries = storage.read_json(f"{folder}/report.json")["queries"]["entries"]
    assert {entry["queries"] for entry in entries if entry["role"] == LOST} == {lost}


@pytest.mark.parametrize(
    ("bears", "begun", "deaths", "allowed"),
    [(1, 0, 0, 1), (2, 0, 0, 2), (9, 0, 0, 5), (1, 1, 0, 1), (9, 3, 2, 3), (9, 7, 0, 5), (9, 6, 5, 0)],
)
def test_a_chunk_is_begun_no_more_often_than_the_budget_bears(
    folder: Path, bears: int, begun: int, deaths: int, allowed: int
) -> None:
    job = jobs_of(config_with(), folder)[0]
    for number in range(begun):
        storage.write_atomic(marker_path(job, 0, str(number + 1), QUERYING), b"10 before")
    job = replace(job, attempts=bears, begun={0: (begun, deaths)}, session="now")
    tries = [mark_attempt(job, 0, QUERYING)[0] for _ in range(8)]
    assert tries == [*range(deaths, deaths + allowed), *[None] * (8 - allowed)]


def lost_once(folder: Path, *, attempts: int) -> ShardJob:
    """A job on whose only chunk a worker was lost; it needs no run."""
    query = Pass(
        store=f"{folder}/features",
        encoder="target",
        encoder_key="an encoder",
        keys=("a query",),
        epochs=(0,),
        roles=("candidate",),
        count=None,
        outputs=("backbone",),
        measures=(LpNorm(),),
        columns=frozenset({"backbone.norm:2"}),
        recipe=Recipe("simclr", {}),
        views=2,
        crafter=None,
        crafter_epoch=0,
        bank_role=None,
        protocol=Protocol("", batch_views=1),
        images={"candidate": 2},
    )
    source = config_with().data.sources["digits"]
    selection = Selection.given_as({"a": None, "b": None})
    job = ShardJob(SeedFolder(str(folder), 0), query, "pool", source, Portion("part"), selection, 8, Decoder(8))
    storage.write_atomic(marker_path(job, 0, "1", QUERYING), b"10 now")
    return replace(job, attempts=attempts, session="now")


def receipts_of(job: ShardJob) -> list[dict[str, Any]]:
    row = {"jobs": [job.packed()], "chunk": 0, "keys": ["a", "b"], "images": [b"", b""], "error": ""}
    return EncodeChunks()(pa.Table.from_pylist([row | {"captions": [], "labels": []}])).to_pylist()


def test_a_lost_node_rejects_no_image_for_lack_of_a_budget(tmp_path: Path) -> None:
    job = lost_once(tmp_path, attempts=1)
    (receipt,) = receipts_of(job)
    told = "pool, shard part: a worker was lost while it queried target, and budget.queries bears no further attempt"
    assert (receipt["error"], receipt["unpaid"], receipt["markers"]) == (told, True, [])
    assert not list(tmp_path.rglob("*.parquet"))
    assert not list(tmp_path.rglob("*.rejected.json"))
    assert Attempt.begin(job, 0, DECODING).deaths == 0  # what costs no query
    assert Attempt.begin(job, 0, DECODING).deaths == 1


def test_what_died_too_often_is_rejected_whatever_the_budget(tmp_path: Path) -> None:
    job = replace(lost_once(tmp_path, attempts=1), begun={0: (6, 5)})
    assert Attempt.begin(job, 0, QUERYING).paid().refuses("a")


@pytest.mark.parametrize("covered", [False, True])
def test_a_run_that_lost_a_node_says_what_budget_it_needs(monkeypatch: pytest.MonkeyPatch, covered: bool) -> None:
    asked: list[str] = []

    def attempts_left(*_: Any) -> int:
        asked.append("again")
        if len(asked) > 1 and not covered:
            raise UserError("raise the budget to 12")
        return 1

    def lose(*_: Any) -> None:
        raise Unpaid("a worker was lost, and budget.queries bears no further attempt")

    query = SimpleNamespace(remote=False, measures=())
    for place, name, value in (
        (extraction, "plan_passes", lambda *_: [SimpleNamespace(query=query, record=lambda: None)]),
        (extraction, "_answer", lose),
        (extraction.ledger, "attempts_left", attempts_left),
        (extraction.preflight, "to_check", lambda *_: []),
        (extraction.preflight, "check_unchanged", lambda *_: None),
    ):
        monkeypatch.setattr(place, name, value)
    config = config_with()
    monkeypatch.setattr(extraction, "_looked_through", lambda *_: (Counter(), Counter()))
    told = "in this start; run the same command again, its rest covers" if covered else "raise the budget to 12"
    refused(UserError, told, extraction.run, [Run(config, RunFolder("nowhere"))], [])


def test_markers_of_one_session_prove_deaths(folder: Path) -> None:
    job = jobs_of(config_with(), folder)[0]
    for number, session in enumerate(("a", "b", "b", "b", "c"), start=1):
        storage.write_atomic(marker_path(job, 0, str(number), QUERYING), b"10 " + session.encode())
    assert begun_of(job, attempts.begun(job.query.store, job.query.encoder_key)) == {0: (5, 2)}
    assert lost_queries(job.query.store, job.query.encoder_key) == 50


def test_points_of_a_sweep_ask_the_checkpoints_that_they_attack() -> None:
    base = small_config()
    base["encoders"]["shadow"] |= {"epochs": 4, "checkpoints": [1, 2, 3]}
    config = parse(base, "small.yaml")
    assert asked_epochs(config) == {"target": {1, 3}, "shadow": {1, 2, 3, 4}}
    last = config.model_copy(update={"checkpoints": "last"})
    # the shadow's are those beside the target's last, and its own, whose utility is measured
    assert asked_epochs(last) == {"target": {3}, "shadow": {3, 4}}


def asked_epochs(config: RunConfig) -> dict[str, set[int]]:
    """The checkpoints that a run queries, by encoder."""
    found: dict[str, set[int]] = {}
    for query in items_in(resolve(config, 0, roles_in_config(config)), Query):
        found.setdefault(query.encoder.name, set()).add(query.epoch)
    return found
