"""The coins of a lot: fair, bound to salt and beacon, and balanced within albums."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare

from mi_core.checks import ConfigError
from mi_core.lots.commitment import Header, Unit, blind_of, text_digest
from mi_core.lots.draw import SMALL, Design, draw, merged_strata

SALT = "0123456789abcdef" * 4


def salt(number: int) -> str:
    return f"{number:064x}"


def test_all_subsets_of_a_stratum_are_equally_likely() -> None:
    design = Design((3, 5), share=0.4)
    drawn = Counter(tuple(np.flatnonzero(draw(design, salt(one)).held_back[3:])) for one in range(4000))
    assert len(drawn) == 10
    assert chisquare(list(drawn.values())).pvalue > 1e-4


def test_every_image_has_the_same_chance_whatever_its_album() -> None:
    design = Design((1, 2, 7, 40), share=0.2)
    held = np.stack([draw(design, salt(one)).held_back for one in range(3000)])
    for column in held.T:
        assert binomtest(int(column.sum()), 3000, 0.2).pvalue > 1e-5
    for start, size in ((0, 1), (1, 2), (3, 7), (10, 40)):
        counts = held[:, start : start + size].sum(axis=1)
        assert set(counts) <= {int(0.2 * size), int(0.2 * size) + 1}


def test_captions_are_fair_and_independent_of_what_is_held_back() -> None:
    drawn = draw(Design((20_000,), share=0.5, captions=True), SALT)
    table = np.zeros((2, 6))
    np.add.at(table, (drawn.held_back.astype(int), drawn.caption), 1)
    assert chisquare(table.ravel()).pvalue > 1e-4


def test_the_draw_is_that_of_salt_and_beacon_alone() -> None:
    design = Design((200,), captions=True)
    first = draw(design, SALT, "round 7")
    again, other, unsalted = (
        draw(design, SALT, "round 7"),
        draw(design, SALT, "round 8"),
        draw(design, salt(1), "round 7"),
    )
    assert (first.held_back == again.held_back).all() and (first.caption == again.caption).all()
    for changed in (other, unsalted):
        assert (first.held_back != changed.held_back).any() and (first.caption != changed.caption).any()


def test_albums_too_small_to_divide_are_drawn_together() -> None:
    albums = ["b"] * 5 + ["a"] * 10 + ["c", "d"]
    strata, names = merged_strata(albums, 0.2)
    assert names == ("a", "b", SMALL)
    assert strata.tolist() == [1] * 5 + [0] * 10 + [2, 2]
    assert merged_strata(albums, 0.05)[1] == (SMALL,)
    assert merged_strata(albums, 0)[1] == ("a", "b", "c", "d")


def test_impossible_designs_are_refused() -> None:
    for settings, words in (
        ({"sizes": ()}, "at least one image"),
        ({"sizes": (3, 0)}, "images of a stratum = 0"),
        ({"sizes": (3,), "share": 1.0}, "share = 1.0"),
        ({"sizes": (3,), "share": 0.0}, "nothing is drawn"),
    ):
        with pytest.raises(ConfigError, match=words):
            Design(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no secret"):
        draw(Design((3,)), "short")


def header(**changed: object) -> Header:
    usual = {"design": Design((3,)), "root": "ab", "salt_sha256": text_digest(SALT), "albums_sha256": text_digest("a")}
    usual |= {"beacon": "drand round 7"}
    return Header(**usual | changed)  # type: ignore[arg-type]


def test_the_commitment_binds_every_field_of_the_header() -> None:
    first = header()
    assert len(first.commitment) == 64 and first.commitment == header().commitment
    assert Header.from_json(first.as_json()) == first
    changed = [
        header(design=Design((4,))),
        header(design=Design((3,), share=0.3)),
        header(design=Design((3,), captions=True)),
        header(root="ac"),
        header(salt_sha256=text_digest(salt(1))),
        header(albums_sha256=text_digest("b")),
        header(counted="until-decided"),
        header(beacon=""),
        header(previous=first.commitment),
    ]
    assert len({one.commitment for one in (first, *changed)}) == 10


def test_what_is_no_header_is_refused() -> None:
    for entry in ({}, [], {"kind": "another"}, header().as_json() | {"design": {"sizes": [2], "odd": 1}}):
        with pytest.raises(ConfigError, match="it is"):
            Header.from_json(entry)


def test_a_leaf_binds_pixels_captions_and_their_order_and_hides_them() -> None:
    blind = blind_of("key", 0)
    units = [Unit("aa"), Unit("bb"), Unit("aa", ("bb",)), Unit("aa", ("bb", "cc")), Unit("aa", ("cc", "bb"))]
    assert len({unit.leaf(blind) for unit in units}) == 5
    assert units[0].leaf(blind) != units[0].leaf(blind_of("key", 1)) != units[0].leaf(blind_of("other", 1))
