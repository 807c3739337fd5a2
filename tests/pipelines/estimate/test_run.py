"""An estimate counts exactly what the run then asks, brackets what it sampled, and leaves nothing behind."""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mi_core.costs import Quantity
from pipelines.audit import run as audit
from pipelines.audit import spending
from pipelines.config.load import parse
from pipelines.config.run_config import RunConfig
from pipelines.config.sources import SourceConfig
from pipelines.data.draw import draw
from pipelines.data.scan import scan
from pipelines.data.sources import Source
from pipelines.errors import UserError
from pipelines.estimate import outline
from pipelines.estimate import view as estimate_view
from pipelines.estimate.run import Estimate, cluster, estimate
from pipelines.estimate.source_samples import ShardSample, SourceSample, evenly, sample_shard, sizes_of
from pipelines.extract import run as extract
from pipelines.extract.ledger import count_queries
from pipelines.files import storage
from pipelines.pretrain import run as pretrain
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run, runs_of
from tests.conftest import small_config
from tests.pipelines.tars import image_bytes, tar_bytes

SHORT = 0.5  # seconds of timing
HALVES = {"like": "target", "train_on": ["target-member", "target-nonmember"], "halves": 4}
LIRA = {"attack": "lira", "reference": "shadows", "target": "target"}
SMALLER = {"label": "30", "data.roles.shadow-member.count": 30, "data.roles.shadow-nonmember.count": 30}


def config_with(**sections: Any) -> RunConfig:
    return parse(small_config(**sections), "small.yaml")


def asked_by_planning(runs: list[Run]) -> dict[str, float]:
    """The oracle: roles are drawn of all images, encoders described, and the queries of every shard added up."""
    found = scan(runs[0][0].data)
    for config, folder in runs:
        for seed in config.seeds:
            draw(config.data, found, seed).save(folder.seed(seed).path)
        for job in pretrain.training_jobs(config, folder):
            outline._describe(job)
    _, first = extract.plan(runs)
    asked: dict[str, float] = {}
    for job in first.values():
        asked[job.encoder] = asked.get(job.encoder, 0) + job.queries
    return asked


def asked_by_outline(runs: list[Run], folder: Path) -> dict[str, float]:
    sizes = {place.seed(seed): sizes_of(config.data, {}) for config, place in runs for seed in config.seeds}
    asked: dict[str, float] = {}
    for one in outline.outline(runs, str(folder), sizes).passes:
        asked[one.job.encoder] = asked.get(one.job.encoder, 0) + one.queries.value
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
    ],
    ids=["plain", "seeds", "views", "sizes", "known", "halves", "count", "defenses", "repeats"],
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
    return config, estimate([(config, RunFolder(str(folder / "runs" / "small")))], SHORT), folder


@pytest.mark.slow
def test_queries_are_those_that_the_run_then_makes(
    estimated: tuple[RunConfig, Estimate, Path], finished_run: Path
) -> None:
    config, found, _ = estimated
    ledger: dict[str, list[int]] = {}
    for encoder, _, images, queries in count_queries(config, RunFolder(str(finished_run)).seed(0)):
        entry = ledger.setdefault(encoder, [0, 0])
        entry[0] += images
        entry[1] += queries
    assert {name: asked.queries for name, asked in found.encoders.items()} == {
        name: Quantity(float(queries)) for name, (_, queries) in ledger.items()
    }
    done = RunFolder(str(finished_run)).manifest["extraction"]
    assert found.stages["extract"].queries.value == sum(entry["views"] for entry in done)
    assert found.stages["extract"].images.value == sum(entry["images"] for entry in done)


@pytest.mark.slow
def test_an_estimate_leaves_nothing_behind(estimated: tuple[RunConfig, Estimate, Path]) -> None:
    assert list(estimated[2].iterdir()) == []


@pytest.mark.slow
def test_stored_bytes_are_those_of_the_finished_run(
    estimated: tuple[RunConfig, Estimate, Path], finished_run: Path
) -> None:
    files = (finished_run / "seed-0" / "features").rglob("epoch-*/**/*.parquet")
    stored = sum(path.stat().st_size for path in files)
    assert estimated[1].stages["extract"].gigabytes.value * 1e9 == pytest.approx(stored, rel=0.3)


@pytest.mark.slow
def test_every_stage_is_in_the_total_and_money_follows_prices(estimated: tuple[RunConfig, Estimate, Path]) -> None:
    _, found, _ = estimated
    content = estimate_view.as_json(found)
    hours = [stage.cpu_hours for stage in found.stages.values()]
    assert all(0 <= one.interval()[0] < one.value < one.interval()[1] for one in hours)
    assert content["total"]["cpu_hours"]["value"] == pytest.approx(sum(one.value for one in hours))
    assert found.stages["pretrain"].images == Quantity(2 * 60 * 3.0)
    asked = found.encoders["target"].queries.value
    assert content["total"]["money"]["value"] == pytest.approx(0.5 * sum(one.value for one in hours) + 0.01 * asked)
    assert set(content["seconds_per_image"]) == {"target: clean, views", "shadow: views", "target: clean"}
    for cost in found.query_costs.values():
        assert len(cost.chunks) >= 3
        assert all(cost.step(step).value > 0 for step in ("decode", "forward", "commit"))


