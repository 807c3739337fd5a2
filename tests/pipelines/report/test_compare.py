"""Two reports side by side: what is matched, what stands alone, what the differences and remarks say, and mistakes."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from mi_core.report.contents import schema
from pipelines.errors import UserError
from pipelines.report.compare import compare, table
from tests.pipelines.report.stating import called

pytestmark = pytest.mark.ray

A, B, C = "a" * 64, "b" * 64, "c" * 64


def rate(value: float, reach: float = 0.1, **more: Any) -> dict[str, Any]:
    return {"value": value, "ci95": [value - reach, value + reach], "n": 100, **more}


def row(attack: str, auc: float, reach: float = 0.1, **more: Any) -> dict[str, Any]:
    return {
        "attack": attack,
        "target": "target",
        "output": "backbone",
        "reference": "known",
        "seed": 0,
        "epoch": 20,
        "n_member": 50,
        "n_nonmember": 50,
        "accuracy": rate(0.6),
        "auc": rate(auc, reach),
        "tpr_at_fpr": {"0.01": rate(0.2, fp=0, supported=False)},
        **more,
    }


def report(**parts: Any) -> dict[str, Any]:
    """A small report that satisfies the schema."""
    roles = {"target-member": {"n": 50, "sha256": A}, "target-nonmember": {"n": 50, "sha256": B}}
    whole = {
        "schema_version": 1,
        "name": "small",
        "created": "2026-01-01T00:00:00+00:00",
        "config_sha256": A,
        "config": {"name": "small", "queries": {"views": 4}, "attacks": [{"attack": "lpla", "p": 2.0}]},
        "versions": {"python": "3.12"},
        "data": {"source": "digits", "roles": roles, "duplicates_removed": 0},
        "encoders": {
            "target": {
                "objective": "simclr",
                "backbone": "conv4",
                "epochs": 20,
                "fingerprint": "f",
                "utility": {"knn": 0.9, "n": 80, "ci95": {"knn": [0.8, 0.95]}},
            }
        },
        "attacks": [row("lpla", 0.6), row("feature-mi", 0.5)],
        "validity": {"attack_auc": rate(0.6), "blind_auc": rate(0.5), "verdict": "no-evidence"},
    } | parts
    jsonschema.validate(whole, schema())
    return whole


@pytest.fixture
def folders(tmp_path: Path):
    """Writes reports into run folders and compares them."""

    def write(*reports: dict[str, Any]) -> tuple[str, str]:
        for name, content in zip(("one", "two"), reports, strict=True):
            (tmp_path / name).mkdir()
            (tmp_path / name / "report.json").write_text(json.dumps(content))
        return str(tmp_path / "one"), str(tmp_path / "two")

    return write


def shown(found: dict[str, Any], width: int = 100) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table(found))
    return console.export_text()


def test_attacks_are_matched_and_what_is_in_one_run_stands_alone(folders) -> None:
    attacks = [row("lpla", 0.8, 0.05), row("lpla", 0.7, settings="p = 1"), row("mean-cosine", 0.5)]
    found = compare(*folders(report(), report(attacks=attacks)))
    assert [(one["attack"], one.get("settings"), "first" in one, "second" in one) for one in found["attacks"]] == [
        ("lpla", None, True, True),
        ("feature-mi", None, True, False),
        ("lpla", "p = 1", False, True),
        ("mean-cosine", None, False, True),
    ]
    lpla = found["attacks"][0]
    reach = (0.1**2 + 0.05**2) ** 0.5  # the root of the summed squared errors: 1.96 times either way
    assert lpla["difference"]["value"] == pytest.approx(0.2)
    assert lpla["difference"]["ci95"] == pytest.approx([0.2 - reach, 0.2 + reach])
    assert "difference" not in found["attacks"][1]
    assert lpla["first"]["tpr"]["supported"] is False
    text = shown(found)
    assert ".600 [.50, .70]" in text
    assert ".800 [.75, .85]" in text
    assert ".200 [.088, .312]" in text
    assert text.count("not there") >= 3
    assert "† too few non-members" in text


def test_last_checkpoints_are_matched_where_epochs_differ(folders) -> None:
    first = [row("lpla", 0.5, epoch=10), row("lpla", 0.6, epoch=20)]
    second = [row("lpla", 0.7, epoch=10), row("lpla", 0.8, epoch=40)]
    found = compare(*folders(report(attacks=first), report(attacks=second)))
    epochs = [(one["first"]["epoch"], one["second"]["epoch"]) for one in found["attacks"]]
    assert epochs == [(10, 10), (20, 40)]
    assert "epoch 20 and 40" in shown(found)


@pytest.mark.parametrize(
    ("hashes", "same", "remark"),
    [
        ((A, B), "all", "a paired test on their scores would be sharper"),
        ((A, C), "some", "the runs share images, so they are not"),
        ((B, A), "some", "the runs share images, so they are not"),
        ((C, "d" * 64), "none", "take the two runs for independent"),
    ],
)
def test_the_remark_says_whether_the_interval_holds(folders, hashes: tuple[str, str], same: str, remark: str) -> None:
    roles = {
        name: {"n": 50, "sha256": digest}
        for name, digest in zip(("target-member", "target-nonmember"), hashes, strict=True)
    }
    found = compare(*folders(report(), report(data={"source": "digits", "roles": roles, "duplicates_removed": 0})))
    assert found["same_images"] == same
    assert remark in " ".join(shown(found).split())


def data_of(per_seed: Sequence[str] = (), **digests: str) -> dict[str, Any]:
    """The part ``data`` of a report with these roles."""
    roles = {role.replace("_", "-"): {"n": 9, "sha256": digest} for role, digest in digests.items()}
    seeds = [
        {"seed": seed, "roles": {name: {"n": 9, "sha256": one} for name in roles}} for seed, one in enumerate(per_seed)
    ]
    return {"source": "digits", "roles": roles, "duplicates_removed": 0} | ({"per_seed": seeds} if seeds else {})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (data_of(target_member=A), data_of(target_member=A, known_member=C)),
        (data_of(candidate=A, control=C), data_of(candidate=B, control=C)),
        (data_of(target_member=A), data_of([A, C], target_member=A)),
    ],
    ids=["known samples are not judged", "candidates", "seeds count"],
)
def test_runs_share_some_images(folders, first: dict[str, Any], second: dict[str, Any]) -> None:
    assert compare(*folders(report(data=first), report(data=second)))["same_images"] == "some"


def test_verdicts_encoders_utility_defenses_and_configs(folders) -> None:
    second = deepcopy(report())
    second["validity"] |= {"control_auc": rate(0.5), "verdict": "leak"}
    second["encoders"]["target"] |= {"epochs": 40, "fingerprint": "g"}
    second["encoders"]["other"] = {"load": "timm:x", "fingerprint": "h"}
    second["config"] = {
        "name": "small",
        "queries": {"views": 10, "budget": 5},
        "attacks": [{"attack": "lpla", "p": 1.0}],
        "defenses": [{"defense": "x"}],
    }
    pair = {"accuracy": rate(0.6), "auc": rate(0.55)}
    second["defenses"] = [
        {
            "defense": "output-noise",
            "label": "noise",
            "target": "target",
            "served": "target+noise",
            "parameters": {},
            "numbers": {},
            "utility": [{"measure": "knn", "clean": rate(0.8), "defended": rate(0.6), "loss": 0.25}],
            "attacks": [{"attack": "lpla", "output": "backbone", "clean": pair, "defended": pair}],
            "attributes": [],
        }
    ]
    found = compare(*folders(report(), second))
    assert found["verdict"] == {"first": "no-evidence", "second": "leak"}
    assert {one["field"]: (one.get("first"), one.get("second")) for one in found["config"]} == {
        "queries.views": (4, 10),
        "queries.budget": (None, 5),
        "attacks.0.p": (2.0, 1.0),
        "defenses": (None, [{"defense": "x"}]),
    }
    (utility,) = found["utility"]
    assert (utility["encoder"], utility["measure"], utility["first"]["value"]) == ("target", "knn", 0.9)
    assert [one["defense"] for one in found["defenses"]] == ["none on target", "noise on target"]
    text = shown(found)
    for words in ("No evidence of a leak", "Leak", "timm:x", "simclr, conv4, 40 epochs", "target, kNN", "25 % lost"):
        assert words in text, words
    json.dumps(found, allow_nan=False)
    jsonschema.validate(second, schema())


def test_the_same_configs(folders) -> None:
    runs = folders(report(), report())
    assert "The configs are the same." in shown(compare(*runs))
    without = report()
    del without["config"]
    (Path(runs[1]) / "report.json").write_text(json.dumps(without))
    assert "what differs there is not known" in shown(compare(*runs))


def test_mistakes_are_one_line(folders, tmp_path: Path) -> None:
    one, two = folders(report(), report())
    for path, text, problem in [
        (f"{one}/", None, "are one run; give two"),
        (f"{tmp_path}/gone", None, "gone is no folder; give the folder of a run"),
        (two, "", "two/report.json is not there; run encoder-audit report"),
        (two, "{", "report.json is damaged: no JSON"),
        (two, "[]", "report.json has no schema_version; run encoder-audit report"),
        (two, json.dumps({**report(), "schema_version": 2}), "has schema_version 2, expected 1"),
    ]:
        if text is not None:
            (Path(two) / "report.json").unlink(missing_ok=True)
            if text:
                (Path(two) / "report.json").write_text(text)
        with pytest.raises(UserError, match=problem) as raised:
            compare(one, path)
        assert "\n" not in str(raised.value)


def test_the_command(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(finished_run / "report.json", other)
    for second, code in ((other, 0), (tmp_path, 2)):
        assert called(monkeypatch, "compare", finished_run, second, "--json", tmp_path / "found.json") == code
    captured = capsys.readouterr()
    assert "a paired test on their scores" in " ".join(captured.out.split())
    assert captured.err.startswith(f"encoder-audit: {tmp_path}/report.json is not there; run encoder-audit report")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["attacks"]
    assert all(one["difference"]["value"] == 0 for one in found["attacks"])
    assert found["config"] == []
