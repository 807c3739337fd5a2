"""The command as users meet it: exit codes, one line for every mistake, what help and lists say, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml

from pipelines import console
from pipelines.cli import app as cli
from pipelines.run.heartbeat import status
from tests.conftest import ROOT, background, small_config, wait_until

pytestmark = pytest.mark.ray


class Outcome(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command line in this process."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["encoder-audit", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(small_config()))
    return path


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["audit", "@config", "quieries.views=3"], "unknown key quieries; did you mean queries?"),
        (
            ["audit", "@config", "data.roles.target-member.count=1700"],
            "1880 images are wanted from digits, which has 1797",
        ),
        (["audit", "@config", "--force", "lunch"], "--force lunch, allowed: data, pretrain"),
        (["audit", "nothing.yaml"], "nothing.yaml is no file; give an existing config file"),
        (["selftest", "seeds=[0]"], "seeds=[0] changes a field; name the config before it, such as quickstart seeds"),
        (["audit", "@config", "--address", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1"),
        (["audit", "@config", "--out", "@config/below"], "cannot write there"),
        (["submit", "@config"], "--out is missing; give a folder"),
        (["tune", "@config"], "has no section tune"),
        (["submit", "@config", "--out", "@tmp/x", "--address", "127.0.0.1:1"], "write http://HOST:8265"),
        (["audit", "@tmp"], "give an existing config file"),
        (["check", "@config", "data.sources.digits={kind: shards, path: none-*.tar}"], "none-*.tar matches no file"),
        (["shards", "inspect", "nowhere"], "nowhere does not exist"),
        (["shards", "import", "digits", "@tmp"], "is not empty; give another folder"),
        (["shards", "import", "torchvision:FakeData", "@tmp/x", "--option", "size"], "write name=value"),
    ],
)
def test_mistakes_end_with_code_2_and_one_line(
    arguments: list[str], text: str, call, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = sorted(tmp_path.rglob("*"))
    if "--address" in arguments:
        arguments = [*arguments, "--out", str(tmp_path / "run")]
    outcome = call(*(argument.replace("@config", str(config)).replace("@tmp", str(tmp_path)) for argument in arguments))
    assert outcome.code == 2
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("encoder-audit: ")
    assert text in lines[0]
    if "--address" not in arguments:
        assert sorted(tmp_path.rglob("*")) == before  # nothing was started


def test_wrong_options_end_with_code_2(call) -> None:
    assert call("audit").code == 2
    assert call("nonsense").code == 2
    assert call("shards", "import", "digits", "x", "--max-rejected", "3").code == 2


def test_debug_shows_the_traceback(call, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines.errors import UserError

    monkeypatch.setattr(sys, "argv", ["encoder-audit", "audit", str(config), "x=1", "--debug"])
    with pytest.raises(UserError, match="unknown key x"):
        cli.main()


def test_check_takes_a_config_and_no_run_folder(call) -> None:
    told = " ".join(call("check", "--help").out.replace("│", " ").split())
    assert "Config file or name of a config." in told
    assert "RUN" not in told
    assert "run folder" not in told


def test_check_reads_the_data_and_writes_nothing(call, config: Path, tmp_path: Path) -> None:
    outcome = call("check", config, "-v")
    assert outcome.code == 0
    assert "60 target-member" in outcome.out.replace("\n", " ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.yaml"]


def test_lists_are_printed_without_ray() -> None:
    listed = [["attacks"], ["defenses"], ["encoders"], ["attacks", "sd-mi"], ["defenses", "talos"]]
    code = f"""
