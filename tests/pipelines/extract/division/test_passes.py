"""Queries in passes: each set of queries of an image is asked once, whoever reads the answers, and no more is asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mi_core.features.pairwise_similarity import PairwiseSimilarity
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.queries import Recipe
from pipelines.data.plans import plan_of
from pipelines.data.read.sources import Source
from pipelines.extract.actor.worker import EncodeChunks
from pipelines.extract.division.jobs import looked_up, orders_of
from pipelines.extract.division.passes import grouped, recorded_passes, remove_passes
from pipelines.extract.division.readers import chunks_of
from pipelines.extract.features import read, rejected_samples
from pipelines.extract.ledger import count_queries
from pipelines.extract.run import PlannedPass
from pipelines.files import storage
from pipelines.plan.items import Encoder, Plan, Protocol, Query, Role, Samples, Views, items_in
from pipelines.plan.load import parse
from pipelines.plan.resolve import resolve, roles_in_config
from pipelines.run.folder import FEATURES, TUNED, RunFolder
from pipelines.run.points import Run
from tests.conftest import S3_REQUESTS, config_with, small_config
from tests.pipelines import staged
from tests.pipelines.banks import with_anchors
from tests.pipelines.planned import recorded_now

pytestmark = pytest.mark.ray

AUDITED = ("target-member", "target-nonmember")
TESTED = ("shadow-member", "shadow-nonmember")
MI_T = {"attack": "encodermi-t"}
LPLA = {"attack": "lpla", "reference": "known"}


def plan_before_drawing(config: RunConfig) -> Plan:
    return resolve(config, 0, roles_in_config(config))


def queries_of(config: RunConfig) -> list[Query]:
    return items_in(plan_before_drawing(config), Query)


def other_shadow(**changes: Any) -> dict[str, Any]:
    """The encoders of the small run, and one more shadow that differs from the other."""
    encoders = small_config()["encoders"]
    return encoders | {"other": {**encoders["target"], "train_on": "shadow-member", **changes}}


CROPS = {"augmentation": {"crop_scale": [0.2, 0.5], "flip": 0, "jitter_probability": 0, "grayscale": 0}}
PARTS = {
    "attacks": [{"attack": "feature-mi", "reference": "known", "outputs": ["backbone"]}],
    "utility": {"bank": ["target-member"], "test": ["known-member", "target-nonmember"]},
}
HALVES = {"like": "target", "train_on": list(AUDITED), "halves": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": small_config(),
    "last": small_config(checkpoints="last"),
    "outputs": small_config(
        attacks=[
            {**LPLA, "outputs": ["projection"]},
            {**MI_T, "outputs": ["projection"]},
            {"attack": "feature-mi", "reference": "known", "outputs": ["backbone"]},
            {"attack": "patch-similarity", "outputs": ["backbone"]},
        ]
    ),
    "recipes": small_config(attacks=[MI_T, {**MI_T, "reference": "other"}, LPLA], encoders=other_shadow(**CROPS)),
    "count": small_config(attacks=[{"attack": "patch-similarity"}, {**MI_T, "count": 7}]),
    "parts": small_config(**PARTS),
    "halves": small_config(
        attacks=[{"attack": "lira", "reference": "shadows"}], encoders={**small_config()["encoders"], "shadows": HALVES}
    ),
    "bank": with_anchors(MI_T, {"attack": "combined", "neighbours": "5/10"}, LPLA),
    "repeats": small_config(queries={"views": 4, "chunk": 32, "repeats": 3}),
}


def way_of(query: Query) -> tuple[object, ...]:
    """How a query asks beyond the image itself, spelled out."""
    views = query.views
    return (
        None if views is None else (views.recipe, views.number, views.crafter and views.crafter.key),
        query.bank and query.bank.key,
    )


def sets_by_hand(queries: Iterable[Query]) -> dict[tuple[object, ...], tuple[Query, set[int]]]:
    """The oracle: every set of queries of the images of one role, with a query that reads it, and its checkpoints."""
    sets: dict[tuple[object, ...], tuple[Query, set[int]]] = {}
    for query in queries:
        known = (query.encoder.key, query.samples.key, way_of(query), query.measure.query)
        sets.setdefault(known, (query, set()))[1].add(query.epoch)
    return sets


def cost_by_hand(queries: Sequence[Query]) -> int:
    """Queries for all roles, each counted as a whole."""
    total = 0
    for query, epochs in sets_by_hand(queries).values():
        (role,) = query.samples.roles
        each = query.measure.query_count(query.views.number if query.views is not None else 0)
        images = role.count if query.samples.count is None else min(role.count, query.samples.count)
        total += images * each * len(epochs) * query.protocol.repeats
    return total


@pytest.mark.parametrize("name", CONFIGS)
def test_every_query_is_in_one_pass_that_asks_for_it(name: str) -> None:
    queries = queries_of(parse(CONFIGS[name], "small.yaml"))
    passes = grouped(queries, "store")
    by_key = {query.key: query for query in queries}
    keys = [key for one in passes for key in one.keys]
    assert sorted(keys) == sorted(by_key)
    assert len({one.tag for one in passes}) == len(passes)
    for one in passes:
        for query in (by_key[key] for key in one.keys):
            (role,) = query.samples.roles
            assert one.encoder_key == query.encoder.key
            assert (query.epoch in one.epochs, role.name in one.roles, query.output in one.outputs) == (True,) * 3
            assert query.measure in one.measures
            assert f"{query.output}.{query.measure.name}" in one.columns
            assert one.count == query.samples.count
            if query.views is not None:
                assert query.views.recipe is None or one.recipe == query.views.recipe
                assert query.views.number in (0, one.views)
                assert one.crafter == (query.views.crafter and query.views.crafter.name)
            if query.bank is not None:
                assert (one.bank_role, one.bank) == ("anchor", query.bank.count)


@pytest.mark.parametrize("name", CONFIGS)
def test_no_set_of_queries_is_asked_twice_and_none_that_nobody_reads(name: str) -> None:
    config = parse(CONFIGS[name], "small.yaml")
    queries = queries_of(config)
    counts = {role: entry.count or 0 for role, entry in config.data.roles.items()}
    asked = sum(
        one.queries_per_image * (counts[role] if one.count is None else min(counts[role], one.count))
        for one in grouped(queries, "store")
        for role in one.roles
    )
    assert asked == cost_by_hand(queries)


def test_the_small_run_by_hand() -> None:
    """Two passes over the audited images, which both encoders see; one over what the utility is tested on."""
    found = {(one.encoder, one.roles): one for one in grouped(queries_of(config_with()), "store")}
    assert set(found) == {("target", AUDITED), ("target", TESTED), ("shadow", AUDITED), ("shadow", TESTED)}
    target, tested = found["target", AUDITED], found["target", TESTED]
    assert set(map(str, target.measures)) == {"embedding", "norm:2", "pairwise:cosine"}
    assert (target.epochs, target.outputs, target.views) == ((1, 3), ("backbone", "projection"), 4)
    assert target.queries_per_image == 2 * (4 + 1)
    assert set(map(str, tested.measures)) == {"embedding"}
    assert tested.queries_per_image == 2
    assert target.columns >= {"backbone.embedding", "projection.norm:2", "projection.pairwise:cosine"}
    assert "projection.embedding" not in target.columns  # computed, as backbone and norm are, and not kept


class Asks:
    """Makes queries of some images by hand."""

    def __init__(self) -> None:
        settings = config_with().encoders["target"]
        names = {"target-member": "", "target-nonmember": "", "shadow-member": "", "known-member": "target-member"}
        self.roles = {name: Role(name, 9, f"digest of {name}", part) for name, part in names.items()}
        self.encoders = {name: Encoder(name, 0, settings) for name in ("target", "control")}
        self.settings = settings

    def __call__(self, encoder: str, *roles: str, count: int | None = None) -> list[Query]:
        views = Views(Recipe("simclr", self.settings.augmentation), 4)
        return [
            Query(
                self.encoders[encoder],
                3,
                Samples((self.roles[role],), 0, count),
                views,
                "backbone",
                PairwiseSimilarity(),
                Protocol("decoder"),
            )
            for role in roles
        ]


def test_passes_are_split_by_role_where_others_ask_for_some_of_their_roles() -> None:
    asks = Asks()

    def roles(*queries: Sequence[Query]) -> list[tuple[str, ...]]:
        return [one.roles for one in grouped([query for some in queries for query in some], "store")]

    two, three = ("target-member", "target-nonmember"), ("target-member", "target-nonmember", "shadow-member")
    assert roles(asks("target", *three)) == [three]
    assert roles(asks("target", *three), asks("control", *two)) == [two, ("shadow-member",), two]
    known = (*two, "known-member")  # a part of a role that is asked for anyway
    assert roles(asks("target", *known), asks("control", *two)) == [known, two]
    assert roles(asks("target", "known-member", "shadow-member"), asks("control", "shadow-member")) == [
        ("known-member",),
        ("shadow-member",),
        ("shadow-member",),
    ]
    assert roles(asks("target", *three, count=5), asks("control", *two)) == [three, two]


def run_with_roles(config: RunConfig, folder: Path) -> Run:
    """A run whose roles are drawn, and no more."""
    return Run(config, staged.begin(config, folder))


def point_of(run: Run, config: RunConfig, name: str) -> Run:
    """Another run of the same store and the same images."""
    folder = RunFolder(f"{run.folder.path}/{name}", run.folder.path)
    shutil.copytree(run.folder.seed(0).path, folder.seed(0).path)
    return Run(config, folder)


def finished(passes: Iterable[PlannedPass]) -> None:
    for planned in passes:
        planned.query.finish([job.file for job in planned.jobs()])


def tags(passes: Iterable[PlannedPass]) -> list[str]:
    return sorted(planned.query.tag for planned in passes)


def keys_of(run: Run) -> set[str]:
    return {query.key for query in items_in(plan_of(run.config, run.folder.seed(0)).plan, Query)}


def keys_in(passes: Iterable[PlannedPass]) -> list[str]:
    return sorted(key for planned in passes for key in planned.query.keys)


@pytest.mark.parametrize("whole", [True, False])
def test_an_attack_added_to_a_run_adds_only_what_is_missing(tmp_path: Path, whole: bool) -> None:
    """Whether the first start has finished or was interrupted: its passes stay as they are."""
    run = run_with_roles(config_with(attacks=[LPLA]), tmp_path / "run")
    first = recorded_now([run])
    if whole:
        finished(first)
    more = run._replace(config=config_with(attacks=[LPLA, MI_T]))
    then = recorded_now([more])
    old, new = ([planned for planned in then if planned.new == which] for which in (False, True))
    assert tags(old) == tags(first)
    assert keys_in(new) == sorted(keys_of(more) - keys_of(run))
    assert {name for planned in new for name in planned.query.plan().sets} == {"views"}
    again = recorded_now([more])
    assert tags(again) == tags(then)
    assert not [planned for planned in again if planned.new]


def test_what_is_asked_no_more_is_not_gone_on_with(tmp_path: Path) -> None:
    """An interrupted pass gives way to a smaller one; of a finished one the rest is read."""
    many, few = config_with(attacks=[LPLA, MI_T]), config_with(attacks=[LPLA])
    for whole in (False, True):
        run = run_with_roles(many, tmp_path / str(whole))
        first = recorded_now([run])
        if whole:
            finished(first)
        fewer = run._replace(config=few)
        then = recorded_now([fewer])
        covered = {key for planned in first for key in planned.query.keys} if whole else set[str]()
        covered.update(key for planned in then if not planned.new for key in planned.query.keys)
        assert keys_in(planned for planned in then if planned.new) == sorted(keys_of(fewer) - covered)
        assert any(planned.new for planned in then) != whole


def test_an_interrupted_pass_goes_on_where_it_stood(tmp_path: Path) -> None:
    run = run_with_roles(config_with(), tmp_path / "run")
    job = next(job for planned in recorded_now([run]) for job in planned.jobs() if job.chunks > 1)
    for path in job.paths(1):
        storage.write_atomic(path, b"committed")
    storage.write_atomic(job.path(job.query.epochs[0], 0), b"one checkpoint of two")
    jobs = looked_up([job for planned in recorded_now([run]) for job in planned.jobs()])
    assert [again.skip for again in jobs if again.query.tag == job.query.tag and again.place == job.place] == [{1}]
    assert sum(map(len, (again.skip for again in jobs))) == 1


def test_equal_queries_of_a_run_and_its_points_are_in_one_pass(tmp_path: Path) -> None:
    """More views change what views answer and nothing else; fewer checkpoints change nothing."""
    run = run_with_roles(config_with(), tmp_path / "run")
    last = point_of(run, config_with(checkpoints="last"), "sweep/last/1")
    views = point_of(run, config_with(checkpoints="last", queries={"views": 6, "chunk": 32}), "sweep/views/6")
    passes = recorded_now([run, last, views])
    assert keys_in(passes) == sorted(keys_of(run) | keys_of(last) | keys_of(views))
    by_run = {name: [one for one in passes if one.planned.folder.run == name] for name in ("", "sweep/last/1")}
    assert keys_in(by_run[""]) == sorted(keys_of(run))
    assert not by_run["sweep/last/1"]
    others = [planned for planned in passes if planned.planned.folder.run == "sweep/views/6"]
    assert {name for planned in others for name in planned.query.plan().sets} == {"views"}


def test_a_pass_of_a_point_goes_on_once_when_the_run_wants_a_part_of_it(tmp_path: Path) -> None:
    """It was interrupted; then the run gets the attack of the point."""
    run = run_with_roles(config_with(attacks=[LPLA]), tmp_path / "run")
    point = point_of(run, config_with(attacks=[LPLA, MI_T, {"attack": "patch-similarity"}]), "sweep/more/1")
    first = recorded_now([run, point])
    then = recorded_now([run._replace(config=config_with(attacks=[LPLA, MI_T])), point])
    assert tags(then) == tags(first)
    assert not [planned for planned in then if planned.new]


def test_what_a_trial_adds_is_its_own_and_goes_with_it(tmp_path: Path) -> None:
    run = run_with_roles(config_with(attacks=[LPLA]), tmp_path / "run")
    finished(recorded_now([run]))
    trials = [point_of(run, config_with(attacks=[LPLA, MI_T]), f"{TUNED}/search/{name}") for name in "ab"]
    made = [recorded_now([run, trial]) for trial in trials]
    store = run.folder.seed(0).store
    for passes, trial in zip(made, trials, strict=True):
        new = [planned for planned in passes if planned.new]
        assert keys_in(new) == sorted(keys_of(trial) - keys_of(run))
        finished(new)
        assert not [planned for planned in recorded_now([run, trial]) if planned.new]
    shared = {record.folder for record in recorded_passes(store)}
    own = [
        {record.folder for record in recorded_passes(store, [trial.folder.seed(0).trial])} - shared for trial in trials
    ]
    assert own[0]
    assert not own[0] & own[1]
    remove_passes(store, trials[0].folder.seed(0).trial)
    assert {record.folder for record in recorded_passes(store)} == shared
    assert not recorded_passes(store, ["tune/search/a"])[len(shared) :]
    assert not [planned for planned in recorded_now([run, trials[1]]) if planned.new]


def counted(run: Run) -> dict[str, dict[str, int]]:
    """Queries of a run by encoder and role, those of none left out."""
    found: dict[str, dict[str, int]] = {}
    for encoder, role, _, queries in count_queries(plan_of(run.config, run.folder.seed(0))):
        if queries:
            mine = found.setdefault(encoder, {})
            mine[role] = mine.get(role, 0) + queries
    return found


def test_a_point_counts_what_it_reads_of_the_passes_of_the_run(tmp_path: Path) -> None:
    run = run_with_roles(config_with(), tmp_path / "run")
    last = point_of(run, config_with(checkpoints="last", attacks=[MI_T]), "sweep/last/1")
    finished(recorded_now([run, last]))
    each: Mapping[str, Mapping[str, int]] = counted(run)
    assert each["target"] == dict.fromkeys(AUDITED, 2 * 60 * 5) | dict.fromkeys(TESTED, 2 * 60)
    at_last = counted(last)
    assert at_last["target"] == dict.fromkeys(AUDITED, 60 * 5) | dict.fromkeys(TESTED, 60)
    assert at_last["shadow"] == {role: queries // 2 for role, queries in each["shadow"].items()}


def test_a_point_lists_what_was_rejected_at_a_checkpoint_that_it_does_not_attack(tmp_path: Path) -> None:
    run = run_with_roles(config_with(), tmp_path / "run")
    last = point_of(run, config_with(checkpoints="last"), "sweep/last/1")
    passes = recorded_now([run, last])
    finished(passes)
    job = passes[0].jobs()[0]
    entry = {"source": job.source, "shard": job.item.name, "key": "0001", "reason": "undecodable"}
    storage.write_json(job.rejected_path(0), [entry])
    for of in (run, last):
        assert rejected_samples(*plan_of(of.config, of.folder.seed(0))) == [entry]


def test_what_was_asked_and_is_read_no_more_still_counts_each_image_once(tmp_path: Path) -> None:
    """A pass over roles and a part of one, on which the utility is measured, loses its attack."""
    run = run_with_roles(config_with(**PARTS), tmp_path / "run")
    passes = recorded_now([run])
    finished(passes)
    assert any({"known-member", "target-member"} <= set(planned.query.roles) for planned in passes)
    fewer = run._replace(config=config_with(attacks=[LPLA]))
    then = recorded_now([fewer])
    finished(then)
    ever = {planned.query.tag: planned for planned in [*passes, *then] if planned.query.encoder == "target"}
    assert len(ever) > len([planned for planned in then if planned.query.encoder == "target"])
    sent = sum(planned.query.queries_per_image * job.images for planned in ever.values() for job in planned.jobs())
    assert sum(counted(fewer)["target"].values()) == sent


def test_planning_and_reading_cost_an_object_store_few_requests(trained_run: Path, s3: str) -> None:
    """One to list the passes, one for each that this process has not seen; a reading opens receipts and files."""
    place = f"{s3}/passes"
    for path in storage.list_files(str(trained_run)):
        storage.copy(path, f"{place}{path.removeprefix(str(trained_run))}")
    config = config_with(checkpoints="last")
    run = Run(config, RunFolder(place))
    passes = recorded_now([run])
    jobs = [job for planned in passes for job in planned.jobs()]
    encode = EncodeChunks()
    for order in orders_of(jobs):
        for row in chunks_of(order, Source(order.reader).read):
            assert not [receipt["error"] for receipt in encode(row).to_pylist() if receipt["error"]]
    finished(passes)
    planning = [requests_of(lambda: recorded_now([run])) for _ in range(2)]
    assert planning == [{"listed": 1, "opened": len(passes)}, {"listed": 1, "opened": 0}]
    place_of_seed, judge = run.folder.seed(0), plan_of(config, run.folder.seed(0)).plan.judges[0]
    files = {
        path
        for job in jobs
        if job.encoder == "target" and job.query.roles == AUDITED
        for chunk in range(job.chunks)
        for path in job.paths(chunk)
    }
    reading = [requests_of(lambda: read(place_of_seed, judge.score.reading)) for _ in range(2)]
    assert reading == [{"listed": 1, "opened": len(files) + 1}, {"listed": 1, "opened": len(files)}]


def requests_of(act: Callable[[], object]) -> dict[str, int]:
    """Requests that list a folder, and those that read a file of features."""
    S3_REQUESTS.clear()
    act()
    asked = [request for request in S3_REQUESTS if request.startswith("GET")]
    listed = sum("/passes/" not in request for request in asked)
    return {"listed": listed, "opened": sum(f"/{FEATURES}/" in request for request in asked)}
