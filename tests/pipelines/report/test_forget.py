"""Two encoders of one run as before and after: what is compared, mistakes in one line, and the planted truth."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from mi_core.metrics.delong import auc
from pipelines.attack.results import tasks
from pipelines.attack.scores import part_path
from pipelines.data.plans import plan_of
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.load import load, parse
from pipelines.report.compare import compare
from pipelines.report.forget import forget
from pipelines.run.folder import RunFolder
from tests.conftest import small_config
from tests.pipelines import staged
from tests.pipelines.report.stating import called, edited
from tests.raising import refused

pytestmark = pytest.mark.ray

ATTACKS = [{"attack": "mean-cosine", "target": ["target", "shadow"], "reference": "nonmembers", "fpr": 0.2}]


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forget") / "run"
    shutil.copytree(trained_run, folder)
    return staged.judge(parse(small_config(attacks=ATTACKS), "small.yaml"), folder)


@pytest.fixture(scope="module")
def unseen(run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The shadow encoder of a copy of the run, which stands for one more that never saw the images."""
    folder = tmp_path_factory.mktemp("forget") / "unseen"
    shutil.copytree(run, folder)
    edited(folder / "report.json", "encoders.shadow.fingerprint", lambda _: "f" * 64)
    return f"{folder}:shadow"


def test_scores_of_both_encoders_are_compared(run: Path, unseen: str) -> None:
    found = forget(f"{run}:target", f"{run}:shadow", unseen)
    config = load(f"{run}/config.yaml")
    expected = {}
    for task in tasks(plan_of(config, RunFolder(str(run)).seed(0))):
        if task.judge.output == "projection" and task.judge.epoch == 3:
            table = storage.read_table(part_path(task, 0))
            expected[task.judge.attack.target] = auc(np.asarray(table["score"]), np.asarray(table["member"])).as_json()
    assert found["found"]["before_auc"] == expected["target"]
    assert found["found"]["after_auc"] == found["found"]["unseen_auc"] == expected["shadow"]
    assert found["found"]["left"]["value"] == 0
    assert (found["images"], found["controls"], found["seeds"]) == (60, 48, [0])
    assert found["before"]["encoder"] == "target"
    assert found["before"]["fingerprint"] != found["after"]["fingerprint"]
    assert found["unseen"] == {"run": unseen.removesuffix(":shadow"), "encoder": "shadow"}
    assert set(found["utility"]) == {"before", "after"}
    assert forget(str(run), f"{run}:shadow", unseen) == found  # the verdict is about target


def test_every_other_attack_of_both_runs_looks_at_the_tail(run: Path, unseen: str) -> None:
    found = forget(f"{run}:target", f"{run}:shadow", unseen)["found"]
    assert list(found["tails"]) == ["mean-cosine on projection", "mean-cosine on backbone"]
    config = load(f"{run}/config.yaml")
    above = {}
    for task in tasks(plan_of(config, RunFolder(str(run)).seed(0))):
        if task.judge.attack.target == "shadow" and task.judge.epoch == 3:
            table = storage.read_table(part_path(task, 0))
            score, member = np.asarray(table["score"]), np.asarray(table["member"])
            ranks = (score[member][:, None] > score[~member]).mean(axis=1)
            above[f"mean-cosine on {task.judge.output}"] = (ranks > np.sort(ranks)[56]).mean()
    assert {name: own["above"][0] for name, own in found["tails"].items()} == pytest.approx(above)


def test_mistakes_are_one_line(run: Path, finished_run: Path) -> None:
    refused(UserError, "has no reference; give --retrained", forget, f"{run}:target", f"{run}:shadow")
    refused(UserError, "are the same weights", forget, str(run), f"{run}:target")
    with pytest.raises(UserError, match="has no mean-cosine on 'stranger'; it has it on target, shadow"):
        forget(str(run), f"{run}:stranger")
    refused(UserError, "has other attack than", forget, str(run), str(finished_run))
    refused(UserError, "holds no run", forget, str(run), str(run / "nothing"))


