"""Which encoders of a run are composed: those that promise something about the same images, and no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mi_core.defenses.composition import composed, release_of
from mi_core.report.contents import schema
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.encoders.stored import describe, write_record
from pipelines.plan.load import parse
from pipelines.report.parts.composition import composition
from pipelines.report.parts.finished import FinishedRun
from pipelines.run.folder import RunFolder
from tests.conftest import small_config
from tests.mi_core.report.page.page import Page
from tests.pipelines.report.made import made_run

CLASSIFIER = {
    "objective": "supervised",
    "backbone": "conv4",
    "epochs": 2,
    "batch_size": 12,
    "parameters": {"classes": 10},
}
NOISE: dict[str, Any] = {
    "defense": "additive-gaussian",
    "adaptive": False,
    "settings": {"head": "convex", "epsilon": 1.0},
}


def noise(label: str, encoder: str, **settings: Any) -> dict[str, Any]:
    return NOISE | {"label": label, "of": [encoder], "settings": NOISE["settings"] | settings}


def sections(*defenses: dict[str, Any], **train_on: Any) -> dict[str, Any]:
    """Classifiers on the given roles, all attacked, and their defenses."""
    encoders = {name: {**CLASSIFIER, "train_on": roles} for name, roles in train_on.items()}
    return {
        "encoders": {**encoders, "shadow": {**CLASSIFIER, "train_on": "shadow-member"}},
        "queries": {"views": 2, "chunk": 64, "outputs": ["logits"]},
        "attacks": [{"attack": "metric-loss", "target": name, "reference": "shadow"} for name in train_on],
        "defenses": list(defenses),
    }


def told(epsilon: float, sensitivity: float = 0.5, **more: float) -> dict[str, float]:
    """What Gaussian noise reports of itself."""
    return {"scale": 1.0, "epsilon": epsilon, "delta": 1e-5, "sensitivity": sensitivity, **more}


def made(
    place: Path, numbers: dict[str, list[dict[str, float]]], *defenses: dict[str, Any], **train_on: Any
) -> tuple[RunConfig, RunFolder]:
    """A run folder without Ray whose defended encoders report the given numbers, seed by seed."""
    seeds = list(range(len(next(iter(numbers.values())))))
    chosen = sections(*defenses, **train_on) | {"seeds": seeds}
    folder = RunFolder(str(made_run(place, **chosen)))
    for name, of_seeds in numbers.items():
        for seed, mine in zip(seeds, of_seeds, strict=True):
            here = folder.seed(seed)
            write_record(here, replace(describe(here, name).record, defense=mine))
    return parse(small_config(**chosen), "small.yaml"), folder


def test_two_heads_of_the_same_images_are_composed_and_others_are_not(tmp_path: Path) -> None:
    numbers = {
        "target+a": [told(1.9)],
        "target+b": [told(1.2, 0.3)],
        "target+bare": [{"scale": 1.0}],
        "other+c": [told(1.9)],
    }
    defenses = [noise("a", "target"), noise("b", "target"), noise("bare", "target"), noise("c", "other")]
    config, folder = made(tmp_path / "run", numbers, *defenses, target="target-member", other="shadow-nonmember")
    (entry,) = composition(FinishedRun.at(config, folder))
    assert [row.encoder for row in entry.encoders] == ["target+a", "target+b"]
    both = [release_of(config.encoders[name].method(0), numbers[name][0]) for name in ("target+a", "target+b")]
    expected = composed([release for release in both if release is not None])
    assert (entry.epsilon, entry.delta, entry.basic) == (expected.epsilon, 2e-5, pytest.approx(3.1))
    assert (entry.images, entry.seeds, entry.method, entry.adjacency) == (
        60,
        (0,),
        "gaussian",
        "replace-one",
    )
    assert entry.hint is None and entry.gamma is None


def test_images_that_are_a_part_of_others_are_shared(tmp_path: Path) -> None:
    """A role may be a part of another one; a set of encoders within another set has no entry of its own."""
    numbers = {name: [told(1.0)] for name in ("whole+w", "part+p", "more+m")}
    defenses = [noise("w", "whole"), noise("p", "part"), noise("m", "more")]
    trained = {
        "whole": ["target-member"],
        "part": ["known-member"],
        "more": ["target-member", "shadow-nonmember"],
    }
    config, folder = made(tmp_path / "run", numbers, *defenses, **trained)
    (entry,) = composition(FinishedRun.at(config, folder))
    assert [row.encoder for row in entry.encoders] == ["whole+w", "part+p", "more+m"]
    assert entry.images == 12
    trained["part"] = ["shadow-nonmember"]
    config, folder = made(tmp_path / "chain", numbers, *defenses, **trained)
    first, second = composition(FinishedRun.at(config, folder))
    assert [row.encoder for row in first.encoders] == ["whole+w", "more+m"]
    assert [row.encoder for row in second.encoders] == ["part+p", "more+m"]
    assert not first.apart and not second.apart  # a proved sensitivity has no gamma


def test_sampled_sensitivities_of_images_that_are_only_partly_shared(tmp_path: Path) -> None:
    numbers = {name: [told(1.0, gamma=0.077, pairs=500.0)] for name in ("whole+w", "part+p")}
    sampled = {"settings": {"epsilon": 1.0, "pairs": 500}}
    defenses = [noise("w", "whole") | sampled, noise("p", "part") | sampled]
    for role, apart in (("known-member", True), ("target-member", False)):
        trained = {"whole": ["target-member"], "part": [role]}
        config, folder = made(tmp_path / role, numbers, *defenses, **trained)
        (entry,) = composition(FinishedRun.at(config, folder))
        assert entry.apart is apart


def test_the_seed_that_promises_least_is_told(tmp_path: Path) -> None:
    numbers = {"target+a": [told(1.9), told(2.5, 0.6)], "target+b": [told(1.2, 0.3)] * 2}
    defenses = [noise("a", "target"), noise("b", "target")]
    config, folder = made(tmp_path / "run", numbers, *defenses, target="target-member")
    (entry,) = composition(FinishedRun.at(config, folder))
    assert (entry.seed, entry.seeds, entry.encoders[0].epsilon) == (1, (0, 1), 2.5)
    numbers["target+b"][1] = {"scale": 1.0}  # no promise in one seed: none of the encoder
    config, folder = made(tmp_path / "less", numbers, *defenses, target="target-member")
    assert composition(FinishedRun.at(config, folder)) == ()


def test_what_was_sampled_and_what_was_converted_is_told(tmp_path: Path, without_accounting: None) -> None:
    numbers = {
        "target+a": [told(1.0, 0.3, gamma=0.077, pairs=500.0)],
        "target+d": [{"epsilon_rdp": 2.0, "delta": 1e-5, "noise_multiplier": 2.0, "sample_rate": 0.5, "steps": 40.0}],
    }
    defenses = [
        NOISE | {"label": "a", "settings": {"epsilon": 1.0, "pairs": 500}},
        {"defense": "dp-sgd", "label": "d", "adaptive": False, "settings": {"batch_size": 30}},
    ]
    config, folder = made(tmp_path / "run", numbers, *defenses, target="target-member")
    (entry,) = composition(FinishedRun.at(config, folder))
    noisy, private = entry.encoders
    assert noisy.gamma == entry.gamma == 0.077 and noisy.converted is None
    assert (private.mechanism, private.adjacencies) == ("sampled-gaussian", ("leave-one-out",))
    assert private.converted.epsilon == 4.0 and entry.epsilon == 5.0
    assert (entry.method, entry.hint) == ("sum", "pip install 'encoder-audit[dp]'")


@pytest.mark.slow
def test_a_whole_run(local_ray: None, tmp_path: Path) -> None:
    """Real heads with real noise: two of the target, one of another encoder, which is not composed."""
    defenses = [noise("a", "target"), noise("b", "target", epsilon=2.0), noise("c", "other")]
    whole = small_config(**sections(*defenses, target="target-member", other="shadow-nonmember"))
    folder = audit.run(parse(whole, "heads.yaml"), str(tmp_path / "run"))
    report = json.loads(Path(folder.path, "report.json").read_text())
    jsonschema.validate(report, schema())
    (entry,) = report["composition"]
    assert [row["encoder"] for row in entry["encoders"]] == ["target+a", "target+b"]
    assert [row["epsilon"] for row in entry["encoders"]] == pytest.approx([1.0, 2.0])
    assert 2.0 < entry["epsilon"] < 3.0 == pytest.approx(entry["basic"])
    page = Page(Path(folder.path, "report.html").read_text()).text
    assert "Whoever publishes “target+a” and “target+b” together promises epsilon" in page
