"""The self-test: what is planted, the record of a case, and all verdicts on the digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from mi_core.images import decode
from mi_core.metrics.delong import auc
from mi_core.streams import pixel_streams
from mi_core.validity.verdict import CHOICE
from pipelines.audit import planted, selftest
from pipelines.audit.chosen import Chooser
from pipelines.audit.selftest import promise_outcome, verdict_outcome
from pipelines.config.run_config import RunConfig
from pipelines.data.draw.draw import draw
from pipelines.data.scan.scan import scan
from pipelines.errors import UserError
from pipelines.plan.load import load, parse
from pipelines.plan.rules import ThreatModel
from pipelines.run.folder import RunFolder
from tests.conftest import small_config
from tests.pipelines.tars import image_bytes, tar_bytes

pytestmark = pytest.mark.ray

ROLES = ("target-member", "target-nonmember", "shadow-member", "shadow-nonmember")


def config_of(count: int = 150, **data: Any) -> RunConfig:
    config = small_config()
    config["data"] |= data
    for role in ROLES:
        config["data"]["roles"][role]["count"] = count
    config["data"]["roles"]["known-nonmember"]["count"] = 20
    return parse(config, "small.yaml")


def test_a_case_names_its_report_and_is_right_where_the_verdict_is_as_planted(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"validity": {"verdict": "leak", "attack_auc": {"value": 0.9}}}))
    assert verdict_outcome("leak", RunFolder(str(tmp_path))).as_json() == {
        "name": "leak",
        "planted": "an encoder trained on the members",
        "expected": "leak",
        "verdict": "leak",
        "right": True,
        "report": f"{tmp_path}/report.html",
        "attack_auc": {"value": 0.9},
    }
    assert not verdict_outcome("size", RunFolder(str(tmp_path))).right


def test_a_promise_is_judged_by_the_entry_of_its_defense(tmp_path: Path) -> None:
    def entry(label: str, verdict: str, epsilon: float) -> dict[str, Any]:
        told = {"target": f"target+{label}", "promised": {"epsilon": 1.0}, "p_value": 0.5}
        return told | {"epsilon": epsilon, "verdict": verdict}

    entries = [entry("honest", "not-refuted", 0.0), entry("broken", "refuted", 2.5)]
    (tmp_path / "report.json").write_text(json.dumps({"dp_audit": entries}))
    cases = [promise_outcome(f"{label}-dp", RunFolder(str(tmp_path)), label) for label in ("honest", "broken")]
    assert [(one.verdict, one.right, one.figures["epsilon"]) for one in cases] == [
        ("not-refuted", True, 0.0),
        ("refuted", True, 2.5),
    ]
    (tmp_path / "selftest.json").write_text(json.dumps({"passed": True, "cases": [one.as_json() for one in cases]}))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(selftest.table(str(tmp_path)))
    assert "a promise of epsilon 1, without noise" in capture.get() and "epsilon at least 2.500" in capture.get()


def test_copies_are_right_where_more_of_them_are_memorised_more(tmp_path: Path) -> None:
    def judged(once: float, often: float, low: float) -> selftest.Outcome:
        names = ["copies/000-01-00", *(f"copies/001-16-{copy:02d}" for copy in range(16))]
        table = pa.table({"id": names, "memorisation": [once, *[often] * 16]})
        pq.write_table(table, tmp_path / "memorisation.parquet")
        entry = {"file": "memorisation.parquet", "mean": {"value": often, "ci95": [low, 1.0]}}
        (tmp_path / "report.json").write_text(json.dumps({"memorisation": [entry]}))
        return selftest.copies_outcome(RunFolder(str(tmp_path)))

    assert judged(0.1, 0.2, 0.05).right
    assert judged(0.1, 0.2, 0.05).figures == {"memorised_1": 0.1, "memorised_16": pytest.approx(0.2)}
    assert not judged(0.2, 0.1, 0.05).right
    assert not judged(0.1, 0.2, -0.01).right


def test_copies_differ_by_a_bit_and_are_drawn_together(tmp_path: Path) -> None:
    config = config_of()
    splits = draw(config.data, scan(config.data), 0)
    copied = planted.Planter(config).copied(planted.Planter(config).copies(splits, str(tmp_path)))
    drawn = draw(copied.data, scan(copied.data), 0)
    assert drawn.duplicates_removed == 0
    members, others = (drawn.ids([role]) for role in ("target-member", "target-nonmember"))
    assert len(members) + len(others) == 24 * (1 + 16)
    assert not {name.rpartition("-")[0] for name in members} & {name.rpartition("-")[0] for name in others}
    images = {name: decode(Path(path).read_bytes(), copied.data.decoder()) for name, path in files_of(tmp_path)}
    first = next(name for name in sorted(images) if "-16-" in name)
    other = images[first.replace("-16-00", "-16-15")].astype(int)
    assert np.abs(images[first].astype(int) - other).sum() == 1


def files_of(folder: Path) -> list[tuple[str, str]]:
    return [(path.stem, str(path)) for path in sorted((folder / "images").iterdir())]


def test_the_encoder_after_unlearning_saw_what_the_truth_says() -> None:
    config = planted.Planter(config_of()).trained()
    assert ThreatModel(config).members_of("target") == {"target-member"}
    assert ThreatModel(config).members_of("shadow") == {"shadow-member"}  # trained anew without them
    assert ThreatModel(config).members_of(planted.TUNED) == {"target-member", "shadow-member"}
    assert config.encoders[planted.TUNED].train_on == ("shadow-member",)
    assert config.encoders[planted.KEEPING].train_on == ("shadow-member", "known-member")
    known = config.data.roles["known-member"]
    assert (known.source_name, known.fraction) == ("target-member", 2 * planted.KEPT)
    _, forgetting = config.sweep["audited"]
    assert [ThreatModel(config).members_of(name) for name in forgetting["validity.references"]] == [
        {"shadow-nonmember"}
    ]
    assert [ThreatModel(config).references_of(attack) for attack in config.attacks[:2]] == [("shadow",), ("fresh",)]


def test_canaries_take_the_place_of_audited_images() -> None:
    config = planted.Planter(config_of(count=440)).promising(10)
    assert config.data.roles["canary"].count == 400
    assert ThreatModel(config).promising_encoders == {"target+honest", "target+broken"}
    assert planted.Planter(config_of(count=150)).canaries == 200
    assert planted.Planter(config_of(count=149)).canaries == 0  # too few to refute a promise
    more = {"sources": {"digits": {"kind": "digits"}}, "group_by": "json:person"}
    assert planted.Planter(config_of(count=150, **more)).canaries == 0  # no coin for each of a group


def test_classes_are_those_of_the_source_or_none_where_an_image_has_none(tmp_path: Path) -> None:
    assert selftest.classes_of(config_of(), RunFolder(str(tmp_path / "digits"))) == 10
    members = [(f"s{seed:04d}.png", image_bytes(seed)) for seed in range(5)]
    (tmp_path / "0.tar").write_bytes(tar_bytes([*members, ("s0004.cls", b"3")]))
    config = config_of(sources={"digits": {"kind": "shards", "path": str(tmp_path)}})
    assert selftest.classes_of(config, RunFolder(str(tmp_path / "shards"))) == 0


@pytest.mark.parametrize(
    ("role", "message"),
    [("known-nonmember", "needs the role known-nonmember"), ("shadow-nonmember", "needs the role shadow-nonmember")],
)
def test_what_cannot_be_planted_in_is_told(role: str, message: str) -> None:
    config = config_of()
    left = {name: one for name, one in config.data.roles.items() if name != role}
    with pytest.raises(UserError, match=message):
        planted.Planter(config.model_copy(update={"data": config.data.model_copy(update={"roles": left})}))


def test_a_forger_gains_under_the_views_that_he_guessed_and_under_no_others(finished_run: Path) -> None:
    chooser = chooser_of(finished_run)
    for guessed in (chooser.streams_by_name, chooser.streams_by_guess):
        files = list(chooser.forge(guessed))
        candidate = np.array([side == "candidates" for side, _, _ in files])
        images = np.stack([pixels for _, _, pixels in files])
        names, shown = [name for _, name, _ in files], torch.from_numpy(images)
        assert auc(chooser.scores("shadow", images, guessed(shown, names)), candidate).low > 0.6
        found = auc(chooser.scores("shadow", images, pixel_streams("drawn", 0, "query", shown)), candidate)
        assert found.low < 0.5 < found.high


def test_chosen_images_are_audited_by_choice_beside_trained_references(finished_run: Path, tmp_path: Path) -> None:
    chooser = chooser_of(finished_run)
    config = chooser.audit("bursts", f"{tmp_path}/bursts")
    assert (
        ThreatModel(config).groups_by == CHOICE
        and all(ThreatModel(config).is_trained(name) for name in ThreatModel(config).classifying_references)
        and len(ThreatModel(config).classifying_references) == 4
    )
    names = sorted(path.stem for path in (tmp_path / "bursts/candidates").iterdir())
    assert len(names) == 60 and len({name.partition("-")[0] for name in names}) == 3
    controls = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "bursts/controls").iterdir()}
    assert len(controls) == 60
    assert chooser.audit("bursts", f"{tmp_path}/bursts") == config
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "bursts/controls").iterdir()} == controls


def chooser_of(run: Path) -> Chooser:
    return Chooser(load(f"{run}/config.yaml"), RunFolder(str(run)).seed(0))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_verdict_on_the_digits_is_right(local_ray: None, tmp_path: Path) -> None:
    assert selftest.run(load("configs/quickstart.yaml"), str(tmp_path))
    cases = json.loads((tmp_path / "selftest.json").read_text())["cases"]
    assert {case["name"] for case in cases} == set(selftest._CASES)
