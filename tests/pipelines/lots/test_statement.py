"""Statements of claims: they hold without the vault, and every forgery is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.verify import verify_claim
from pipelines.report.bindings import file_digest
from tests.pipelines.lots.test_claim import Remembering, ask, lot_of, picture, published
from tests.raising import refused

BEACON = "c0ffee" * 10 + "c0ff"
Change = Callable[[dict[str, Any], pa.Table], pa.Table | None]


@pytest.fixture(scope="module")
def handed_over(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two files of a claim that stopped early, in a folder without a vault."""
    place = tmp_path_factory.mktemp("claim")
    lot = lot_of(place, range(300), options=["--until-decided"])
    found = ask(lot, Remembering(published(lot)))
    assert found.result.verdict == "used" and found.result.asked < 300
    (place / "handed").mkdir()
    for name in ("statement.json", "opened.parquet"):
        shutil.copy(f"{found.statement}/{name}", place / "handed" / name)
    shutil.rmtree(lot)
    return place / "handed"


def outcomes(folder: Path) -> dict[str, str]:
    return {check.about: check.outcome for check in verify_claim(str(folder / "statement.json"))}


def test_a_statement_holds_without_the_vault(handed_over: Path) -> None:
    found = outcomes(handed_over)
    assert "FAILS" not in found.values()
    assert [found[name] for name in ("opened", "chain", "commitment", "completeness", "result")] == ["holds"] * 5
    assert found["draw"] == "open" and found["encoder"] == "open"
    result = CliRunner().invoke(app, ["verify", str(handed_over / "statement.json")])
    first, second, *_ = result.output.splitlines()
    assert first.startswith("CANNOT TELL. The statement says USED, grade: the owner's word. Nothing here shows that")
    assert second.startswith("open   encoder: nobody asked")
    assert result.exit_code == 4 and "DRAWN BY THE OWNER ALONE" in result.output


def test_only_what_was_asked_about_is_opened(handed_over: Path) -> None:
    stated = storage.read_json(str(handed_over / "statement.json"))
    table = storage.read_table(str(handed_over / "opened.parquet"))
    assert len(table) == stated["answers"]["opened"]["rows"] == stated["result"]["asked"] < 300
    assert not any(key in stated["releases"][0] for key in ("key", "secret"))


def changed(handed_over: Path, place: Path, change: Change) -> Path:
    """A copy of the statement with something changed, and digests that fit again."""
    shutil.copytree(handed_over, place)
    stated = storage.read_json(str(place / "statement.json"))
    table = storage.read_table(str(place / "opened.parquet"))
    other = change(stated, table)
    if other is not None:
        storage.write_table(str(place / "opened.parquet"), other)
        stated["answers"]["opened"] |= {"sha256": file_digest(str(place / "opened.parquet")), "rows": len(other)}
    storage.write_json(str(place / "statement.json"), stated)
    return place


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(name), pa.array(values, table.schema.field(name).type))


def another_salt(stated: dict[str, Any], _: pa.Table) -> None:
    stated["releases"][0]["salt"] = "0" * 64


def another_header(stated: dict[str, Any], _: pa.Table) -> None:
    stated["chain"][0]["design"]["share"] = 0.3


def another_beacon(stated: dict[str, Any], _: pa.Table) -> None:
    stated["releases"][0]["beacon"] = "1"


def another_image(_: dict[str, Any], table: pa.Table) -> pa.Table:
    return with_column(table, "sha256", ["0" * 64, *table["sha256"].to_pylist()[1:]])


def images_swapped(_: dict[str, Any], table: pa.Table) -> pa.Table:
    units = table["unit"].to_pylist()
    return with_column(table, "unit", [units[1], units[0], *units[2:]])


def better_answers(_: dict[str, Any], table: pa.Table) -> pa.Table:
    return with_column(table, "score", np.asarray(table["score"]) + np.random.default_rng(0).random(len(table)))


def an_image_left_out(_: dict[str, Any], table: pa.Table) -> pa.Table:
    return table.slice(1)


def another_p_value(stated: dict[str, Any], _: pa.Table) -> None:
    stated["result"]["any_time_p_value"] /= 10


def another_verdict(stated: dict[str, Any], _: pa.Table) -> None:
    stated["result"]["verdict"] = "not shown"


def fewer_questions(stated: dict[str, Any], _: pa.Table) -> None:
    stated["result"]["questions_asked"] = 2


def all_promised(stated: dict[str, Any], _: pa.Table) -> None:
    stated["chain"][0]["counted"] = stated["chain"][1]["plan"]["counted"] = "all"


def another_album(stated: dict[str, Any], _: pa.Table) -> None:
    stated["releases"][0]["albums"][0] = "Album of the plaintiff"


def another_grade(stated: dict[str, Any], _: pa.Table) -> None:
    stated["grade"] = "fixed"


