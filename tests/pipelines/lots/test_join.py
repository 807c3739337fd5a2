"""Claims of many owners together: what no lot shows alone, and nothing for who chooses among them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.claim import claim
from pipelines.lots.join import JointClaim, Union, join_claims
from tests.pipelines.lots.test_claim import PLAIN, SIDE, Remembering, picture, published
from tests.raising import refused

OWNERS, EACH = 5, 10
ROUND, VALUE = "round 7 of the town's lottery, union of painters", "12 7 31 4"


class Network(torch.nn.Module):
    """`Remembering` with weights, so that all owners give it one fingerprint."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.answers = Remembering(known)
        self.register_buffer("colours", self.answers.colours)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.answers(images)


def commit(place: Path, numbers: range, *options: str) -> Path:
    (place / "photos").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (place / "photos" / f"{number:04d}.png").write_bytes(picture(number))
    run("lot", "commit", f"{place}/photos", "--out", f"{place}/lot", *options)
    return place / "lot"


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def claimed(place: Path, names: Sequence[str] = ("used", "unused")) -> None:
    """Lots in ``place/lots`` drawn by one number: their headers in ``union``, statements in ``used`` and ``unused``."""
    lots = sorted(place.glob("lots/*/lot"))
    (place / "union").mkdir()
    for owner, lot in enumerate(lots):
        shutil.copy(lot / "header-001.json", place / "union" / f"{owner}.json")
        run("lot", "draw", f"{lot.parent}/photos", "--out", str(lot), "--beacon", VALUE)
    for name in names:
        images = set().union(*map(published, lots)) if name == "used" else set()
        for owner, lot in enumerate(lots):
            found = claim(str(lot), Network(images), size=SIDE, objective="simclr", augmentation=PLAIN)
            assert found.result.verdict == "not shown" and found.result.questions_asked == 1 + names.index(name)
            shutil.copytree(found.statement, place / name / str(owner))
    shutil.rmtree(place / "lots")


