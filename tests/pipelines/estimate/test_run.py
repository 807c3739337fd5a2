"""An estimate counts exactly what the run then asks, scales what it timed, and leaves nothing behind."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mi_core.costs import Range
from pipelines.audit import run
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import EndpointConfig
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.draw.draw import draw
from pipelines.data.look import evenly
from pipelines.data.plans import plans_of
from pipelines.data.read.samples import Portion
from pipelines.data.read.sources import Source
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from pipelines.estimate import outline
from pipelines.estimate import run as estimate_run
from pipelines.estimate.measure import Chunk, QueryCost, Samples, Shard, SourceSample, sample_shard, sizes_of
from pipelines.estimate.measure import key as source_key
from pipelines.estimate.run import Estimate, cluster, estimate
from pipelines.extract.actor.worker import STEPS
from pipelines.extract.division.jobs import shared
from pipelines.extract.run import plan_passes
from pipelines.files import storage
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run, runs_of
from tests.conftest import config_with, small_config
from tests.pipelines.banks import with_anchors
from tests.pipelines.data.made import scanned
from tests.pipelines.tars import image_bytes, tar_bytes

SHORT = 0.5  # seconds of timing
HALVES = {"like": "target", "train_on": ["target-member", "target-nonmember"], "halves": 4}
LIRA = {"attack": "lira", "reference": "shadows", "target": "target"}
SMALLER = {"label": "30", "data.roles.shadow-member.count": 30, "data.roles.shadow-nonmember.count": 30}


def asked_by_planning(runs: list[Run]) -> dict[str, float]:
    """The oracle: roles are drawn of all images, and queries and decodes of every shard of every pass added up."""
    found = scanned(runs[0].config.data, f"{runs[0].folder.path}/scan/all")
    for config, folder in runs:
        for seed in config.seeds:
            draw(config.data, found, seed, folder.seed(seed).path)
    passes = plan_passes(plans_of(runs), None, "auto")
    jobs = [job for planned in passes for job in planned.jobs()]
    asked: dict[str, float] = {}
    for planned in passes:
        asked[planned.query.encoder] = asked.get(planned.query.encoder, 0) + planned.query.bank_queries
    for job in jobs:
        asked[job.encoder] += job.queries
    asked["decodes"] = sum(some[0].selection.count for order in shared(jobs) for some in order)
    return asked


def asked_by_outline(runs: list[Run], folder: Path) -> dict[str, float]:
    sizes = {place.seed(seed): sizes_of(config.data, {}) for config, place in runs for seed in config.seeds}
    asked: dict[str, float] = {}
    passes = outline.outline(runs, str(folder), sizes).passes
    for one in passes:
        queries = one.images * one.job.query.queries_per_image
        asked[one.job.encoder] = asked.get(one.job.encoder, 0) + queries.value
    for query in {one.job.query.tag: one.job.query for one in passes}.values():
        asked[query.encoder] += query.bank_queries
    orders = estimate_run.orders_of(passes)
    asked["decodes"] = round(sum(one.images.value * shares["decode"] for order in orders for one, shares in order), 6)
    return asked


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"seeds": [0, 1], "checkpoints": "last"},
        {"sweep": {"queries.views": [2, 4]}},
        {"sweep": {"size": [SMALLER, {"label": "whole"}]}},
        {"attacks": [{"attack": "encodermi-t", "reference": "known"}, {"attack": "feature-mi", "reference": "known"}]},
        {"attacks": [LIRA], "encoders": {**small_config()["encoders"], "shadows": HALVES}},
        {"attacks": [{"attack": "patch-similarity"}, {"attack": "encodermi-t", "count": 7}]},
        {"defenses": [{"defense": "early-stopping", "epoch": 1}, {"defense": "output-noise"}]},
        {"queries": {"views": 4, "chunk": 32, "repeats": 3}},
        with_anchors({"attack": "encodermi-t"}, {"attack": "combined", "neighbours": "5/10"}),
    ],
    ids=["plain", "seeds", "views", "sizes", "known", "halves", "count", "defenses", "repeats", "bank"],
)
def test_the_outline_counts_what_planning_on_all_images_counts(sections: dict[str, Any], tmp_path: Path) -> None:
    config = config_with(**sections)
    asked = asked_by_planning(runs_of(config, RunFolder(str(tmp_path / "run"))))
    assert min(asked.values()) > 0
    assert asked_by_outline(runs_of(config, RunFolder(str(tmp_path / "new"))), tmp_path / "outline") == asked


@pytest.fixture(scope="module")
def estimated(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Estimate, Path]:
    """The estimate of the small run, in a folder where there is nothing yet."""
    config = config_with(prices={"cpu_hour": 0.5, "query": 0.01})
    folder = tmp_path_factory.mktemp("estimates")
    return config, estimate([Run(config, RunFolder(str(folder / "runs" / "small")))], SHORT), folder


@pytest.mark.slow
def test_every_stage_is_in_the_total_and_money_follows_prices(estimated: tuple[RunConfig, Estimate, Path]) -> None:
    _, found, _ = estimated
    content = estimate_run.as_json(found)
    hours = [stage["cpu_hours"] for stage in found.stages.values()]
    assert all(0 <= one.low < one.value < one.high for one in hours)
    assert content["total"]["cpu_hours"]["value"] == pytest.approx(sum(one.value for one in hours))
    assert content["stages"]["data"]["cpu_hours"]["low"] == hours[0].low
    assert found.stages["pretrain"]["images"] == Range.exact(2 * 60 * 3.0)
    asked = found.encoders["target"]["queries"].value
    assert content["total"]["money"]["value"] == pytest.approx(0.5 * sum(one.value for one in hours) + 0.01 * asked)
    assert set(content["seconds_per_image"]) == {"target: image, views", "shadow: views", "target: image"}
    for cost in found.seconds_per_image.values():
        assert cost.chunks >= 3
        assert all(cost.seconds["digits"][step].value > 0 for step in ("decode", "forward", "commit"))


@pytest.mark.slow
def test_a_cluster_for_half_the_time_is_twice_as_large(estimated: tuple[RunConfig, Estimate, Path]) -> None:
    config, found, _ = estimated
    hours = found.encoding.high / 3600 / 10
    assert cluster(found, config.resources, hours * 1.001, (1.0, 0)).encoder_actors == 10
    small = cluster(found, config.resources, hours / 2 * 1.001, (1.0, 0))
    assert small.encoder_actors == 20
    assert 10 < small.nodes <= 10 + small.readers  # two actors of half a CPU on each node, fewer beside readers
    assert any("20 encoder actors" in line for line in estimate_run.lines(found, small))
    read = cluster(replace(found, reading=found.encoding * 8), config.resources, hours * 1.001, (1.0, 0))
    assert (read.readers, read.encoder_actors) == (80, 40)  # a run has two readers for an actor


def sample_of(images: int, seconds: tuple[float, ...], shards: int) -> SourceSample:
    """A source of some shards of which a few were sampled: 10 decoded images each, in some seconds."""
    item = Portion("part", start=0, stop=images)
    labels = {str(row): 0 for row in range(10)}
    read = [Shard(item, images, 0.1, took, labels) for took in seconds]
    return SourceSample.from_shards("pool", [item] * shards, read)


def test_hours_by_hand_count_a_rare_expensive_source_with_its_own_times(tmp_path: Path) -> None:
    data = small_config()["data"]
    large = {"kind": "noise", "options": {"count": 10, "size": 8}}
    config = config_with(data={**data, "sources": {**data["sources"], "large": large}})
    samples: Samples = {
        source_key("digits", config.data.sources["digits"]): sample_of(1000, (0.1, 0.2, 0.3, 0.4), 50),
        source_key("large", config.data.sources["large"]): sample_of(20, (40.0, 60.0), 2),
    }
    stage = estimate_run.data_stage([Run(config, RunFolder(str(tmp_path / "run")))], samples, cpus=4)
    # 50,000 images at .025 s (.01 to .04), and 40 at 5 s (4 to 6)
    assert stage["images"] == Range.exact(50_040)
    hours = stage["cpu_hours"]
    assert hours.value * 3600 == pytest.approx(1250 + 200)
    assert (hours.low * 3600, hours.high * 3600) == pytest.approx((500 + 160, 2000 + 240))
    assert stage["wall_hours"].value == pytest.approx(hours.value / 4)


def test_chunks_of_every_source_are_scaled_by_its_own_images_and_checkpoints() -> None:
    def chunk(source: str, decode: float, forward: float) -> Chunk:
        seconds = dict.fromkeys(STEPS, 0.0) | {"decode": decode, "forward": forward}
        return Chunk(source, 10, seconds, pa.table({"value": [1.0] * 10}))

    chunks = [chunk("plain", 0.1, 0.2), chunk("plain", 0.3, 0.4), chunk("large", 5, 0.2)]
    cost = QueryCost.from_chunks("target: views", chunks)
    plain = cost.per_image("plain", checkpoints=3)
    assert (plain.value, plain.low, plain.high) == pytest.approx((0.02 + 0.09, 0.01 + 0.06, 0.03 + 0.12))
    assert cost.per_image("large", checkpoints=3).value == pytest.approx(0.5 + 0.06)
    assert cost.per_image("large", checkpoints=3, shares={"decode": 0.5}).value == pytest.approx(0.25 + 0.06)
    assert (cost.chunks, cost.batch) == (3, 10)
    times = estimate_run.extract_times(Range(7200, 3600, 14_400), Range.exact(60), config_with().resources, actors=2)
    assert times["wall_hours"] == Range(1, 0.5, 2)


@pytest.mark.parametrize("rate", [None, 2.0])
def test_the_time_of_an_api_follows_its_rate_or_is_unknown(rate: float | None) -> None:
    limits = {"url": "http://127.0.0.1:1/", "requests_per_second": rate, "batch": 40, "price_per_request": 0.01}
    config = EndpointConfig.model_validate({"endpoint": {**limits, "adapter": "json", "outputs": ["backbone"]}})
    hours, told = estimate_run.endpoint_costs("target", config, 8001)
    assert hours == (0.0 if rate is None else 201 / 2 / 3600)
    assert ("is unknown" in told) == (rate is None)
    assert "at its own prices they cost 2.01," in told


SHARDS, PER_SHARD, CLASSES = 7, 12, 3


@pytest.fixture
def tars(tmp_path: Path) -> SourceConfig:
    for number in range(SHARDS):
        members = []
        for row in range(PER_SHARD + number % 3):
            name = f"{number:02d}{row:03d}"
            members += [(f"{name}.png", image_bytes(number * 100 + row)), (f"{name}.cls", str(row % CLASSES).encode())]
        (tmp_path / f"{number}.tar").write_bytes(tar_bytes(members))
    return SourceConfig(kind="shards", path=str(tmp_path / "*.tar"))


def sampled(source: SourceConfig, config: RunConfig, some: Callable[[list[Portion]], Sequence[Portion]]) -> Samples:
    items = Source(source).items()
    chosen = [sample_shard("pool", source, config.data, item) for item in some(items)]
    return {source_key("pool", source): SourceSample.from_shards("pool", items, chosen)}


def test_sizes_of_drawn_roles_lie_in_the_ranges(tars: SourceConfig, tmp_path: Path) -> None:
    roles: Mapping[str, Any] = {
        "target-member": {"from": "pool", "fraction": 0.5},
        "target-nonmember": {"from": "pool", "fraction": 0.3, "classes": [0, 1]},
        "known-member": {"from": "target-member", "fraction": 0.5},
        "known-nonmember": {"from": "target-nonmember", "fraction": 0.5, "classes": [0]},
    }
    data = {"sources": {"pool": tars.model_dump()}, "image_size": 8, "channels": 3, "roles": roles}
    encoders = {"target": {**small_config()["encoders"]["target"], "batch_size": 4}}
    config = config_with(data=data, encoders=encoders, attacks=[{"attack": "lpla", "reference": "known"}])
    read, source = scan(config.data), config.data.sources["pool"]
    found = sizes_of(config.data, sampled(source, config, evenly))
    drawn = [draw(config.data, read, seed).counts() for seed in range(30)]
    for role, size in found.items():
        mean = np.mean([counts[role] for counts in drawn])
        assert mean == pytest.approx(size.value, rel=0.2)
        assert 0.95 * size.low <= mean <= 1.05 * size.high, role
    whole = sizes_of(config.data, sampled(source, config, list))
    every = sum(PER_SHARD + number % 3 for number in range(SHARDS))
    assert whole["target-member"] == Range.exact(every / 2)


def test_a_shard_is_counted_whole_and_its_images_timed(tars: SourceConfig) -> None:
    shard = sample_shard("pool", tars, config_with().data, Source(tars).items()[2])
    assert shard.images == len(shard.labels) == PER_SHARD + 2
    assert Counter(shard.labels.values()) == {0: 5, 1: 5, 2: 4}
    assert shard.streaming > 0
    assert shard.decoding > 0
    assert [len(evenly([shard.item] * number)) for number in (1, 4, 5, 7, 1000)] == [1, 4, 3, 4, 4]


BUDGET: dict[str, Any] = {"budget": {"cpu_hours": 1e-9}}


@pytest.mark.slow
def test_above_the_budget_nothing_starts_without_yes(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "estimate", lambda runs: estimate(runs, SHORT))
    with pytest.raises(UserError, match=r"CPU-hours \(.* to .*\), more than budget.cpu_hours = 1e-09; .* --yes"):
        run.run(config_with(**BUDGET), str(tmp_path / "run"), last="data")
    assert not (tmp_path / "run" / "seed-0").exists()


@pytest.mark.slow
def test_yes_spends_and_is_asked_once(local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "estimate", lambda runs: estimate(runs, SHORT))
    folder = run.run(config_with(**BUDGET), str(tmp_path / "run"), last="data", yes=True)
    (entry,) = folder.manifest["estimates"]
    assert entry["confirmed"] is True
    assert entry["cpu_hours"]["low"] <= entry["cpu_hours"]["value"] <= entry["cpu_hours"]["high"]
    monkeypatch.setattr(run, "estimate", None)  # measuring again would fail
    run.run(config_with(**BUDGET), folder.path, last="data")
    shutil.rmtree(folder.path)
    run.run(config_with(), folder.path, last="data")  # no budget, no calibration
    assert "estimates" not in storage.read_json(f"{folder.path}/manifest.json")


def test_a_fault_before_anything_is_timed_is_told(tmp_path: Path) -> None:
    """The folders above the run may not be there yet."""
    with pytest.raises(UserError, match="no weights"), estimate_run._scratch(RunFolder(f"{tmp_path}/runs/small")):
        raise UserError("no weights")


def test_money_without_prices_is_refused() -> None:
    with pytest.raises(UserError, match=r"budget.money = 5, but prices are missing"):
        config_with(budget={"money": 5})


def test_a_source_without_a_usable_image_is_named() -> None:
    with pytest.raises(UserError, match="data.sources.pool: no usable image"):
        SourceSample.from_shards("pool", [Portion("part")], [Shard(Portion("part"), 3, 0.1, 0.1, {})])