def test_a_run_without_a_report_says_what_to_do(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "half")
    (tmp_path / "half" / "report.json").unlink()
    with pytest.raises(UserError, match=r"report\.json is missing; write it with encoder-audit report"):
        forget(str(run), str(tmp_path / "half"))


def test_the_third_encoder_is_another_one_that_never_saw_the_images(run: Path, unseen: str, tmp_path: Path) -> None:
    """The encoder after unlearning, as its own yardstick, would look as if it had forgotten everything."""
    for third in (f"{run}:shadow", f"{run}:target", str(run)):
        with pytest.raises(UserError, match="are the same weights; give another encoder for one of them"):
            forget(f"{run}:target", f"{run}:shadow", third)
    shutil.copytree(run, tmp_path / "again")
    edited(tmp_path / "again" / "report.json", "encoders.target.fingerprint", lambda _: "e" * 64)
    with pytest.raises(UserError, match="trained target on target-member, whose images are judged; give an encoder"):
        forget(f"{run}:target", f"{run}:shadow", f"{tmp_path}/again:target")


DAMAGE = {"empty": b"", "cut": b'{"a": [1, 2', "deep": b"[" * 100_000, "list": b"[1]", "bytes": bytes(range(256))}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_one_line_that_names_it(
    damage: str,
    run: Path,
    unseen: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In every command that reads a run."""
    hurt = tmp_path / "hurt"
    shutil.copytree(run, hurt)
    others = {"compare": (run,), "statement": (), "status": (), "forget": (f"{run}:shadow", "--retrained", unseen)}
    (scores,) = hurt.glob("seed-0/attacks/mean-cosine-0-projection-0003/scores.parquet/*")
    reads = {
        "report.json": ("compare", "statement", "forget"),
        "manifest.json": ("status", "statement"),
        "progress.json": ("status",),
        str(scores.relative_to(hurt)): ("statement", "forget"),
    }
    for name, commands in reads.items():
        path = hurt / name
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(DAMAGE[damage])
        for command in commands:
            if (damage, name) == ("list", "manifest.json"):
                continue
            code = called(monkeypatch, command, hurt, *others[command])
            told = capsys.readouterr().err
            last = told.splitlines()[-1] if told else ""
            assert code == 2, (command, name, code, told)
            assert "Traceback" not in told
            assert str(hurt) in last, (command, name, told)
        path.unlink() if before is None else path.write_bytes(before)


def test_odd_values_in_a_report_are_one_line(run: Path, unseen: str, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "odd")
    for place, value in (
        ("encoders.target", []),
        ("data", 3),
        ("validity", {"attack_auc": {"value": "x", "ci95": [1]}}),
    ):
        before = (tmp_path / "odd" / "report.json").read_bytes()
        edited(tmp_path / "odd" / "report.json", place, lambda _, value=value: value)
        refused(UserError, "is damaged|report.json of", compare, str(tmp_path / "odd"), str(run))
        if place != "validity":
            refused(UserError, "is damaged", forget, str(tmp_path / "odd"), f"{run}:shadow", unseen)
        (tmp_path / "odd" / "report.json").write_bytes(before)


def test_no_sign_of_control_reaches_the_terminal(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "hostile")
    name = "\x1b]0;owned\x07\x1b[31mred\u202e"
    for file in ("manifest.json", "report.json"):
        edited(tmp_path / "hostile" / file, "name", lambda _: name)
    for words in (
        ("status", tmp_path / "hostile"),
        ("compare", tmp_path / "hostile", run),
        ("statement", tmp_path / name),
    ):
        called(monkeypatch, *words)
        told = "".join(capsys.readouterr())
        assert "red" in told
        assert not any(sign in told for sign in ("\x1b", "\x07", "\u202e")), words


def test_the_command(
    run: Path, unseen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["forget", f"{run}:target", f"{run}:shadow", "--retrained", unseen]
    assert called(monkeypatch, *words, "--json", tmp_path / "found.json") == 0
    assert "Cannot tell" in capsys.readouterr().out
    assert storage.read_json(str(tmp_path / "found.json")) == forget(*words[1:3], words[4])
    assert called(monkeypatch, *words, "--tolerance", "0") == 2
    assert "tolerance = 0" in capsys.readouterr().err
