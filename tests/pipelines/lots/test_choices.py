"""Owners who bend a claim: whatever they repeat, leave out or edit, the answer stays or its statement fails."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from scipy.special import ndtri
from typer.testing import CliRunner, Result

from mi_core.checks import ConfigError
from mi_core.encoders import build_backbone
from mi_core.lots.commitment import (
    FIXED,
    OWNERS_WORD,
    WITNESSED,
    Header,
    Question,
    entry_digest,
    faults_of_chain,
    grade_of,
    nonce_of,
)
from mi_core.lots.designs import held_back_p_value
from mi_core.lots.draw import Design, Drawn, counted_against, draw
from mi_core.lots.verdict import least_auc, level_of, support_of
from pipelines.cli.app import app
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.again import _compare
from pipelines.lots.claim import claim, register_claim
from pipelines.lots.vault import Lot
from pipelines.lots.verify import verify_claim
from pipelines.report.bindings import file_digest
from tests.endpoints import serving
from tests.pipelines.lots.test_claim import Remembering, picture
from tests.pipelines.lots.test_claim import ask as ask_function
from tests.pipelines.lots.test_statement import Change, changed, column, edited

ROUND = "drand quicknet round 12345678"
BEACON, LATER = "c0ffee" * 10 + "c0ff", "beef" * 16
SIDE = 8


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def told(result: Result) -> str:
    """What a command said, errors included."""
    return f"{result.output}{result.exception or ''}"


def photos(place: Path, numbers: range) -> Path:
    for number in numbers:
        path = place / "photos" / f"album{number % 2}" / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    return place / "photos"


def drawn_lot(place: Path, *releases: int) -> Path:
    """A lot whose releases a beacon decided."""
    begin = 0
    for count in releases:
        images = photos(place, range(begin, begin + count))
        begin += count
        for command in (["commit", "--decided-by", ROUND], ["draw", "--beacon", BEACON]):
            done = run("lot", command[0], images, "--out", place / "lot", *command[1:])
            assert done.exit_code == 0, told(done)
    return place / "lot"


@pytest.fixture(scope="module", autouse=True)
def small_views() -> Iterator[None]:
    """Encoders whose publisher names no size get small views here, so that claims are quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mi_core.adoption.builders.USUAL_SIDE", 16)
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder that learned nothing."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("encoder") / "weights.pt"
    torch.save(build_backbone("resnet8-narrow", 3, 32).state_dict(), path)
    return path


def named(weights: Path) -> list[str | Path]:
    return ["--encoder", "checkpoint:resnet8-narrow", "--weights", weights]


def claimed(lot: Path, *arguments: str | Path) -> tuple[str, Path]:
    """What a claim said, and its newest statement."""
    done = run("claim", lot, *arguments)
    assert done.exit_code == 0, told(done)
    found = re.search(r"statement: (\S+),", done.stdout)
    assert found is not None, done.output
    return done.stdout, Path(found[1])


def outcomes(statement: Path, **settings: Any) -> dict[str, set[str]]:
    """The outcomes of the checks of a statement by their subject."""
    found: dict[str, set[str]] = {}
    for check in verify_claim(str(statement), **settings):
        found.setdefault(check.about, set()).add(check.outcome)
    return found


def failing(statement: Path, **settings: Any) -> set[str]:
    return {about for about, some in outcomes(statement, **settings).items() if "FAILS" in some}


def test_who_asks_again_and_again_gets_the_same_answer(tmp_path: Path, weights: Path) -> None:
    """Claims are deleted and made anew; only an encoder whose weights differ is another question."""
    lot = drawn_lot(tmp_path, 60)
    answers = []
    for _ in range(3):
        said, statement = claimed(lot, *named(weights))
        assert said.startswith("NOT SHOWN (fixed)")
        answers.append(storage.read_json(str(statement))["result"])
        for folder in ("claims", "vault/claims"):
            shutil.rmtree(lot / folder)
    assert answers[0] == answers[1] == answers[2]
    state = torch.load(weights, weights_only=True)
    name = next(iter(state))
    state[name] = state[name] * (1 + 1e-6)
    torch.save(state, tmp_path / "bent.pt")
    _, bent = claimed(lot, *named(tmp_path / "bent.pt"))
    result = run("verify", bent, lot, *named(weights))
    assert result.exit_code == 1 and "the encoder given is another one" in result.output