@pytest.mark.slow
def test_a_cluster_for_half_the_time_is_twice_as_large(estimated: tuple[RunConfig, Estimate, Path]) -> None:
    config, found, _ = estimated
    hours = found.encoding.interval()[1] / 3600 / 10
    assert cluster(found, config, hours * 1.001, (1.0, 0)).encoder_actors == 10
    small = cluster(found, config, hours / 2 * 1.001, (1.0, 0))
    assert small.encoder_actors == 20
    assert 10 < small.nodes <= 10 + small.readers  # two actors of half a CPU on each node, fewer beside readers


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


def sampled(source: SourceConfig, config: RunConfig, shards: int) -> SourceSample:
    items = Source(source).items()
    chosen = [sample_shard("pool", source, item, config.data.decoder(), {}, None) for item in evenly(items, shards)]
    return SourceSample("pool", source, len(items), None, tuple(chosen))


def test_sizes_of_drawn_roles_lie_in_the_intervals(tars: SourceConfig, tmp_path: Path) -> None:
    roles: Mapping[str, Any] = {
        "target-member": {"from": "pool", "fraction": 0.5},
        "target-nonmember": {"from": "pool", "fraction": 0.3, "classes": [0, 1]},
        "known-member": {"from": "target-member", "fraction": 0.5},
        "known-nonmember": {"from": "target-nonmember", "fraction": 0.5, "classes": [0]},
    }
    data = {"sources": {"pool": tars.model_dump()}, "image_size": 8, "channels": 3, "roles": roles}
    encoders = {"target": {**small_config()["encoders"]["target"], "batch_size": 4}}
    config = config_with(data=data, encoders=encoders, attacks=[{"attack": "lpla", "reference": "known"}])
    scanned = scan(config.data)
    found = sizes_of(config.data, {"pool": sampled(tars, config, 4)})
    drawn = [draw(config.data, scanned, seed).counts() for seed in range(100)]
    for role, size in found.items():
        low, high = size.interval()
        inside = np.mean([low <= counts[role] <= high for counts in drawn])
        assert inside >= 0.9, (role, low, high)
        assert np.mean([counts[role] for counts in drawn]) == pytest.approx(size.value, rel=0.2)
    whole = sizes_of(config.data, {"pool": sampled(tars, config, SHARDS)})
    every = sum(PER_SHARD + number % 3 for number in range(SHARDS))
    assert whole["target-member"].value == every / 2
    assert whole["target-member"].variance == pytest.approx(every / 4)  # that of the draw alone


def test_a_shard_is_counted_whole_and_its_images_timed(tars: SourceConfig) -> None:
    config = config_with()
    shard = sample_shard("pool", tars, Source(tars).items()[2], config.data.decoder(), {}, None)
    assert shard.count == PER_SHARD + 2
    assert shard.classes == {0: 5, 1: 5, 2: 4}
    assert sum(images for _, images in shard.read) == PER_SHARD + 1  # all but the first, which pays for the opening
    assert len(shard.labels) == PER_SHARD + 2


BUDGET: dict[str, Any] = {"budget": {"cpu_hours": 1e-9}}


@pytest.mark.slow
def test_above_the_budget_nothing_starts_without_yes(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending, "estimate", lambda runs: estimate(runs, SHORT))
    with pytest.raises(UserError, match=r"CPU-hours, more than budget.cpu_hours = 1e-09; .* --yes"):
        audit.run(config_with(**BUDGET), str(tmp_path / "run"), last="data")
    assert not (tmp_path / "run" / "seed-0").exists()


@pytest.mark.slow
def test_yes_spends_and_is_asked_once(local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "estimate", lambda runs: estimate(runs, SHORT))
    folder = audit.run(config_with(**BUDGET), str(tmp_path / "run"), last="data", yes=True)
    (entry,) = folder.manifest["estimates"]
    assert entry["confirmed"] is True
    assert entry["cpu_hours"]["ci95"][0] <= entry["cpu_hours"]["value"]
    monkeypatch.setattr(spending, "estimate", None)  # measuring again would fail
    audit.run(config_with(**BUDGET), folder.path, last="data")
    shutil.rmtree(folder.path)
    audit.run(config_with(), folder.path, last="data")  # no budget, no calibration
    assert "estimates" not in storage.read_json(f"{folder.path}/manifest.json")


def test_money_without_prices_is_refused() -> None:
    with pytest.raises(UserError, match=r"budget.money = 5, but prices are missing"):
        config_with(budget={"money": 5})


def test_a_source_without_a_usable_image_is_named() -> None:
    source = SourceConfig(kind="digits")
    (item, *_) = Source(source).items()
    empty = SourceSample("pool", source, 1, None, (ShardSample("pool", item, {None: 3}, (), (), {}),))
    with pytest.raises(UserError, match="data.sources.pool: no usable image"):
        _ = empty.usable
    with pytest.raises(UserError, match="too few images to time"):
        _ = empty.reading


def test_no_number_is_cut_on_a_narrow_terminal() -> None:
    columns = ["images", "queries", "CPU time", "GPU time", "here", "stored", "money"]
    cells = [f"1,234,56{place} ±12%" for place in range(len(columns))]
    table = estimate_view.Wide("stage", columns, [("extract", cells), ("total", cells)], total=True)
    for width in (40, 80, 120):
        written = io.StringIO()
        Console(width=width, file=written, markup=False).print(table)
        lines = written.getvalue().splitlines()
        assert all(sum(cell in line for line in lines) == 2 for cell in cells)
        assert all(any(column in line for line in lines) for column in columns)
        assert max(map(len, lines)) <= width
