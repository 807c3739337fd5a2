"""Claims on lots whose truth is planted: encoders that remember some pictures, or none."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from mi_core.encoders.checkpoint import Encoder as EncoderModule
from mi_core.lots.commitment import Question
from mi_core.lots.words import grade_in_words, headline, lines
from pipelines.cli.app import app
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.claim import Claim, claim
from pipelines.lots.vault import Lot, drawn_of, order_of
from pipelines.lots.verify import verify_claim
from tests.mi_core.report.page.page import Page
from tests.raising import refused

SIDE = 8
PLAIN = {"jitter_probability": 0.0, "grayscale": 0.0, "blur": 0.0}
Encoder = Callable[[torch.Tensor], torch.Tensor]


def colour_of(number: int) -> np.ndarray:
    """A colour that no other of 4,096 pictures is near."""
    return np.array([number % 16, number // 16 % 16, number // 256]) * 15 + 10


def picture(number: int) -> bytes:
    """A PNG of one colour with a little noise."""
    noise = np.random.default_rng(number).integers(-3, 4, (SIDE, SIDE, 3))
    buffer = io.BytesIO()
    Image.fromarray((colour_of(number) + noise).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def lot_of(
    place: Path, numbers: Collection[int], albums: int = 1, options: Sequence[str] = (), captions: bool = False
) -> Path:
    """A lot of pictures that is drawn and written; new pictures make a new release."""
    for number in numbers:
        path = place / "photos" / f"album{number % albums}" / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
        if captions:
            path.with_suffix(".txt").write_text(f"picture {number}")
    result = CliRunner().invoke(app, ["lot", str(place / "photos"), "--out", str(place / "lot"), *options])
    assert result.exit_code == 0, result.output
    return place / "lot"


def published(lot: Path) -> set[int]:
    return {int(path.stem) for path in (lot / "published").rglob("*.png")}


class Remembering:
    """Answers to views of pictures that it knows are alike; to others they depend on the noise. It counts images."""

    def __init__(self, known: Collection[int]) -> None:
        self.colours = torch.tensor(np.stack([colour_of(one) for one in sorted(known)] or [[-1e3] * 3])).float()
        self.asked = 0

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        self.asked += len(images)
        mean = 255 * images.mean(dim=(2, 3))
        distance, nearest = torch.cdist(mean, self.colours).min(dim=1)
        wave = torch.sin(mean * 40)
        alike = torch.stack([torch.cos(nearest.float()), torch.sin(nearest.float()), torch.ones(len(mean))], dim=1)
        return torch.where(distance[:, None] < 4, alike + 0.3 * wave, wave)


class Captioned(EncoderModule):
    """Fits an image to a text that it knows better than to another one."""

    def __init__(self, known: Collection[str]) -> None:
        super().__init__(
            Backbone(), {"projection": torch.nn.Identity()}, torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1)
        )
        self.text = Texts(known)


class Backbone(torch.nn.Module):
    """The mean colour and a constant. It counts images."""

    asked: ClassVar[list[int]] = []  # of all copies

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(images))
        mean = images.mean(dim=(2, 3))
        return torch.cat([torch.sin(mean * 4000) / 9, torch.ones(len(images), 1)], dim=1)


class Texts(torch.nn.Module):
    """Texts to embeddings: one for what is known, another for the rest."""

    def __init__(self, known: Collection[str]) -> None:
        super().__init__()
        self.known = known

    def forward(self, texts: Sequence[str]) -> torch.Tensor:
        hits = torch.tensor([[1.0 if text in self.known else 0.2] for text in texts])
        return torch.cat([torch.ones(len(texts), 3) / 2, hits], dim=1)


def outcomes(found: Claim) -> list[str]:
    """The outcomes of the checks of its statement."""
    return [check.outcome for check in verify_claim(f"{found.statement}/statement.json")]


def ask(lot: Path, encoder: Encoder, **settings: object) -> Claim:
    usual = {"size": SIDE, "augmentation": PLAIN, "views": 4}
    return claim(str(lot), encoder, **usual | settings)  # type: ignore[arg-type]


def test_what_was_published_and_used_is_found(tmp_path: Path) -> None:
    lot = lot_of(tmp_path, range(200), albums=4)
    found = ask(lot, Remembering(published(lot)))
    assert found.result.verdict == "used" and found.result.p_value < 1e-4
    assert found.result.designs[0].auc.value > 0.9 and found.result.share > 0.5
    assert found.lost == 0 and found.result.asked == 200
    assert headline(found.result.verdict, found.grade).startswith("USED (the owner's word)")
    graded = grade_in_words(found.grade, found.alone, found.question.given)
    assert "drew alone" in graded and "code of the owner's own" in graded and "image size" in graded
    assert storage.read_json(f"{found.statement}/statement.json")["result"]["verdict"] == "used"
    page = Page(Path(found.statement, "claim.html").read_text())
    held = 200 - len(published(lot))
    for said in ("Used", graded, "drawn by the owner alone", f"published (n {200 - held})", f"held back (n {held})"):
        assert said in page.text
    told = [found.answers, found.question.commitment, found.question.fingerprint, found.lot.chain()[0].commitment]
    assert all(number in page.text for number in told)  # what a clerk compares with the statement
    assert not any(tag in ("script", "link") for tag, _ in page.tags)


def test_an_encoder_that_knows_all_or_none_shows_nothing(tmp_path: Path) -> None:
    lot = lot_of(tmp_path, range(200))
    for known in (range(200), ()):
        found = ask(lot, Remembering(known))
        assert found.result.verdict == "not shown" and found.result.p_value > 0.01
        assert "does not show" in headline(found.result.verdict, found.grade)
        assert "neither that it used them nor that it did not" in Path(found.statement, "claim.html").read_text()


def test_the_album_that_was_used_is_named(tmp_path: Path) -> None:
    lot = lot_of(tmp_path, range(480), albums=4)
    found = ask(lot, Remembering({one for one in published(lot) if one % 4 == 2}))
    assert [album.album for album in found.result.albums if album.is_used] == ["album2"]
    assert any("album2" in line for line in lines(found.result, 0))


def test_a_claim_until_decided_stops_early_and_goes_on_without_asking_twice(tmp_path: Path) -> None:
    lot = lot_of(tmp_path, range(400), options=["--until-decided"])
    encoder = Remembering(published(lot))
    found = ask(lot, encoder)
    assert found.result.verdict == "used" and found.result.asked < 200
    asked = encoder.asked
    again = ask(lot, encoder)
    assert again.result == found.result and again.answers == found.answers
    assert encoder.asked - asked < 20  # what tries an encoder out, and nothing about the lot
    whole = ask(lot, Remembering(()))
    assert whole.result.verdict == "not shown" and whole.result.asked == 400
    assert "How the evidence grew" in Path(whole.statement, "claim.html").read_text()


def test_new_releases_add_to_a_claim_until_decided(tmp_path: Path) -> None:
    lot = lot_of(tmp_path, range(60), options=["--until-decided"])
    known = {one for one in published(lot) if one % 3 == 0}
    encoder = Remembering(known)
    first = ask(lot, encoder)
    assert first.result.verdict == "not shown"
    lot_of(tmp_path, range(60, 600))
    encoder.colours = Remembering(known | {one for one in published(lot) if one >= 60}).colours
    second = ask(lot, encoder)
    assert second.question == first.question and "FAILS" not in outcomes(second)
    assert second.result.waves[: len(first.result.waves)] == first.result.waves
    assert second.result.verdict == "used" and second.result.asked > 60


def test_every_further_question_needs_a_smaller_p(tmp_path: Path) -> None:
    lot = lot_of(tmp_path, range(100))
    encoder = Remembering(published(lot))
    levels = [ask(lot, encoder, views=views).result.level for views in (4, 5, 6, 4)]
    assert levels == [0.005, 0.01 / 6, 0.01 / 12, 0.005]


def test_missing_and_altered_images_count_against_the_claim(tmp_path: Path) -> None:
    lot = lot_of(tmp_path, range(300))
    known = published(lot)
    whole = ask(lot, Remembering(known))
    # an owner who removes the published pictures that the encoder does not know gains nothing
    half = {one for one in known if one % 2}
    for number in known - half:
        path = next((lot / "published").rglob(f"{number:04d}.png"))
        path.unlink() if number % 4 else path.write_bytes(picture(number + 1000))
    refused(UserError, "files of the lot are missing, such as .*; put them back", ask, lot, Remembering(half))
    told = ask(lot, Remembering(half), missing_ok=True)
    assert told.lost == len(known - half)
    assert told.result.asked == 300
    assert told.result.p_value > whole.result.p_value
    assert any("count against the claim" in line for line in lines(told.result, told.lost))
    for path in (lot / "published").rglob("*.png"):
        if int(path.stem) % 20 != 1:
            path.unlink(missing_ok=True)
    few = ask(lot, Remembering(half), views=5, missing_ok=True)
    assert few.result.verdict == "not shown"


def test_what_is_asked_is_fixed_before_the_first_query(tmp_path: Path) -> None:
    lot = lot_of(tmp_path, range(60))

    def breaks(images: torch.Tensor) -> torch.Tensor:
        if len(images) > 60:
            raise RuntimeError("the encoder is gone")
        return images.mean(dim=(2, 3)) @ torch.arange(12.0).reshape(3, 4).sin()

    refused(RuntimeError, "is gone", ask, lot, breaks)
    registered = Lot.at(str(lot)).chain()[-1]
    assert isinstance(registered, Question)
    assert registered.plan["views"] == 4 and registered.plan["counted"] == "all"
    assert set(registered.given) == {"augmentation", "decoder", "encoder", "views"}
    assert registered.commitment in (lot / "commitments.txt").read_text()


def test_a_lost_vault_is_no_reason_to_draw_anew(tmp_path: Path) -> None:
    lot = lot_of(tmp_path, range(60))
    shutil.rmtree(lot / "vault")
    for arguments in (["lot", str(tmp_path / "photos"), "--out", str(lot)], ["claim", str(lot), "--encoder", "timm:x"]):
        result = CliRunner().invoke(app, arguments)
        assert "put the vault back from your backup" in str(result.exception)


def test_a_claim_needs_a_lot(tmp_path: Path) -> None:
    refused(UserError, "holds no lot", ask, tmp_path, Remembering(()))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(picture(1))
    arguments = ["lot", "commit", str(tmp_path / "photos"), "--out", str(tmp_path / "lot"), "--decided-by", "round 7"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    refused(UserError, "no release that is drawn", ask, tmp_path / "lot", Remembering(()))
    with pytest.raises(UserError, match="colour is no setting of a claim"):
        ask(lot_of(tmp_path / "other", range(60)), Remembering(()), colour=3)


def test_of_several_captions_the_published_one_is_found(tmp_path: Path) -> None:
    lot = lot_of(tmp_path, range(120), options=("--share", "0.25", "--captions"), captions=True)
    texts = {path.stem: path.read_text() for path in (lot / "published").rglob("*.txt")}
    assert texts.keys() == {path.stem for path in (lot / "published").rglob("*.png")}
    assert all(text.startswith(f"picture {int(name)} (Photo: ") for name, text in texts.items())
    encoder = Captioned(set(texts.values()))
    Backbone.asked.clear()
    found = claim(str(lot), encoder, size=SIDE, augmentation=PLAIN, views=4, output="projection")
    assert sum(Backbone.asked) == 120 * 4 + 120, "once for views, and once for all captions of an image"
    page, result = (Path(found.statement) / "claim.html").read_text(), found.result
    assert "chance decided which images and captions were published and which stayed private." in page
    by_name = {design.design: design for design in result.designs}
    assert by_name["captions"].p_value < 1e-4 and by_name["captions"].published == 90
    assert by_name["held-back"].p_value > 0.01
    assert result.verdict == "used"
    imageless = ask(lot, Remembering(published(lot))).result
    assert [design.design for design in imageless.designs] == ["held-back"] and imageless.verdict == "used"
    later = lot_of(tmp_path, range(120, 240), options=("--share", "0.25"))
    both = claim(str(later), encoder, size=SIDE, augmentation=PLAIN, views=4, output="projection").result
    (captions,) = [design for design in both.designs if design.design == "captions"]
    assert captions == by_name["captions"], "images of a release without captions count neither way"
    only = lot_of(tmp_path / "only", range(60), options=("--share", "0", "--captions"), captions=True)
    refused(UserError, "reads no texts: nothing can be shown", ask, only, Remembering(()))


def test_units_are_asked_in_an_order_that_no_coin_settles(tmp_path: Path) -> None:
    lot = Lot.at(str(lot_of(tmp_path, range(2000))))
    drawn, order = drawn_of(lot.releases()), order_of(lot.releases())
    assert sorted(order) == list(range(2000))
    assert 160 < drawn.held_back[order[:1000]].sum() < 240