def test_neither_the_clock_nor_earlier_questions_move_the_nonce() -> None:
    header = Header(Design((9,)), "ab", "cd", "ef", beacon=ROUND)
    question = Question("timm:resnet18", "f" * 64, {"views": 10}, (), "", "2026", {}, header.commitment)
    later = Question("timm:resnet18", "f" * 64, {"views": 10}, (), "", "2027", {"version": "2"}, "0" * 64)
    nonce = nonce_of([header], [BEACON], question)
    assert nonce == nonce_of([header], [BEACON], later) and len(nonce) == 32
    others = [
        nonce_of([header, header], [BEACON, BEACON], question),
        nonce_of([header], ["c0ffe0" * 10 + "c0ff"], question),
        nonce_of([header], [BEACON], question, "7"),
        nonce_of([header], [BEACON], Question(**vars(question) | {"fingerprint": "e" * 64})),
        nonce_of([header], [BEACON], Question(**vars(question) | {"plan": {"views": 11}})),
    ]
    assert len({nonce, *others}) == 6
    assert list(faults_of_chain([header, question])) == []
    assert list(faults_of_chain([question])) == ["link 1 does not follow nothing, as the first one has to"]
    assert list(faults_of_chain([header, later])) == ["link 2 does not follow link 1"]
    alone = Header(Design((9,)), "ab", "cd", "ef")
    chosen = Question(**vars(question) | {"given": ("size",)})
    decided = Question(**vars(question) | {"decided_by": "round 8"})
    assert [grade_of([header], one) for one in (decided, question, chosen)] == [WITNESSED, FIXED, OWNERS_WORD]
    assert grade_of([header, alone], decided) == OWNERS_WORD
    assert Question.from_json(json.loads(json.dumps(chosen.as_json()))) == chosen
    for entry in ({}, {"kind": "another"}, chosen.as_json() | {"given": 3}):
        with pytest.raises(ConfigError, match="it is"):
            Question.from_json(entry)


def test_what_the_owner_chooses_lowers_the_grade_and_is_named(tmp_path: Path, weights: Path) -> None:
    lot = drawn_lot(tmp_path, 60)
    said, statement = claimed(lot, *named(weights), "--size", "8")
    assert said.startswith("NOT SHOWN (the owner's word)") and "image size or decoding" in said
    said, _ = claimed(lot, *named(weights), "--size", "16", "--objective", "simclr")
    assert said.startswith("NOT SHOWN (fixed)")  # what is usual is no choice
    with forged(statement, tmp_path / "forged") as stated:
        stated["chain"][-1]["given"], stated["grade"] = [], "fixed"
    assert failing(tmp_path / "forged" / "statement.json") == {"question"}


class forged:
    """A copy of a statement to be edited, with all digests of the chain written anew afterwards."""

    def __init__(self, statement: Path, place: Path) -> None:
        shutil.copytree(statement.parent, place)
        self.place, self.stated = place / "statement.json", storage.read_json(str(place / "statement.json"))

    def __enter__(self) -> dict[str, Any]:
        return self.stated

    def __exit__(self, *_: object) -> None:
        previous = ""
        for link in self.stated["chain"]:
            link["previous"] = previous
            previous = entry_digest(link)
        self.stated["question"] = self.stated["answers"]["previous"] = previous
        opened = str(self.place.parent / "opened.parquet")
        table = storage.read_table(opened)
        self.stated["answers"]["opened"] |= {"sha256": file_digest(opened), "rows": len(table)}
        storage.write_json(str(self.place), self.stated)