import sys
from pipelines.cli.app import app
for words in {listed}:
    app(["list", *words], standalone_mode=False)
    print("heavy:", words, sorted({{"ray"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    parts = re.split(r"^heavy: (.*)$", done.stdout, flags=re.M)
    assert parts[1::2] == [f"{words} []" for words in listed]
    assert all(len(text.splitlines()) > 20 for text in parts[:-1:2])


def test_brackets_in_names_and_paths_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("data", "photos[red] of [/me]")
    assert "photos[red] of [/me]" in capsys.readouterr().err


def test_help_tells_version_debug_and_stages(call) -> None:
    from importlib.metadata import version

    from pipelines.run.folder import STAGES

    assert call("--version").out.strip() == f"encoder-audit {version('encoder-audit')}"
    assert "--debug" in call("--help").out
    help_ = " ".join(call("audit", "--help").out.replace("│", " ").split())
    assert f"all that follow: {', '.join(STAGES[:-1])} or {STAGES[-1]}" in help_


def test_a_run_folder_is_continued_by_its_path(call, finished_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    outcome = call("audit", folder)
    assert outcome.code == 0
    assert "Attacks on target, projection output" in outcome.out
    assert "finished: nothing has changed since" in outcome.err


def test_a_folder_in_use_is_refused(call, config: Path, local_ray: None, tmp_path: Path) -> None:
    from pipelines.files.lock import lock

    with lock(str(tmp_path / "run")):
        outcome = call("audit", config, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert f"in use by process {os.getpid()}" in outcome.err


def ray_processes(group: int) -> list[int]:
    """Processes of a session that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def epochs_done(folder: Path) -> float:
    """Epochs of the training under way, as the run wrote them down last."""
    path = folder / "progress.json"
    return max((piece["done"] for piece in json.loads(path.read_text())["pieces"]), default=0) if path.exists() else 0


def saved_epoch(folder: Path) -> int:
    return max(int(torch.load(state, weights_only=True)["epoch"]) for state in folder.rglob("state/*.pt"))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to find processes")
@pytest.mark.slow
def test_ctrl_c_and_sigterm_save_the_training_and_leave_no_ray(config: Path, tmp_path: Path) -> None:
    """Within the first minute, before any state is due; Ctrl-C reaches the whole process group, as from a terminal."""
    folder = tmp_path / "run"
    arguments = ("pipelines.audit", str(config), "--out", str(folder), "encoders.target.epochs=100000")
    before = 0
    for number, what in ((signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")):
        with background(*arguments, "encoders.target.checkpoints=[]", "encoders.target.save_every=100000") as process:
            wait_until(lambda least=before: epochs_done(folder) > least + 2, process)
            reached = epochs_done(folder)
            os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
            _, err = process.communicate(timeout=120)
            assert process.returncode == 1
            assert err.decode().splitlines()[-1] == f"encoder-audit: {what}; run the same command again to continue"
            assert "Traceback" not in err.decode()
            assert "SIGTERM received" not in err.decode()
            end = time.monotonic() + 60
            while ray_processes(process.pid) and time.monotonic() < end:
                time.sleep(0.2)
            assert ray_processes(process.pid) == []
        assert saved_epoch(folder) >= int(reached)
        before = saved_epoch(folder)
        assert "state  stopped" in str(status(str(folder)))


def test_progress_and_faults_are_lines_of_json_where_asked(tmp_path: Path) -> None:
    """In a process of its own: the format stays for the rest of a process."""
    code = "import sys; from pipelines.cli.app import main; sys.argv[0] = 'encoder-audit'; main()"
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(small_config()))

    def lines(*arguments: str) -> list[dict[str, str]]:
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        return [json.loads(line) for line in done.stderr.splitlines()]

    (fault,) = lines("check", "--log", "json", str(config), "queries.views=none")
    assert (fault["level"], fault["stage"]) == ("error", "end")
    assert "queries.views = 'none'" in fault["message"]
    told = lines("check", str(config), "--log=json")
    assert told == [] or {line["level"] for line in told} == {"info"}


def test_a_logger_gets_every_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "encoder_audit"):
        console.say("extract", "200 images")
        with console.silence():
            console.say("extract", "of a trial")
    assert [(record.stage, record.message) for record in caplog.records] == [("extract", "200 images")]
