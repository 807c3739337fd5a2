"""The coins of canaries are fair and depend on seed, source and key alone; some have a wrong class or noise."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from mi_core.hashing import digest64
from pipelines.config.sections.data import DataConfig
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import Splits
from pipelines.errors import UserError
from tests.pipelines.data.made import Row, scan_of


def made(count: int = 400, shards: int = 3, classes: tuple[int | None, ...] = (2, 5, 7)) -> list[Row]:
    return [
        Row(
            "pool",
            f"{number % shards:03d}",
            f"k{number:05d}",
            classes[number % len(classes)],
            hashlib.sha256(str(number).encode()).digest(),
            "",
            number,
            np.random.default_rng(number).bytes(64),
        )
        for number in range(count)
    ]


def config_of(kind: str | None = None, count: int = 200, blend: float | None = None, **more: Any) -> DataConfig:
    canary = {"from": "pool", "count": count, "kind": kind, "blend": blend}
    roles = {"target-member": {"from": "pool", "count": 60}, "canary": canary}
    sources = {"pool": {"kind": "digits"}}
    return DataConfig.model_validate({"sources": sources, "image_size": 8, "channels": 1, "roles": roles} | more)


def drawn(config: DataConfig, rows: list[Row], folder: Path, seed: int = 3) -> Splits:
    return draw(config, scan_of(rows, str(folder), config), seed)


def test_coins_are_a_function_of_seed_source_and_key(tmp_path: Path) -> None:
    splits = drawn(config_of(), made(), tmp_path / "a")
    inside, outside = set(splits.ids(["canary-in"])), set(splits.ids(["canary-out"]))
    assert inside | outside == set(splits.ids(["canary"])) and not inside & outside
    assert len(inside | outside) == 200 and 70 < len(inside) < 130
    for name in inside | outside:
        source, key = name.split("/")
        assert (name in inside) == (digest64(3, "canary", source, key) < 2**63)
    other = drawn(config_of(), made(shards=1), tmp_path / "b")  # the same samples in other shards
    assert other.ids(["canary-in"]) == splits.ids(["canary-in"])
    assert set(drawn(config_of(), made(), tmp_path / "c", seed=4).ids(["canary-in"])) != inside


def test_a_mislabelled_canary_never_has_its_own_class_and_every_other_one(tmp_path: Path) -> None:
    rows = made()
    true = {f"pool/{row.key}": row.label for row in rows}
    plain = drawn(config_of(), rows, tmp_path / "a")
    wrong = drawn(config_of("mislabelled"), rows, tmp_path / "b")
    assert plain.labels() == {name: true[name] for name in plain.labels()}
    canaries, labels = set(wrong.ids(["canary"])), wrong.labels()
    assert canaries == set(plain.ids(["canary"])) and wrong.ids(["canary-in"]) == plain.ids(["canary-in"])
    assert {(true[name], labels[name]) for name in canaries} == {(a, b) for a in (2, 5, 7) for b in (2, 5, 7) if a != b}
    assert all(labels[name] == true[name] for name in labels if name not in canaries)
    digests = [{role: one.role_digest(role) for role in one.roles} for one in (plain, wrong)]
    other = {role for role in plain.roles if digests[0][role] != digests[1][role]}
    assert other == {"canary", "canary-in", "canary-out"}  # so that no training is taken for the other's
    again = drawn(config_of("mislabelled"), made(shards=1), tmp_path / "c")
    assert again.labels() == labels  # what training, queries and attacks read
    here = wrong.classes("pool", "000", ["canary-in"])
    assert here and all(labels[f"pool/{key}"] == label for key, label in here.items())


def test_blended_canaries_are_other_images_in_every_digest(tmp_path: Path) -> None:
    """Or features and encoders of plain canaries would be taken for theirs."""
    rows = made()
    configs = {"plain": config_of(), "blended": config_of("blended"), "more": config_of("blended", blend=0.75)}
    several = {name: drawn(config, rows, tmp_path / name) for name, config in configs.items()}
    several["seed"] = drawn(configs["blended"], rows, tmp_path / "seed", seed=4)
    known = {name: {role: one.role_digest(role) for role in one.roles} for name, one in several.items()}
    for name in ("blended", "more"):
        other = {role for role in known[name] if known[name][role] != known["plain"][role]}
        assert other == {"canary", "canary-in", "canary-out"}
        assert several[name].ids(["canary-in"]) == several["plain"].ids(["canary-in"])
        assert several[name].labels() == several["plain"].labels()
    assert known["blended"]["canary-in"] != known["more"]["canary-in"]
    sha = {
        name: dict(zip(one.table["key"].to_pylist(), one.table["sha256"].to_pylist(), strict=True))
        for name, one in several.items()
    }
    both = [set(one.ids(["canary"])) for one in (several["blended"], several["seed"])]
    for name in set.intersection(*both):  # the noise of another seed is another noise
        assert len({sha[of][name.partition("/")[2]] for of in ("plain", "blended", "seed")}) == 3
    shards = [one.digest("pool", "000", ["canary-in"]) for one in (several["plain"], several["blended"])]
    assert shards[0] != shards[1]  # of which feature files are named


def test_the_classes_of_a_run_folder_are_read_back(tmp_path: Path) -> None:
    config = config_of("mislabelled")
    splits = draw(config, scan_of(made(), str(tmp_path / "scan"), config), 3, str(tmp_path / "seed-3"))
    assert Splits.load(str(tmp_path / "seed-3")).labels() == splits.labels()


def test_canaries_without_a_class_get_one(tmp_path: Path) -> None:
    splits = drawn(config_of("mislabelled"), made(classes=(4, None, 6)), tmp_path)
    assert {splits.labels()[name] for name in splits.ids(["canary"])} == {4, 6}


def test_one_class_cannot_be_mislabelled(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mislabelled needs two classes, pool has 1"):
        drawn(config_of("mislabelled"), made(classes=(4,)), tmp_path)


def test_a_config_may_be_spelled_out_twice() -> None:
    config = config_of("mislabelled")
    assert list(config.roles) == ["canary-in", "canary-out", "target-member", "canary"]
    assert DataConfig.model_validate(config.model_dump(mode="json", by_alias=True)) == config


@pytest.mark.parametrize(
    ("roles", "more", "message"),
    [
        ({"canary": {"from": "pool", "fraction": 0.5}}, {}, "roles.canary is drawn from a source; give its count"),
        ({"a": {"from": "pool", "count": 9}, "canary": {"from": "a", "count": 4}}, {}, "is itself a part"),
        ({"canary": {"from": "pool", "count": 9}}, {"group_by": "json:person"}, "a coin of its own"),
        ({"a": {"from": "pool", "count": 9, "kind": "plain"}}, {}, "only the role canary has a kind"),
        ({"canary": {"from": "pool", "count": 9, "blend": 0.2}}, {}, "blend = 0.2 is given, but only"),
        ({"canary": {"from": "pool", "count": 9, "kind": "blended", "blend": 0}}, {}, "greater than 0"),
        ({"canary-in": {"from": "pool", "count": 9}}, {}, "roles.canary-in is drawn by fair coins"),
        (
            {"canary": {"from": "pool", "count": 9}, "canary-out": {"from": "canary", "count": 4}},
            {},
            "roles.canary-out is drawn by fair coins",
        ),
        ({"canary": {"from": "pool", "count": 9}, "x": {"from": "canary", "fraction": 0.1}}, {}, "more than 1"),
    ],
)
def test_what_is_no_coin_is_told(roles: dict[str, Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config_of(roles=roles, **more)