def of_the_question(**fields: Any) -> Change:
    """A change of what was registered."""

    def change(stated: dict[str, Any], _: pa.Table) -> None:
        question = stated["chain"][-1]
        question |= {name: value for name, value in fields.items() if name in question}
        question["plan"] |= {name: value for name, value in fields.items() if name in question["plan"]}

    return change


OTHERS: dict[str, Any] = {
    "counted": "all",
    "views": 50,
    "time": "2020-01-01T00:00:00+00:00",
    "encoder": "open_clip:ViT-B-32",
    "fingerprint": "0" * 64,
    "given": [],
    "decided_by": "drand quicknet round 1",
    "tool": {"version": "9"},
    "captions": True,
    "previous": "0" * 64,
}
"""What an owner would write in place of what was registered."""


@pytest.mark.parametrize(
    ("change", "about"),
    [
        (another_salt, "commitment"),
        (another_header, "chain"),
        (another_album, "commitment"),
        (another_grade, "grade"),
        *((of_the_question(**{name: value}), "chain") for name, value in OTHERS.items()),
        (another_beacon, "commitment"),
        (another_image, "commitment"),
        (images_swapped, "commitment"),
        (an_image_left_out, "commitment"),
        (better_answers, "completeness"),
        (another_p_value, "result"),
        (another_verdict, "result"),
        (fewer_questions, "result"),
        (all_promised, "chain"),
    ],
)
def test_every_forgery_is_found(handed_over: Path, tmp_path: Path, change: Change, about: str) -> None:
    place = changed(handed_over, tmp_path / "forged", change)
    assert outcomes(place).get(about) == "FAILS"
    result = CliRunner().invoke(app, ["verify", str(place / "statement.json")])
    assert result.exit_code == 1


def test_other_bytes_of_what_was_opened_are_found(handed_over: Path, tmp_path: Path) -> None:
    place = changed(handed_over, tmp_path / "forged", lambda stated, table: None)
    storage.write_table(str(place / "opened.parquet"), storage.read_table(str(place / "opened.parquet")).slice(1))
    assert outcomes(place)["opened"] == "FAILS"


def test_an_owner_cannot_choose_images_by_their_answers(tmp_path: Path) -> None:
    """Asking about the first half alone, and proving that, is seen: they are not the first of the order."""
    lot = lot_of(tmp_path, range(200), options=["--until-decided"])
    found = ask(lot, Remembering(()))
    stated = storage.read_json(f"{found.statement}/statement.json")
    table = storage.read_table(f"{found.statement}/opened.parquet")
    kept = np.sort(np.argsort(-np.asarray(table["score"]))[:100])
    from mi_core.lots.merkle import proof_of
    from pipelines.lots.vault import Lot

    chosen = table.take(pa.array(kept))
    leaves = Lot.at(str(lot)).releases()[0].leaves()
    stated["releases"][0]["proof"] = [one.hex() for one in proof_of(leaves, sorted(chosen["unit"].to_pylist()))]
    storage.write_table(f"{found.statement}/opened.parquet", chosen)
    stated["answers"]["opened"] |= {"sha256": file_digest(f"{found.statement}/opened.parquet"), "rows": 100}
    storage.write_json(f"{found.statement}/statement.json", stated)
    checks = outcomes(Path(found.statement))
    assert checks["commitment"] == "holds" and checks["completeness"] == "FAILS"


def test_a_lot_with_a_beacon_says_what_to_look_up(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(100):
        (tmp_path / "photos" / f"{number:04d}.png").write_bytes(picture(number))
    beacon = "drand quicknet round 12345678"
    for command in (["commit", "--decided-by", beacon], ["draw", "--beacon", BEACON]):
        arguments = ["lot", command[0], str(tmp_path / "photos"), "--out", str(tmp_path / "lot"), *command[1:]]
        assert CliRunner().invoke(app, arguments).exit_code == 0
    found = ask(tmp_path / "lot", Remembering(()))
    checks = {check.about: check for check in verify_claim(f"{found.statement}/statement.json")}
    assert checks["draw"].outcome == "open" and f"{beacon} was {BEACON}" in checks["draw"].text


def test_what_is_no_statement_is_refused(tmp_path: Path, handed_over: Path) -> None:
    path = tmp_path / "statement.json"
    refused(UserError, "no statement of a claim", verify_claim, str(path))
    path.write_text("{")
    refused(UserError, "no statement of a claim", verify_claim, str(path))
    shutil.copy(handed_over / "statement.json", path)
    refused(UserError, r"opened\.parquet is missing", verify_claim, str(path))
    shutil.copy(handed_over / "opened.parquet", tmp_path)
    assert not any(check.outcome == "FAILS" for check in verify_claim(str(path)))
    stated = storage.read_json(str(path))
    del stated["releases"][0]["proof"]
    storage.write_json(str(path), stated)
    refused(UserError, "is damaged", verify_claim, str(path))
