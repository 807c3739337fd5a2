"""A search that hides attributes: what a trial measures, on which images, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mi_core.report.contents import schema
from pipelines.attack.inference import inference_path
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import plan_of
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.load import load, parse
from pipelines.run.folder import RunFolder
from pipelines.run.points import Run
from pipelines.tune import run as search
from pipelines.tune.trial import Record, Trial, measure
from tests.conftest import small_config
from tests.pipelines import staged

pytestmark = pytest.mark.ray

SCALE = "defenses.0.settings.scale"
INFERRED = {"attribute": "digit", "output": "backbone", "test": ["target-nonmember", "shadow-nonmember"]}


def raw(hides: str = "attributes", **sections: Any) -> dict[str, Any]:
    config = small_config(
        attacks=[{"attack": "lpla", "reference": "known", "outputs": ["backbone"]}],
        attribute_inference=[INFERRED, INFERRED | {"variant": "linear"}],
        defenses=[{"defense": "output-noise", "label": "noise", "settings": {"scale": 0.1}}],
        checkpoints="last",
        tune={"search": {SCALE: [0.001, 1000.0]}, "hides": hides},
    )
    config["data"]["attributes"] = {"digit": {"from": "class", "values": list(range(10))}}
    return config | sections


def config_of(hides: str = "attributes", **sections: Any) -> RunConfig:
    return parse(raw(hides, **sections), "attributes.yaml")


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that is judged on all images, whose search has not begun."""
    folder = staged.prepare(raw(), trained_run, tmp_path_factory.mktemp("attributes") / "run")
    staged.judge(config_of(), folder)
    return Run(config_of(), RunFolder(str(folder)))


def record(run: Run, target: str, fold: str = "search", **parameters: Any) -> Record:
    *_, last = measure(Trial(run, target, parameters, fold))
    assert "fault" not in last
    return last


def right(estimate: dict[str, Any]) -> float:
    return estimate["value"] * estimate["n"]  # type: ignore[no-any-return]


@pytest.mark.slow
def test_folds_part_the_images_whose_attribute_is_inferred(run: Run) -> None:
    """The adversary learns from the same images for both, so those that it is right for add up to those of the run."""
    halves = [record(run, "target", fold)["inferences"] for fold in ("search", "final")]
    planned = plan_of(run.config, run.folder.seed(0))
    whole = [
        storage.read_json(inference_path(item, planned.folder))
        for item in planned.plan.inferences
        if item.settings.target == "target"
    ]
    assert [(row["attribute"], row["output"]) for row in halves[0]] == [("digit", "backbone")] * 2
    assert len({row["settings"] for row in halves[0]}) == 2
    for first, second, both in zip(*halves, whole, strict=True):
        assert (first["accuracy"]["n"], second["accuracy"]["n"], both["accuracy"]["n"]) == (60, 60, 120)
        for part in ("accuracy", "majority"):
            assert right(first[part]) + right(second[part]) == pytest.approx(right(both[part]))
    roles = INFERRED["test"]
    folds = [Splits.load(run.folder.seed(0).path).fold(roles, name, 0) for name in ("search", "final")]
    assert not folds[0] & folds[1]


def test_the_leak_is_that_of_the_strongest_inference_and_noise_hides_it(run: Run) -> None:
    clear, noisy = (record(run, "target+noise", **{SCALE: scale}) for scale in (0.001, 1000.0))
    for one in (clear, noisy):
        ends = {row["settings"]: row["accuracy"]["ci95"][1] for row in one["inferences"]}
        assert one["leak"] == max(ends.values())
        assert one["strongest"] == f"digit, backbone, {max(ends, key=lambda name: ends[name])}"
        assert [row["attack"] for row in one["attacks"]] == ["lpla"]  # told beside it
    assert max(row["accuracy"]["value"] for row in noisy["inferences"]) < 0.35
    assert clear["leak"] > noisy["leak"] + 0.2
    assert not list(Path(run.folder.path).rglob("tune/**/map-*"))  # no trial draws


@pytest.mark.slow
def test_a_whole_search_chooses_by_what_is_inferred(run: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(run.folder.path, tmp_path / "run")
    audit.run(run.config, str(folder))
    report = storage.read_json(f"{folder}/report.json")
    jsonschema.validate(report, schema())
    found = report["tuning"]
    assert (found["hides"], found["trials"]) == ("attributes", 2)
    ends = {row["parameters"][SCALE]: row["leak"] for row in found["rows"]}
    assert ends[1000.0] < ends[0.001]
    winner = found["winner"]
    assert winner["search"]["leak"] == max(row["accuracy"]["ci95"][1] for row in winner["search"]["inferences"])
    page = (folder / "report.html").read_text()
    assert "strongest inference" in page and "guessing is right for" in page


def test_a_search_of_membership_infers_nothing(run: Run) -> None:
    of_members = Trial(Run(config_of("membership"), run.folder), "target+noise", {SCALE: 0.001}, "search")
    assert of_members.config().attribute_inference == ()
    hidden = Trial(run, "target+noise", {SCALE: 0.001}, "search")
    assert [one.target for one in hidden.config().attribute_inference] == ["target+noise"] * 2
    assert hidden.question != of_members.question  # neither takes the trials of the other for its own


def test_what_is_hidden_has_to_be_inferred() -> None:
    with pytest.raises(UserError, match=r"tune.hides = 'attributes', but none is inferred from target\+noise; add to"):
        config_of(attribute_inference=[])
    with pytest.raises(UserError, match="tune.hides = 'faces': allowed is membership or attributes"):
        config_of("faces")


def test_a_defense_of_attributes_is_told_from_one_of_membership() -> None:
    config = load("configs/papers/contrastiveleaks-defenses-cifar10-cpu.yaml", ["data.sources.unlabeled.path=x"])
    kinds = {name.partition("+")[2]: search.hides_attributes_by(encoder) for name, encoder in config.encoders.items()}
    assert {name: kind for name, kind in kinds.items() if kind} == {"olympus": "olympus", "attriguard": "attriguard"}
    encoders = small_config()["encoders"]
    encoders["target"] |= {"objective": "talos", "attribute": "digit", "parameters": {"values": 10}}
    talos = config_of("membership", encoders=encoders, defenses=[], tune=None)
    assert search.hides_attributes_by(talos.encoders["target"]) == "talos"