def test_no_release_can_be_left_out(tmp_path: Path, weights: Path) -> None:
    _, statement = claimed(drawn_lot(tmp_path, 60, 70), *named(weights))
    assert not failing(statement)

    def only(kept: int, stated: dict[str, Any], table: pa.Table) -> pa.Table:
        stated["releases"] = [stated["releases"][kept]]
        stated["chain"] = [stated["chain"][kept], stated["chain"][2]]
        table = table.filter(pc.equal(table["release"], kept))
        return table.set_column(0, "release", pa.array(np.zeros(len(table), dtype=np.int64)))

    for kept in (0, 1):
        place = changed(statement.parent, tmp_path / f"only-{kept}", partial(only, kept))
        assert failing(place / "statement.json") == {"chain"}
    with forged(statement, tmp_path / "unopened") as stated:
        stated["releases"] = stated["releases"][:1]
    assert failing(tmp_path / "unopened" / "statement.json") == {"chain"}


def test_a_release_that_waits_for_its_beacon_stops_a_claim(tmp_path: Path, weights: Path) -> None:
    """Its beacon may be known: an owner could see what the release would say before he draws it."""
    lot = drawn_lot(tmp_path, 60)
    run("lot", "commit", photos(tmp_path, range(60, 130)), "--out", lot, "--decided-by", ROUND)
    assert "release 2 is committed and not written" in told(run("claim", lot, *named(weights)))


def test_a_deleted_registration_is_missed_by_the_release_after_it(tmp_path: Path, weights: Path) -> None:
    lot = drawn_lot(tmp_path, 60)
    claimed(lot, *named(weights))
    drawn_lot(tmp_path, 60, 70)
    kinds = [link.as_json()["kind"].split()[1].rstrip(",") for link in Lot.at(str(lot)).chain()]
    assert kinds == ["lot", "question", "lot"]
    shutil.rmtree(lot / "vault" / "claims")
    said = told(run("claim", lot, *named(weights)))
    assert "2 releases and questions, of which 1 follow each other" in said and "backup" in said


@pytest.fixture(scope="module")
def fixed_claim(tmp_path_factory: pytest.TempPathFactory, weights: Path) -> Path:
    """A statement of grade fixed, beside its lot."""
    return claimed(drawn_lot(tmp_path_factory.mktemp("claim"), 60), *named(weights))[1]


def test_the_redraws_have_no_seed_to_choose(fixed_claim: Path) -> None:
    stated = storage.read_json(str(fixed_claim))
    assert "seed" not in stated and "seed" not in stated["chain"][-1]["plan"]
    assert not failing(fixed_claim)


