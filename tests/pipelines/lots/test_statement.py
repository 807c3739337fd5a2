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

from mi_core.lots.merkle import proof_of
from pipelines.cli.app import app
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.vault import Lot
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
    other = change(stated, storage.read_table(str(place / "opened.parquet")))
    if other is not None:
        storage.write_table(str(place / "opened.parquet"), other)
        stated["answers"]["opened"] |= {"sha256": file_digest(str(place / "opened.parquet")), "rows": len(other)}
    storage.write_json(str(place / "statement.json"), stated)
    return place


def edited(*edits: tuple[str, Any]) -> Change:
    """An edit of some entries of a statement, each by the way to it; a function makes the new value of the old."""

    def change(stated: dict[str, Any], _: pa.Table) -> None:
        for place, value in edits:
            *way, last = (int(part) if part.isdigit() else part for part in place.split("."))
            entry: Any = stated
            for part in way:
                entry = entry[part]
            new = value(entry[last]) if callable(value) else value
            assert entry[last] != new or type(entry[last]) is not type(new), place
            entry[last] = new

    return change


def column(name: str, new: Callable[[list[Any]], list[Any]]) -> Change:
    """A change of a column of opened.parquet."""

    def change(_: dict[str, Any], table: pa.Table) -> pa.Table:
        at, field = table.schema.get_field_index(name), table.schema.field(name)
        return table.set_column(at, field, pa.array(new(table[name].to_pylist()), field.type))

    return change


FORGERIES: list[tuple[Change, str]] = [
    *(
        (edited((place, value)), about)
        for place, value, about in (
            ("releases.0.salt", "0" * 64, "commitment"),
            ("releases.0.beacon", "1", "commitment"),
            ("releases.0.albums.0", "Album of the plaintiff", "commitment"),
            ("grade", "fixed", "grade"),
            ("question", "0" * 64, "chain"),
            ("answers.value", "7", "chain"),
            ("chain.0.design.share", 0.3, "chain"),
            ("chain.0.beacon", "round 8", "chain"),
            ("chain.0.counted", "all", "chain"),
            ("chain.0.albums_sha256", "0" * 64, "chain"),
            ("chain.1.plan.counted", "all", "chain"),
            ("chain.1.plan.views", 50, "chain"),
            ("chain.1.plan.captions", True, "chain"),
            ("chain.1.time", "2020-01-01T00:00:00+00:00", "chain"),
            ("chain.1.encoder", "open_clip:ViT-B-32", "chain"),
            ("chain.1.fingerprint", "0" * 64, "chain"),
            ("chain.1.given", [], "chain"),
            ("chain.1.decided_by", "drand quicknet round 1", "chain"),
            ("chain.1.tool", {"version": "9"}, "chain"),
            ("chain.1.previous", "0" * 64, "chain"),
            ("result.any_time_p_value", lambda value: value / 10, "result"),
            ("result.verdict", "not shown", "result"),
            ("result.questions_asked", 2, "result"),
            ("result.level", 0.05, "result"),
        )
    ),
    (edited(("chain.0.counted", "all"), ("chain.1.plan.counted", "all")), "chain"),  # all were promised
    (column("sha256", lambda values: ["0" * 64, *values[1:]]), "commitment"),  # another image
    (column("unit", lambda values: [values[1], values[0], *values[2:]]), "commitment"),  # images swapped
    (lambda _, table: table.slice(1), "commitment"),  # an image left out
    (column("score", lambda values: (values + np.random.default_rng(0).random(len(values))).tolist()), "completeness"),
]
"""What an owner would write in place of what is so, and the check that finds it."""


@pytest.mark.parametrize(("change", "about"), FORGERIES)
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
    leaves = Lot.at(str(lot)).releases()[0].leaves()

    def best_hundred(stated: dict[str, Any], table: pa.Table) -> pa.Table:
        chosen = table.take(pa.array(np.sort(np.argsort(-np.asarray(table["score"]))[:100])))
        stated["releases"][0]["proof"] = [one.hex() for one in proof_of(leaves, sorted(chosen["unit"].to_pylist()))]
        return chosen

    found = ask(lot, Remembering(()))
    checks = outcomes(changed(Path(found.statement), tmp_path / "forged", best_hundred))
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
