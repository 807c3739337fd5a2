"""Reading config files: by their path or name, with overrides; what is no config is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.config.reading.yaml_text import config_file
from pipelines.errors import UserError
from pipelines.plan.load import load
from tests.pipelines.mistakes import QUICKSTART, ROOT


def test_every_config_comes_with_the_package_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs" / "papers").glob("*.yaml")]:
        found = [Path(config_file(name)).read_bytes() for name in (path.stem, path.name)]
        assert found == [path.read_bytes()] * 2
    assert config_file("papers/lpla-cifar10") == config_file("lpla-cifar10")
    assert load("quickstart").name == "quickstart"
    (tmp_path / "quickstart.yaml").write_text(QUICKSTART.read_text().replace("name: quickstart", "name: mine"))
    assert load("quickstart").name == load("quickstart.yaml").name == "mine"  # a file that is here wins
    with pytest.raises(UserError, match="quickstat is no file; .* such as quickstart$"):
        load("quickstat")


def test_overrides_reach_into_sections_and_lists() -> None:
    config = load(
        str(QUICKSTART), ["encoders.target.epochs=7", "attacks.1.learning_rate=0.01", "seeds=[3,4]", "name=other"]
    )
    assert config.encoders["target"].epochs == 7
    assert config.encoders["shadow"].epochs == 7  # like: target follows
    assert config.attacks[1].parameters().learning_rate == 0.01
    assert config.seeds == (3, 4)
    assert config.name == "other"


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give an existing config file"):
        load(str(tmp_path / "none.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not valid YAML"):
        load(str(tmp_path / "binary.yaml"))
    (tmp_path / "list.yaml").write_text("[1, 2]")
    with pytest.raises(UserError, match="expected sections such as data"):
        load(str(tmp_path / "list.yaml"))
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(UserError, match="not valid YAML"):
        load(str(tmp_path / "broken.yaml"))
    with pytest.raises(UserError, match="is no override"):
        load(str(QUICKSTART), ["seeds"])
    with pytest.raises(UserError, match="no position in a list"):
        load(str(QUICKSTART), ["attacks.9.target=x"])
    with pytest.raises(
        UserError, match=r"data.sources.pool.path is missing; add to the command: data.sources.pool.path=\.\.\.$"
    ):
        load(str(ROOT / "configs" / "cifar10.yaml"))
    with pytest.raises(UserError, match=r"unknown key data.pathh; did you mean path"):
        load(str(ROOT / "configs" / "cifar10.yaml"), ["data.pathh=shards"])
    both = r"controls.path are missing; add to the command: data.sources.candidates.path=... data.sources.controls"
    with pytest.raises(UserError, match=both):
        load(str(ROOT / "configs" / "clip-audit.yaml"))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seeds=[", "seeds=[: not valid YAML"),
        ("attacks=5", "attacks = 5: allowed is a list of entries"),
        ("encoders.*.epochs=3", "nothing in encoders has the field 'epochs'"),
        ("sweep={1: [2]}", "sweep.1, point 2: unknown key 1; allowed"),
        ("seeds=[1] # one", "what follows # would be lost; put text with # in quotes"),
        ("queries.views=3 # three", "queries.views = '3 # three': allowed is a whole number"),
    ],
)
def test_overrides_that_cannot_be(override: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load(str(QUICKSTART), [override])
    assert expected in str(caught.value)


def test_everything_of_a_list_that_is_none() -> None:
    with pytest.raises(UserError, match=r"attacks = 5: allowed is a list"):
        load(str(QUICKSTART), ["attacks=5", "attacks.*.views=3"])


def test_a_hash_on_the_command_line_is_a_character() -> None:
    config = load(str(ROOT / "configs" / "cifar10.yaml"), ["data.sources.pool.path=my #1 photos/*.tar"])
    assert config.data.sources["pool"].path == "my #1 photos/*.tar"