def test_answers_that_were_moved_are_found_by_asking_again(
    fixed_claim: Path, tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lot = fixed_claim.parents[2]
    result = run("verify", fixed_claim, *named(weights))
    assert result.exit_code == 0, told(result)
    assert result.stdout.startswith("CHECKED. The statement says NOT SHOWN, grade: fixed.")
    assert "holds  encoder: asked again about 50 images" in result.output
    held = Lot.at(str(lot)).releases()[0].draw.held_back
    lower = held[np.asarray(storage.read_table(str(fixed_claim.parent / "opened.parquet"))["unit"])]
    moved = changed(
        fixed_claim.parent, tmp_path / "moved", column("score", lambda old: np.where(lower, -0.9, old).tolist())
    )
    with forged(moved / "statement.json", tmp_path / "forged") as stated:
        monkeypatch.setattr("pipelines.lots.verify._MOST", 99)
        stated["result"] |= judged_anew(tmp_path / "forged" / "statement.json", stated)
    path = tmp_path / "forged" / "statement.json"
    assert not failing(path)
    assert storage.read_json(str(path))["result"]["verdict"] == "used"
    result = run("verify", path)
    assert result.exit_code == 4 and result.output.startswith("CANNOT TELL. The statement says USED, grade: fixed.")
    result = run("verify", path, lot, *named(weights))
    assert result.exit_code == 1 and "FAILS  encoder: asked again about 50 images" in result.output


def judged_anew(path: Path, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The result that the answers of a statement give."""
    from mi_core.lots.draw import asking_order, joined_draws, waves_of
    from mi_core.lots.verdict import judge_claim
    from pipelines.lots.statement import Stated

    read = Stated(stated, storage.read_table(str(path.parent / "opened.parquet")))
    (header,), (entry,) = read.headers, stated["releases"]
    order = asking_order([header.commitment], [60])
    drawn = joined_draws([header.design], [entry["albums"]], [draw(header.design, entry["salt"], entry["beacon"])])
    place = np.argsort(read.rows)
    scores = np.asarray(read.opened["score"])[place][order]
    found = judge_claim(drawn, order, waves_of([60]), scores, seed=read.nonce).as_json()
    told_anew: dict[str, Any] = json.loads(json.dumps(found))
    return told_anew


def test_who_asks_again_needs_the_same_lot_and_the_same_question(
    fixed_claim: Path, tmp_path: Path, weights: Path
) -> None:
    other = drawn_lot(tmp_path, 50)
    assert "is not the lot of" in told(run("verify", fixed_claim, other, *named(weights)))
    said = told(run("verify", fixed_claim, *named(weights), "--size", "8"))
    assert "this would ask in another way: decoder; give the settings of the claim" in said
    gone = tmp_path / "lot-without"
    shutil.copytree(fixed_claim.parents[2], gone)
    shutil.rmtree(gone / "published")
    result = run("verify", fixed_claim, gone, *named(weights))
    assert result.exit_code == 4 and "images that chance picked are missing now" in result.output


def test_a_later_number_decides_a_registered_question(tmp_path: Path, weights: Path) -> None:
    lot = drawn_lot(tmp_path, 60)
    later = "round 99 of drand"
    registered = run("claim", "register", lot, *named(weights), "--decided-by", later)
    assert registered.exit_code == 0, told(registered)
    question = Lot.at(str(lot)).chain()[-1]
    assert isinstance(question, Question)
    assert question.commitment in registered.output and question.decided_by == later
    assert not (lot / "claims").exists()  # nothing was asked
    assert "to be decided by 'round 99 of drand'; ask with --beacon" in told(run("claim", lot, *named(weights)))
    done = run("claim", "ask", lot, *named(weights), "--beacon", LATER)
    assert done.exit_code == 0 and done.stdout.startswith("NOT SHOWN (witnessed)"), told(done)
    assert f"decided by {LATER}" in told(run("claim", "ask", lot, *named(weights), "--beacon", "f00d" * 16))
    (statement,) = (lot / "claims").glob("*/statement.json")
    checks = verify_claim(str(statement))
    (looked,) = (check.text for check in checks if check.about == "question" and check.outcome == "open")
    assert f"look up that {later} was {LATER}" in looked and question.commitment in looked
    assert not failing(statement)
    with pytest.raises(UserError, match="run encoder-audit claim register"):
        claim(str(lot), "checkpoint:resnet8-narrow", weights=str(weights), size=8, beacon=LATER)
    with pytest.raises(UserError, match="to be decided by 'round 99 of drand'"):
        register_claim(str(lot), "checkpoint:resnet8-narrow", "round 100", weights=str(weights))


def test_another_spelling_of_an_address_is_no_other_question(tmp_path: Path) -> None:
    lot = drawn_lot(tmp_path, 60)
    with serving(
        lambda images: {"backbone": images.mean(dim=(2, 3)) @ torch.arange(24.0).reshape(3, 8).sin()}
    ) as server:
        url = f"{server.url}/json"
        spelled = url.replace("http://", "HTTP://", 1).rstrip("/") + "//"
        found = [claim(str(lot), one, endpoint={"weights_tag": tag}) for tag, one in enumerate(map(str, (url, url)))]
        described = {one.question.commitment for one in found}
        assert len(described) == 1
        from pipelines.lots.question import _mark_of_address

        assert _mark_of_address(url, None) == _mark_of_address(spelled, None) != _mark_of_address(url, "other")
        assert found[0].grade == FIXED and found[0].result == found[1].result
        sized = claim(str(lot), url, endpoint={"size": 16})
        assert sized.grade == OWNERS_WORD and sized.question.given == ("endpoint.size",)


def test_images_that_come_back_are_asked_about(tmp_path: Path) -> None:
    lot = drawn_lot(tmp_path, 120)
    encoder = Remembering(range(120))
    path = max((lot / "published").rglob("*.png"))
    path.rename(tmp_path / "away.png")
    assert ask_function(lot, encoder).lost == 1
    (tmp_path / "away.png").rename(path)
    asked = encoder.asked
    found = ask_function(lot, encoder)
    assert found.lost == 0 and encoder.asked - asked < 40  # one image, and what tries an encoder out
    assert not failing(Path(found.statement) / "statement.json")


def test_a_small_lot_says_what_it_can_show_before_it_is_drawn(tmp_path: Path) -> None:
    images = photos(tmp_path, range(150))
    commit = run("lot", "commit", images, "--out", tmp_path / "lot", "--decided-by", ROUND)
    assert "With 120 images published and 30 held back" in commit.stderr and "AUC of .69 or more" in commit.stderr
    assert not (tmp_path / "lot" / "published").exists()


def test_the_least_auc_is_that_of_the_exact_test() -> None:
    """Normal scores drawn at the least AUC are found in four of five lots."""
    generator, apart, found = np.random.default_rng(0), np.sqrt(2) * ndtri(least_auc(120, 30)), []
    held = np.arange(150) < 30
    for number in range(400):
        scores = generator.standard_normal(150) + apart * ~held
        found.append(held_back_p_value(scores, held, np.zeros(150, dtype=np.int64), seed=number, draws=1999))
    assert 0.74 < np.mean(np.array(found) <= level_of(1)) < 0.86


def test_a_tenth_finds_answers_of_which_few_were_moved() -> None:
    """The fewest moved answers that make a USED: picked by support they are found, picked evenly half are missed."""
    generator, missed, missed_evenly, count, asked = np.random.default_rng(0), [], [], 500, 50
    held = np.arange(count) < count // 5
    drawn = Drawn(np.zeros(count, dtype=np.int64), ("",), held)
    for _ in range(20):
        scores = generator.standard_normal(count)
        best = [one for one in np.argsort(-scores) if held[one]]
        for moved in range(1, count):
            forged = scores.copy()
            forged[best[:moved]] = scores.min() - 1 - np.arange(moved)
            if held_back_p_value(forged, held, drawn.strata, seed=1, draws=999) <= level_of(1):
                break
        chances = support_of(drawn, np.arange(count), forged)
        assert chances.sum() == pytest.approx(1) and chances.min() >= 0.5 / count
        for found, p in ((missed, chances), (missed_evenly, None)):
            for _ in range(50):
                found.append(not np.isin(best[:moved], generator.choice(count, asked, replace=False, p=p)).any())
    assert np.mean(missed) < 0.1 < 0.3 < np.mean(missed_evenly)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority of time stamps that OpenSSL plays."""
    place = tmp_path_factory.mktemp("authority")
    (place / "serial").write_text("01\n")
    (place / "authority.cnf").write_text(AUTHORITY.format(place=place))
    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=root", "-extensions", "root"]
    openssl(place, *new, "-keyout", "root.key", "-out", "root.pem", "-config", "authority.cnf")
    request = ["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=clock", "-config", "authority.cnf"]
    openssl(place, *request, "-keyout", "clock.key", "-out", "clock.csr")
    signed = ["x509", "-req", "-in", "clock.csr", "-CA", "root.pem", "-CAkey", "root.key", "-CAcreateserial"]
    openssl(place, *signed, "-out", "clock.pem", "-days", "30", "-extfile", "authority.cnf", "-extensions", "clock")
    return place


AUTHORITY = """
[tsa]
default_tsa = clock_of_tests
[clock_of_tests]
serial = {place}/serial
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256
ess_cert_id_alg = sha256
[req]
distinguished_name = name
[name]
[clock]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
[root]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
"""


def openssl(place: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=place, check=True, capture_output=True)


def stamp(authority: Path, digest: str) -> bytes:
    """A time stamp (RFC 3161) of 64 hex digits."""
    openssl(authority, "ts", "-query", "-digest", digest, "-sha256", "-cert", "-out", "query")
    reply = ["ts", "-reply", "-queryfile", "query", "-signer", "clock.pem", "-inkey", "clock.key"]
    openssl(authority, *reply, "-config", "authority.cnf", "-out", "reply")
    return (authority / "reply").read_bytes()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="OpenSSL plays the authority")
def test_time_stamps_are_kept_and_checked(tmp_path: Path, weights: Path, authority: Path) -> None:
    pytest.importorskip("rfc3161_client")
    lot = drawn_lot(tmp_path, 60)
    (lot / "stamps").mkdir()
    commitment = Lot.at(str(lot)).releases()[0].header.commitment
    (lot / "stamps" / "release-1.tsr").write_bytes(stamp(authority, commitment))
    _, statement = claimed(lot, *named(weights))
    assert outcomes(statement)["stamp"] == {"open"}
    roots = str(authority / "root.pem")
    assert outcomes(statement, roots=roots)["stamp"] == {"holds"}
    assert "was known at" in run("verify", statement, "--roots", roots).output
    other = tmp_path / "other.pem"
    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=root", "-extensions", "root"]
    openssl(authority, *new, "-keyout", "other.key", "-out", str(other), "-config", "authority.cnf")
    assert outcomes(statement, roots=str(other))["stamp"] == {"FAILS"}
    stated = storage.read_json(str(statement))
    stated["stamps"] = [base64.b64encode(stamp(authority, "ab" * 32)).decode(), base64.b64encode(b"no").decode()]
    storage.write_json(str(statement), stated)
    assert outcomes(statement)["stamp"] == {"note", "FAILS"}


def test_a_claim_in_a_log_tells_its_progress_once_and_how_it_ended(tmp_path: Path, weights: Path) -> None:
    """A library sets up the root logger; the process is told to end while the encoder is asked."""
    lot = drawn_lot(tmp_path, 60)
    script = f"""
import logging, os, signal, sys, threading, time
import mi_core.auditing.questions as questions
from pipelines.run import heartbeat
heartbeat.LINE_SECONDS = 0.5
logging.basicConfig(level=logging.INFO)
def slow(*arguments):
    time.sleep(2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
questions.Scorer.similarity = slow
sys.argv[1:] = ["claim", {str(lot)!r}, "--encoder", "checkpoint:resnet8-narrow", "--weights", {str(weights)!r}]
from pipelines.cli.process import run
run()
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    told = done.stderr.splitlines()
    assert any("claim  asking the encoder: " in line and "images" in line for line in told), done.stderr
    assert sum("asking about 60 images" in line for line in told) == 1
    assert told[-1].startswith("encoder-audit: ") and "SIGTERM" in told[-1]


def other_numbers(_: dict[str, Any], table: pa.Table) -> pa.Table:
    """Rows of a release that does not exist, whose images would be checked against nothing."""
    count = np.ones(len(table), dtype=np.int64)
    return table.set_column(0, "release", pa.array(count)).set_column(
        1, "unit", pa.array(np.asarray(table["unit"]) - 60)
    )


@pytest.mark.parametrize(
    ("change", "about"),
    [
        (other_numbers, "chain"),
        (column("blind", lambda values: [values[0] + b"ab,", *values[1:]]), "commitment"),
        (column("sha256", lambda values: [f"{values[0]},{'0' * 64}", *values[1:]]), "commitment"),
        (column("score", lambda values: [1e9, *values[1:]]), "completeness"),
        (edited(("chain.1.plan.counted", "until-decided")), "chain"),
        (edited(("chain.1.given", ["size"])), "chain"),
        (edited(("chain.0.beacon", "round 8")), "chain"),
        (edited(("chain.0.counted", "until-decided")), "chain"),
        (edited(("releases.0.beacon", "c0ffe0" * 10 + "c0ff")), "result"),
        (edited(("grade", "witnessed")), "grade"),
    ],
)
def test_what_no_lot_has_and_what_makes_the_grade_cannot_be_edited(
    fixed_claim: Path, tmp_path: Path, change: Change, about: str
) -> None:
    """Beside the forgeries of `test_statement`, where the owner drew alone."""
    path = changed(fixed_claim.parent, tmp_path / "forged", change) / "statement.json"
    assert about in failing(path)
    assert run("verify", path).exit_code == 1


@pytest.mark.parametrize(
    ("place", "value", "about"),
    [
        ("releases.0.albums", [], "chain"),
        ("chain.1.plan.views", 10.0, "question"),
        ("chain.1.plan.captions", 0, "question"),
        ("chain.1.plan.adapter", "x17", "question"),
        ("chain.1.encoder", "checkpoint:resnet8", "encoder"),
    ],
)
def test_what_a_digest_tells_apart_is_no_detail(
    fixed_claim: Path, tmp_path: Path, weights: Path, place: str, value: Any, about: str
) -> None:
    """All digests of the chain are written anew, and the result is judged anew; the encoder is asked again."""
    with forged(fixed_claim, tmp_path / "forged") as stated:
        if place == "chain.1.plan.adapter":
            stated["chain"][1]["plan"]["adapter"] = value
        else:
            edited((place, value))(stated, pa.table({}))
    path = tmp_path / "forged" / "statement.json"
    if about == "encoder":
        result = run("verify", path, fixed_claim.parents[2], *named(weights))
        assert result.exit_code == 1 and "the encoder given is checkpoint:resnet8-narrow" in result.output
    else:
        assert {about, "commitment"} & failing(path)


def test_releases_of_one_salt_are_refused(tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their coins would be the same, and count as independent."""
    monkeypatch.setattr("pipelines.lots.vault.secrets.token_hex", lambda size: "ab" * size)
    _, statement = claimed(drawn_lot(tmp_path, 60, 60), *named(weights))
    assert failing(statement) == {"chain"}


def test_other_spellings_of_a_beacon_draw_the_same(tmp_path: Path) -> None:
    design, salt = Design((40,)), "0" * 64
    first = draw(design, salt, BEACON).held_back
    for spelling in (BEACON.upper(), f"0x{BEACON}", f" {BEACON[:9]} {BEACON[9:]}"):
        assert np.array_equal(first, draw(design, salt, spelling).held_back)
    assert not np.array_equal(first, draw(design, salt, LATER).held_back)
    images = photos(tmp_path, range(60))
    run("lot", "commit", images, "--out", tmp_path / "lot", "--decided-by", ROUND)
    for wrong in (BEACON.upper(), BEACON[:-1], "c0ffee"):
        assert "is no number of drand" in told(run("lot", "draw", images, "--out", tmp_path / "lot", "--beacon", wrong))


def test_a_missing_answer_never_speaks_for_a_use() -> None:
    held = np.arange(100) < 20
    drawn = Drawn(np.zeros(100, dtype=np.int64), ("",), held, caption=np.zeros(100, dtype=np.int8))
    images, captions = counted_against(np.full((100, 7), np.nan), drawn, np.arange(100))
    assert (images[held] == 1).all() and (images[~held] == -1).all()
    assert captions is not None and (captions[~held] == [-1, *[1] * 5]).all() and (captions[held] == 1).all()


def test_answers_that_lean_a_little_towards_a_use_are_found() -> None:
    """Each moved by less than the noise of an API."""
    generator = np.random.default_rng(0)
    now, held = np.repeat(generator.normal(0.5, 0.1, (400, 1)), 3, axis=1), np.arange(400) < 80
    noise = np.repeat(generator.normal(0, 0.004, (400, 1)), 3, axis=1)
    assert _compare(now, now + noise, held, is_noisy=True).outcome == "holds"
    leaning = now + noise + np.where(held, -0.005, 0.005)[:, None]
    assert _compare(now, leaning, held, is_noisy=True).outcome == "FAILS"
    assert _compare(now, now + np.where(held, -0.0002, 0.0002)[:, None], held, is_noisy=False).outcome == "FAILS"
    assert _compare(now, np.where(np.arange(400)[:, None] == 3, np.nan, now), held, is_noisy=False).outcome == "FAILS"


def test_a_word_that_is_no_command_is_told_the_commands() -> None:
    assert "lot status: no command (prepare, commit, draw), and no folder that is there" in told(run("lot", "status"))
    assert "claim ask, and no" not in told(run("claim", "ask"))
    assert "claim asks: no command (register, ask, join)" in told(run("claim", "asks"))
