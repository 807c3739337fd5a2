"""The run folder: what may change between two starts, what --force clears, and hashes that tell inputs apart."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import UserError
from pipelines.files.digest import digest
from pipelines.plan.load import parse
from pipelines.run.folder import FEATURES, RunFolder, changed_keys
from tests.conftest import small_config
from tests.raising import refused

CONFIG: dict[str, Any] = {
    "name": "run",
    "seeds": [0],
    "data": {"image_size": 8},
    "encoders": {"target": {"epochs": 3}},
    "queries": {"views": 10},
    "attacks": [{"attack": "encodermi-t"}],
    "utility": {},
    "validity": {},
    "resources": {"encoder_actors": 2},
}


DEFENSES = [{"defense": "output-noise", "settings": {"scale": 0.1}}]


def with_change(**sections: Any) -> dict[str, Any]:
    return CONFIG | sections


def work(tmp_path: Path, *names: str) -> None:
    """Leave results in some folders of seed 0, and features beside it."""
    for name in names:
        place = tmp_path / "run" / ("" if name == FEATURES else "seed-0") / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "file").touch()


def opened(tmp_path: Path, config: dict[str, Any] = CONFIG, force: str | None = None) -> RunFolder:
    folder = RunFolder(str(tmp_path / "run"))
    folder.open(config, command="test", force=force)
    return folder


def test_the_same_config_continues_and_every_start_is_listed(tmp_path: Path) -> None:
    first = opened(tmp_path).manifest
    second = opened(tmp_path).manifest
    assert second["created"] == first["created"]
    assert second["config_sha256"] == digest(CONFIG)
    assert len(second["runs"]) == 2
    assert second["versions"]["torch"]


def test_a_folder_with_features_by_seed_is_refused_in_one_line(tmp_path: Path) -> None:
    opened(tmp_path)
    work(tmp_path, FEATURES)
    opened(tmp_path)
    (tmp_path / "run" / "seed-0" / FEATURES).mkdir(parents=True)
    refused(UserError, "kept features by seed; choose another --out", opened, tmp_path)


def test_a_changed_config_is_refused_with_the_changed_keys(tmp_path: Path) -> None:
    opened(tmp_path)
    work(tmp_path, "splits", "encoders")
    with pytest.raises(UserError, match=r"changed: encoders.target.epochs\. .*--force pretrain"):
        opened(tmp_path, with_change(encoders={"target": {"epochs": 4}}))
    with pytest.raises(UserError, match="data.image_size, encoders.target.epochs.*--force data"):
        opened(tmp_path, with_change(data={"image_size": 9}, encoders={"target": {"epochs": 4}}))


def test_what_no_result_rests_on_may_be_corrected(tmp_path: Path) -> None:
    opened(tmp_path)
    opened(tmp_path, with_change(data={"image_size": 9}))  # the first start failed: nothing was drawn
    work(tmp_path, "splits")
    opened(tmp_path, with_change(data={"image_size": 9}, encoders={"target": {"epochs": 4}}))
    refused(UserError, "changed: data.image_size", opened, tmp_path)


def test_what_differs_from_the_last_start_is_told_where_it_is_not_refused(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path / "run"))
    assert folder.open(CONFIG, command="test") == ""
    work(tmp_path, "splits")
    assert folder.open(with_change(resources={}), command="test") == ""
    changed = with_change(encoders={"target": {"epochs": 4}}, queries={"views": 3})
    assert folder.open(changed, command="test") == (
        "changed since the last start: encoders.target.epochs, queries.views; pretrain and what follows use it"
    )
    assert folder.open(changed, command="test") == ""


def test_name_resources_and_more_seeds_and_attacks_may_change(tmp_path: Path) -> None:
    opened(tmp_path)
    work(tmp_path, "splits", "attacks")
    more = [*CONFIG["attacks"], {"attack": "lpla"}]
    opened(tmp_path, with_change(name="new", resources={}, attacks=more, seeds=[0, 1]))
    refused(UserError, "changed: attacks", opened, tmp_path, with_change(attacks=[{"attack": "lpla"}], seeds=[0, 1]))


def test_a_defense_may_be_added_and_no_encoder_changed(tmp_path: Path) -> None:
    opened(tmp_path)
    work(tmp_path, "splits", "encoders", "attacks")
    plain = CONFIG["encoders"]["target"]
    defended = {"target+noise-0.5": {**plain, "start": "target", "defends": "target", "defense": "additive-gaussian"}}
    more = [*CONFIG["attacks"], {"attack": "lpla", "target": "target+noise-0.5"}]
    opened(tmp_path, with_change(encoders={"target": plain, **defended}, attacks=more))
    other = {"target+noise-0.5": {**defended["target+noise-0.5"], "defense": "additive-laplace"}}
    with pytest.raises(UserError, match="changed: encoders.target"):
        opened(tmp_path, with_change(encoders={"target": plain, **other}, attacks=more))
    with pytest.raises(UserError, match="changed: encoders"):
        opened(tmp_path, with_change(encoders={"target": plain, **defended, "second": plain}, attacks=more))


def test_an_attack_that_is_added_to_defenses_moves_results_which_is_told(tmp_path: Path) -> None:
    """Results are named by the position of their attack, and the primary attack is a position."""
    opened(tmp_path, parse(small_config(attacks=[{"attack": "lpla"}], defenses=DEFENSES), "small.yaml").plain())
    work(tmp_path, "splits", "features", "attacks")
    both = [{"attack": "lpla"}, {"attack": "encodermi-t"}]
    more = parse(small_config(attacks=both, defenses=DEFENSES), "small.yaml").plain()
    told = r"changed: attacks: every defense repeats all attacks behind them, .* numbers\. .*--force attack"
    refused(UserError, told, opened, tmp_path, more)
    another = parse(small_config(attacks=both[1:], defenses=DEFENSES), "small.yaml").plain()
    refused(UserError, r"changed: attacks\. Choose", opened, tmp_path, another)
    opened(tmp_path, more, force="attack")
    left = {path.parent.name for path in (tmp_path / "run").rglob("file")}
    assert left == {"splits", "features"}


def test_force_clears_that_stage_and_later_ones_only(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    work(tmp_path, "splits", "encoders", "features", "attacks", "attribute-inference", "utility", "validity")
    opened(tmp_path, with_change(queries={"views": 3}), force="extract")
    left = sorted(path.parent.name for path in (tmp_path / "run").rglob("file"))
    assert left == ["encoders", "splits"]
    refused(UserError, "--force pretrain", opened, tmp_path, with_change(encoders={}), force="extract")
    assert folder.manifest["runs"][-1]["forced"] == "extract"


def test_points_and_trials_share_the_features_of_their_run() -> None:
    run, point, trial = (
        RunFolder(path, root).seed(3)
        for path, root in (("a/run", ""), ("a/run/sweep/x/2", "a/run"), ("a/run/tune/search/f00", "a/run"))
    )
    assert run.store == point.store == trial.store == "a/run/features"
    assert [(one.run, one.trial) for one in (run, point, trial)] == [
        ("", ""), ("sweep/x/2", ""), ("tune/search/f00", "tune/search/f00"),
    ]  # fmt: skip


def test_force_clears_seeds_that_were_dropped_too(tmp_path: Path) -> None:
    """A seed that comes back brings no results of other settings."""
    opened(tmp_path, with_change(seeds=[1, 0]))
    work(tmp_path, "splits", "attacks")
    opened(tmp_path, with_change(seeds=[1], queries={"views": 3}), force="data")
    assert not list((tmp_path / "run").rglob("file"))
    opened(tmp_path, with_change(seeds=[1, 0], queries={"views": 3}))


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    refused(UserError, "holds no run; choose another --out", opened, tmp_path)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_timings_add_up_over_starts(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for _ in range(2):
        with folder.timed("extract"):
            pass
    with pytest.raises(ZeroDivisionError), folder.timed("attack"):
        _ = 1 / 0
    assert set(folder.manifest["seconds"]) == {"extract", "attack"}


def test_digests_and_changed_keys() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert changed_keys({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "d": 2}}, "x") == ["x.a.c", "x.a.d"]


def test_a_run_folder_that_was_deleted_meanwhile_is_told_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path / "run"))
    with pytest.raises(UserError, match=f"{folder.path} was deleted while the run was going on"), folder.hold_lock():
        folder.open(CONFIG, command="test")
        with folder.timed("pretrain"):
            shutil.rmtree(folder.path)
            work(tmp_path, "encoders")  # what a worker writes
            (tmp_path / "run" / "seed-0" / "splits" / "roles.json").read_bytes()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_took_the_place_of_a_run_is_kept(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path / "run"))
    with pytest.raises(UserError, match="was deleted"), folder.hold_lock():
        folder.open(CONFIG, command="test")
        shutil.rmtree(folder.path)
        work(tmp_path, "encoders")
        (tmp_path / "run" / "thesis.tex").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]
    # another error in a folder that is there stays itself
    with pytest.raises(OSError, match="disk"), folder.hold_lock():
        (tmp_path / "run" / "config.yaml").touch()
        (tmp_path / "run" / ".lock").unlink()
        raise OSError("disk")


def test_a_start_removes_what_killed_writes_left(tmp_path: Path) -> None:
    left = tmp_path / "run" / "figures" / ".tmp-0123"
    left.parent.mkdir(parents=True)
    left.touch()
    with RunFolder(str(tmp_path / "run")).hold_lock():
        assert not left.exists()


@pytest.mark.parametrize("before", ["auto", "float32"])
def test_a_folder_goes_on_where_the_device_means_the_same_precision(tmp_path: Path, before: str) -> None:
    data = {"image_size": 8, "decode": "full"}
    opened(tmp_path, with_change(data=data, queries={"precision": before}))
    work(tmp_path, "splits", "features")
    now = with_change(data=data, queries={"precision": "auto", "compile": False})
    opened(tmp_path, now)
    refused(UserError, r"changed: queries.precision\.", opened, tmp_path, now | {"resources": {"gpus_per_actor": 1}})
    with pytest.raises(UserError, match=r"changed: data.decode\."):
        opened(tmp_path, now | {"data": {"image_size": 8, "decode": "scaled"}})


def test_a_gpu_s_features_go_on_without_it_where_the_precision_is_said(tmp_path: Path) -> None:
    opened(tmp_path, with_change(queries={"precision": "auto"}, resources={"gpus_per_actor": 1}))
    work(tmp_path, "splits", "features")
    opened(tmp_path, with_change(queries={"precision": "bfloat16"}))
    refused(UserError, r"changed: queries.precision\.", opened, tmp_path, with_change(queries={"precision": "float32"}))