@pytest.fixture(scope="module")
def painters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `claimed` leaves it, of five owners; coins follow from a seed."""
    place, drawn = tmp_path_factory.mktemp("painters"), random.Random(7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.lots.vault.secrets.token_hex", lambda size: drawn.randbytes(size).hex())
        for owner in range(OWNERS):
            numbers = range(EACH * owner, EACH * (owner + 1))
            commit(place / "lots" / str(owner), numbers, "--decided-by", ROUND)
        claimed(place)
    return place


def joined(painters: Path, name: str, owners: range = range(OWNERS)) -> JointClaim:
    return join_claims(f"{painters}/union", [f"{painters}/{name}/{owner}" for owner in owners])


def test_many_small_lots_show_together_what_none_shows_alone(painters: Path) -> None:
    used, unused = joined(painters, "used"), joined(painters, "unused")
    assert used.verdict == "used" and used.p_value < 1e-3 and used.level == 0.005 and used.value == VALUE
    assert unused.verdict == "not shown" and unused.level == pytest.approx(0.01 / 6)
    backwards = joined(painters, "used", range(OWNERS - 1, -1, -1))
    assert backwards.p_value == pytest.approx(used.p_value), "the order of the statements"
    told = run("claim", "join", f"{painters}/union", *(f"{painters}/used/{owner}" for owner in range(OWNERS)))
    assert "USED (the owner's word)" in told and Union.read(f"{painters}/union").digest in told.replace("\n", "")


def test_a_statement_that_is_left_out_counts_against_the_claim(painters: Path) -> None:
    p_values = [joined(painters, "used", range(count)).p_value for count in range(1, OWNERS + 1)]
    assert p_values == sorted(p_values, reverse=True) and p_values[0] > 0.3
    fewer = joined(painters, "used", range(OWNERS - 1))
    assert len(fewer.absent) == 1
    alone = [storage.read_json(f"{painters}/used/{one}/statement.json")["result"]["p_value"] for one in range(OWNERS)]
    assert fewer.p_value == pytest.approx(chi2.sf(-2 * np.log(alone[:-1]).sum(), 2 * OWNERS))


def test_the_list_is_named_before_the_draw(painters: Path) -> None:
    told = run("claim", "join", f"{painters}/union")
    listed = Union.read(f"{painters}/union")
    assert f"list of {OWNERS} lots: {listed.digest}" in told and ROUND in told.replace("\n", " ")
    shutil.copytree(painters / "union", painters / "smaller")
    (painters / "smaller" / "0.json").unlink()
    assert Union.read(f"{painters}/smaller").digest != listed.digest


def of_another_round(place: Path) -> None:
    lot = commit(place / "late", range(900, 910), "--decided-by", "round 8")
    shutil.copy(lot / "header-001.json", place / "union" / "late.json")


def drawn_alone(place: Path) -> None:
    (place / "alone" / "photos").mkdir(parents=True)
    (place / "alone" / "photos" / "1.png").write_bytes(picture(901))
    (place / "alone" / "photos" / "2.png").write_bytes(picture(902))
    run("lot", f"{place}/alone/photos", "--out", f"{place}/alone/lot", "--share", ".5")
    shutil.copy(place / "alone" / "lot" / "header-001.json", place / "union" / "alone.json")


def until_decided(place: Path) -> None:
    lot = commit(place / "early", range(900, 910), "--decided-by", ROUND, "--until-decided")
    shutil.copy(lot / "header-001.json", place / "union" / "early.json")


def forged(place: Path) -> None:
    path = f"{place}/used/3/statement.json"
    stated = storage.read_json(path)
    stated["result"]["p_value"] = 1e-9
    storage.write_json(path, stated)


def of_another_encoder(place: Path) -> None:
    shutil.rmtree(place / "used" / "3")
    shutil.copytree(place / "unused" / "3", place / "used" / "3")


def given_twice(place: Path) -> None:
    shutil.copytree(place / "used" / "3", place / "used" / "9")


def of_one_more_lot(place: Path, value: str, releases: int = 1) -> None:
    lot = place / "more" / "lot"
    for number in range(releases):
        commit(place / "more", range(900 + 10 * number, 910 + 10 * number), "--decided-by", ROUND)
        run("lot", "draw", f"{lot.parent}/photos", "--out", str(lot), "--beacon", value)
    shutil.copy(lot / "header-001.json", place / "union" / "more.json")
    shutil.rmtree(place / "used")
    found = claim(str(lot), Network(set()), size=SIDE, objective="simclr", augmentation=PLAIN)
    (place / "unused").rename(place / "used")
    shutil.copytree(found.statement, place / "used" / "9")


def of_two_releases(place: Path) -> None:
    of_one_more_lot(place, VALUE, 2)


def drawn_by_another_value(place: Path) -> None:
    of_one_more_lot(place, "1 2 3 4")


def of_no_lot_of_the_list(place: Path) -> None:
    (place / "union" / "3.json").unlink()


def no_header(place: Path) -> None:
    (place / "union" / "notes.json").write_text("[]")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_another_round, "one lot is decided by \"round 7 .*, another by 'round 8'"),
        (drawn_alone, "alone.json: its owner draws alone"),
        (until_decided, "early.json: it was committed with --until-decided"),
        (forged, "used/3/statement.json: result FAILS: the answers give another p_value"),
        (of_another_encoder, "used/3/statement.json has another fingerprint than .*used/0"),
        (given_twice, "used/9/statement.json and .*used/3/statement.json are about one lot"),
        (of_no_lot_of_the_list, "used/3/statement.json: its lot is not listed"),
        (of_two_releases, "used/9/statement.json: its lot has later releases"),
        (drawn_by_another_value, "2 values of round 7"),
        (no_header, "notes.json: it is no header of a lot"),
    ],
)
def test_what_would_let_somebody_choose_is_refused(
    painters: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    for name in ("union", "used", "unused"):
        shutil.copytree(painters / name, tmp_path / name)
    change(tmp_path)
    statements = sorted(map(str, (tmp_path / "used").iterdir()))
    refused(UserError, message, lambda: join_claims(f"{tmp_path}/union", statements))


def test_lots_with_one_salt_do_not_count_as_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.lots.vault.secrets.token_hex", lambda size: "5a" * size)
    for owner in range(2):
        commit(tmp_path / "lots" / str(owner), range(10 * owner, 10 * owner + 10), "--decided-by", ROUND)
    claimed(tmp_path, ["unused"])
    refused(UserError, "two lots have one salt", joined, tmp_path, "unused", range(2))
