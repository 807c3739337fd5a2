"""Every change of weights, roles, plan, report or statement is found and named."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mi_core.registration import attempts, faults_of, is_after_looking, without_chain
from mi_core.report.model.as_json import part_as_json
from mi_core.report.statement import PAYLOAD_TYPE
from pipelines.errors import UserError
from pipelines.plan.load import load
from pipelines.report import statement
from pipelines.report.finished import FinishedRun
from pipelines.report.statement import HOLDS, NOTE, verify
from pipelines.report.verdict import verdict
from pipelines.run.folder import RunFolder
from pipelines.run.registration import lines_of, write_down
from tests.mi_core.report.conftest import BOUND_MET, BOUNDED
from tests.pipelines.report.made import made_run
from tests.pipelines.report.stating import A, called, checked, edited, faults, flipped, reregistered

pytestmark = pytest.mark.ray


def weights(run: Path) -> list[Path]:
    return sorted(path for path in run.glob("seed-*/encoders/*/*") if path.is_file())


def roles(run: Path) -> list[Path]:
    return sorted([*run.glob("seed-*/splits/*"), *run.rglob("scan/*/*/part-*.parquet")])


@settings(max_examples=40)
@given(st.data())
def test_a_flipped_bit_is_found_and_its_file_named(stated_run: Path, data: st.DataObject) -> None:
    files = {"weights": weights(stated_run), "roles": roles(stated_run)}
    files |= {"registration": [stated_run / "registration.jsonl"], "report": [stated_run / "report.json"]}
    about = data.draw(st.sampled_from(sorted(files)))
    path = data.draw(st.sampled_from(files[about]))
    with flipped(path, data.draw(st.sampled_from(range(path.stat().st_size))), data.draw(st.integers(0, 7))):
        found = faults(checked(stated_run))
    name = path.relative_to(stated_run).as_posix()
    named = [name, *(f"{parent} " for parent in map(str, path.relative_to(stated_run).parents) if "scan" in parent)]
    assert any(fault.startswith(f"{about}: ") and any(one in fault for one in named) for fault in found), found


def test_every_file_of_a_run_is_bound_or_named_as_not_covered(stated_run: Path) -> None:
    (told,) = [check.text for check in checked(stated_run) if check.about == "coverage"]
    free = told.removeprefix("not covered: ").split(", ")
    assert "features" in free
    assert not {"report.html", "results.json", "seed-0/attacks", "seed-0/validity", "figures"} & set(free)
    for path in sorted(path for path in stated_run.rglob("*") if path.is_file() and not path.name.startswith(".")):
        name = path.relative_to(stated_run).as_posix()
        if name != "statement.json" and not any(name == one or name.startswith(f"{one}/") for one in free):
            with flipped(path, path.stat().st_size // 2, 0):
                found = faults(checked(stated_run))
            named = {name, *map(str, path.relative_to(stated_run).parents)} - {"."}
            assert any(one in fault for fault in found for one in named), name


def test_what_is_not_covered_need_not_be_handed_over(stated_run: Path, tmp_path: Path) -> None:
    shutil.copytree(
        stated_run, tmp_path / "handed", ignore=shutil.ignore_patterns("features", "progress.json", "spend")
    )
    assert not faults(checked(tmp_path / "handed"))


def test_a_page_and_scores_that_were_changed_are_named(copied: Path) -> None:
    page = copied / "report.html"
    page.write_text(page.read_text().replace("made", "leak"))
    assert faults(checked(copied)) == ["results: report.html has other bytes than stated"]
    (copied / "figures").mkdir()
    (copied / "figures" / "roc.png").touch()
    page.write_text("<p>made</p>")
    assert faults(checked(copied)) == ["results: the statement's files of results are not those of the run"]


@pytest.mark.parametrize("twice", ["verdict", "digest", "NaN"])
def test_a_name_that_stands_twice_is_refused(twice: str, made: Path, tmp_path: Path) -> None:
    """Readers would take the one value or the other; in an envelope alike."""
    text = (made / "statement.json").read_text()
    other = {"verdict": '"verdict": "no-evidence", ', "digest": '"digest": {}, ', "NaN": '"x": NaN, '}[twice]
    mark = '"digest"' if twice == "digest" else '"verdict": "leak"'
    assert mark in text
    edited_text = text.replace(mark, other + mark, 1)
    payload = base64.b64encode(edited_text.encode()).decode()
    for content in (edited_text, json.dumps({"payloadType": PAYLOAD_TYPE, "payload": payload, "signatures": []})):
        (tmp_path / "s.json").write_text(content)
        with pytest.raises(UserError, match="s.json is"):
            verify(str(tmp_path / "s.json"), str(made))


@pytest.mark.parametrize("place", ["predicate.results", "predicate.encoders.0.files", "predicate.encoders"])
def test_an_entry_that_stands_twice_is_refused(place: str, made: Path, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text((made / "statement.json").read_text())
    edited(tmp_path / "s.json", place, lambda entries: [*entries, entries[0]])
    with pytest.raises(UserError, match="s.json is no statement of encoder-audit: .* stands there twice"):
        verify(str(tmp_path / "s.json"), str(made))


@pytest.mark.parametrize("event", ["roles", "plan"])
def test_registered_lines_without_their_parts_are_one_line(event: str, made: Path, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text((made / "statement.json").read_text())
    kept = ("event", "time", "previous", "sha256")
    edited(
        tmp_path / "s.json",
        "predicate.registrations",
        lambda lines: [{name: line[name] for name in kept} if line["event"] == event else line for line in lines],
    )
    with pytest.raises(UserError, match="s.json is damaged: KeyError"):
        verify(str(tmp_path / "s.json"), str(made))


def test_a_plan_after_the_first_query_is_named(copied: Path) -> None:
    """Another attack is chosen once scores exist: the statement says so, and a leak is none any more."""
    folder = RunFolder(str(copied))
    plan = next(line for line in lines_of(folder) if line["event"] == "plan")
    write_down(
        folder, "plan", {name: part for name, part in without_chain(plan).items() if name != "event"} | {"epoch": 99}
    )
    edited(
        copied / "report.json",
        "validity",
        lambda _: part_as_json(verdict(FinishedRun.at(load(f"{copied}/config.yaml"), folder))),
    )
    statement.write(str(copied))
    (told,) = [check for check in checked(copied) if check.about == "registration"]
    assert told.outcome == HOLDS and "CHOSEN AFTER LOOKING" in told.text
    assert json.loads((copied / "statement.json").read_text())["predicate"]["verdict"]["reason"] == "after-looking"


def test_attacks_that_are_only_added_leave_the_plan_in_force(copied: Path) -> None:
    folder = RunFolder(str(copied))
    plan = without_chain(next(line for line in lines_of(folder) if line["event"] == "plan"))
    more = {"attacks": [*plan["attacks"], plan["attacks"][0] | {"views": 3}]}
    write_down(folder, "plan", {name: part for name, part in plan.items() if name != "event"} | more)
    assert not is_after_looking(lines_of(folder)) and not faults_of(lines_of(folder))
    assert attempts(lines_of(folder))[1] == {"target": len(plan["attacks"]) + 1}
    write_down(folder, "roles", {"roles": {}})
    assert is_after_looking(lines_of(folder))


def test_a_bound_other_than_the_registered_one_is_named(copied: Path) -> None:
    whole = json.loads((copied / "report.json").read_text())
    (copied / "report.json").write_text(json.dumps(whole | {"bounds": [BOUNDED]}))
    statement.write(str(copied))
    assert faults(checked(copied)) == []
    (copied / "report.json").write_text(json.dumps(whole | {"bounds": [BOUND_MET]}))
    with pytest.raises(UserError, match="report: the statement's registered bound is not as report.json has it"):
        statement.write(str(copied))
    reregistered(copied, lambda line: {"bound": BOUND_MET["bound"]} if line["event"] == "plan" else {})
    statement.write(str(copied))
    assert faults(checked(copied)) == []


@pytest.mark.parametrize(
    ("file", "place", "change", "fault"),
    [
        ("report.json", "validity.delta_auc.n", lambda n: n + 1, "report.json .* validity .*verdict.delta_auc.n"),
        ("report.json", "name", lambda name: f"{name}2", r"parts that differ: name \(run.name\)"),
        ("report.json", "queries.total", lambda n: n + 1, "parts that differ: queries$"),
        ("config.yaml", "", None, "config: config.yaml has other bytes"),
        ("seed-1/encoders/target/encoder.json", "fingerprints.3", lambda _: A, "weights: seed-1/encoders/target"),
        ("seed-1/splits/roles.json", "counts.target-member", lambda n: n - 1, "roles: seed-1/splits/roles.json has"),
    ],
)
def test_a_changed_field_is_named(
    file: str, place: str, change: Callable[[Any], Any] | None, fault: str, copied: Path
) -> None:
    if change is None:
        (copied / file).write_text((copied / file).read_text().replace("name: small", "name: large"))
    else:
        edited(copied / file, place, change)
    assert re.search(fault, "\n".join(faults(checked(copied))))


@pytest.mark.parametrize(
    ("place", "change", "fault"),
    [
        ("predicate.verdict.verdict", lambda _: "no-evidence", "the statement says no-evidence, but .* give leak"),
        ("predicate.verdict.p_value", lambda _: 0.2, "the statement says leak, but .* give no-evidence"),
        ("predicate.verdict.registered", lambda _: False, "in the run give another verdict.registered"),
        ("predicate.verdict.attack_auc.n", lambda n: n + 1, "statement's verdict.attack_auc.n is not as report.json"),
        ("predicate.rule.level", lambda _: 0.5, "rule is not the rule of this version"),
        ("predicate.verdict.warning", lambda _: "broken", "in the run give another verdict.warning"),
        (
            "predicate.roles.0.roles.target-member.n",
            lambda n: n + 1,
            "splits: roles other than stated: target-member.n",
        ),
        ("predicate.roles.1.seed", lambda _: 7, "roles: seed-7/splits cannot be read"),
        ("predicate.roles.1.files.0.name", lambda _: "/etc/hosts", "roles: /etc/hosts is no name of a file in a run"),
        ("predicate.roles.1.files.0.name", lambda _: "seed-1/splits", "roles: seed-1/splits cannot be read"),
        ("predicate.registrations.0.sha256", lambda _: A, "line 1 does not have its sha256"),
        ("predicate.registrations.1.previous", lambda _: A, "line 2 does not follow line 1"),
        (
            "predicate.registrations.1.output",
            lambda _: "backbone",
            "registration.jsonl: other .* registration.1.output",
        ),
        ("predicate.registrations", lambda lines: lines[:-1], "registration.jsonl: other than stated"),
        ("predicate.primary.attack", lambda _: "lpla", "the last registered plan has not this primary attack"),
        ("predicate.encoders.0.fingerprints.3", lambda _: A, "encoder.json has other fingerprints than stated"),
        ("predicate.encoders.0.published", lambda _: {"model.bin": A}, "encoder.json has other files of its publisher"),
        ("predicate.encoders.0.files.1.digest.sha256", lambda _: A, "has other bytes than stated"),
        ("predicate.encoders", lambda every: every[:-1], "statement's encoders is not as report.json"),
        ("predicate.encoders.0.kind", lambda _: "code", "the statement's kind of seed-0/encoders/"),
        ("predicate.encoders.1.name", lambda _: "other", "weights: encoder.json cannot be read"),
        ("predicate.report.parts.name", lambda _: A, "the statement's name is not as report.json"),
        ("subject.0.digest.sha256", lambda _: A, "the statement's subject is not the encoder"),
        ("subject.1.annotations.seed", lambda _: 5, "the statement's subject is not the encoder"),
    ],
)
def test_an_edited_statement_does_not_hold(
    place: str, change: Callable[[Any], Any], fault: str, made: Path, tmp_path: Path
) -> None:
    content = json.loads((made / "statement.json").read_text())
    if place == "predicate.verdict.warning":
        content["predicate"]["verdict"]["warning"] = ""
    (tmp_path / "statement.json").write_text(json.dumps(content))
    edited(tmp_path / "statement.json", place, change)
    found = faults(verify(str(tmp_path / "statement.json"), str(made)))
    assert re.search(fault, "\n".join(found)), found


def test_a_missing_file_is_named(copied: Path) -> None:
    (copied / "seed-0/encoders/shadow/epoch-0003.safetensors").unlink()
    assert faults(checked(copied)) == ["weights: seed-0/encoders/shadow/epoch-0003.safetensors is missing"]
    (copied / "report.json").unlink()
    assert "report: report.json cannot be read (FileNotFoundError" in "\n".join(faults(checked(copied)))


def test_wrong_input_is_one_line_with_code_2(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = made_run(tmp_path / "other", name="other", queries={"views": 5})
    (tmp_path / "text.json").write_text("no JSON")
    (tmp_path / "bytes.json").write_bytes(bytes(range(256)))
    cases = [
        (made / "nothing.json", made, "nothing.json is no file"),
        (tmp_path / "text.json", made, "cannot be read as JSON"),
        (tmp_path / "bytes.json", made, "cannot be read as JSON"),
        (made / "report.json", made, "is no statement of encoder-audit: its _type is not https://in-toto.io/"),
        (made / "statement.json", tmp_path, "holds no run; give the --out of one"),
        (made / "statement.json", other, "is not the run of"),
    ]
    capsys.readouterr()
    for file, run, text in cases:
        assert called(monkeypatch, "verify", file, run) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert text in line
    assert called(monkeypatch, "statement", tmp_path / "none") == 2


def test_what_fails_ends_with_code_1(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(copied / "statement.json", "predicate.verdict.verdict", lambda _: "no-evidence")
    assert called(monkeypatch, "verify", copied / "statement.json", copied) == 1
    assert "FAILS  verdict: the statement says no-evidence" in capsys.readouterr().out


def test_an_envelope_is_read_and_its_signatures_left_to_others(made: Path, tmp_path: Path) -> None:
    payload = base64.b64encode((made / "statement.json").read_bytes()).decode()
    envelope = {"payloadType": PAYLOAD_TYPE, "payload": payload, "signatures": [{"sig": "AA=="}]}
    (tmp_path / "signed.json").write_text(json.dumps(envelope))
    *checks, signature = verify(str(tmp_path / "signed.json"), str(made))
    assert not faults(checks)
    assert (signature.outcome, signature.text.split(",")[0]) == (NOTE, "1 in the envelope")
    assert "not checked here" in signature.text
