"""Every argument of an audit: the result is saved as a page and as JSON, and its config can be read."""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from mi_core import audit
from mi_core.auditing import config_text
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import weights_bytes
from mi_core.images import encode_png
from mi_core.report.contents import schema
from mi_core.training.loop import PretrainingParameters, audited_encoder
from pipelines.plan.load import load
from tests.endpoints import serving
from tests.mi_core.auditing.test_audit import FirstNumber

SIDE = 8
CANDIDATES, CONTROLS = np.split(np.random.default_rng(0).integers(0, 256, (120, SIDE, SIDE, 3), dtype=np.uint8), [30])
API = "an API"
FIRST = {"crop_scale": np.array([0.4, 1.0]), "flip": np.float32(0.5), "rotation": np.int64(8), "hue": torch.tensor(0.0)}


@dataclass(frozen=True)
class Oddities:
    """Parameters of every kind that a program may have."""

    sign: int = 1
    folder: Path = Path()
    bins: tuple[int, ...] = ()
    rate: Any = None
    weights: Any = None


class Odd(FirstNumber):
    """An attack whose parameters JSON does not know."""

    name = "odd"
    Parameters = Oddities


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIDE * SIDE, 16)).eval()


class Functional:
    """A function that has no name."""

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)


CASES: dict[str, list[Any]] = {
    "model": [network(), Functional(), audited_encoder(PretrainingParameters(backbone="conv4"), 3, SIDE).eval()],
    "candidates": [
        CANDIDATES,
        list(CANDIDATES),
        torch.from_numpy(CANDIDATES),
        [encode_png(one) for one in CANDIDATES],
        [Image.fromarray(one) for one in CANDIDATES],
        lambda: (one for one in CANDIDATES),
        {"image": list(CANDIDATES)},
        torch.utils.data.TensorDataset(torch.from_numpy(CANDIDATES)),
    ],
    "controls": [CONTROLS, tuple(CONTROLS)],
    "size": [SIDE, np.int64(SIDE), None],
    "channels": [1, np.uint8(3)],
    "decoding": [{"fit": "squash", "resize": np.int64(9)}, {"orientation": "stored", "depth": None}],
    "weights": [None, "text"],
    "weights_key": ["state_dict"],
    "references": [[network()], [("checkpoint:conv4", "weights")]],
    "quick": [False],
    "attacks": [
        [{"attack": "combined", "penalty": np.float32(5)}],
        ({"attack": "combined", "penalty": np.float64(5)},),
        [Odd(Oddities(1, Path("here"), (1, 2), np.float64(0.5), Oddities(rate=np.arange(2))))],
        [Odd],
    ],
    "objective": [None, "byol"],
    "augmentation": [None, {}, FIRST, {"crop_scale": (np.float32(0.4), 1)}],
    "output": ["projection", None],
    "views": [np.int32(3)],
    "mean": [np.full(3, 0.5), torch.full((1,), 0.5), [np.float32(0.5)]],
    "std": [(1, 1, np.int64(1))],
    "endpoint": [{"batch": np.int64(64), "outputs": ("backbone",), "model": None}],
    "key": ["secret"],
    "trust_code": [True],
    "near_duplicates": [False],
    "fdr": [np.float32(0.2)],
    "max_rejected": [np.float16(0.5), 0],
    "factor": [np.int64(3)],
    "nonce": ["7", None],
    "seed": [np.int64(2**32 - 1)],
    "registration": ["looks.jsonl", Path("looks.jsonl")],
    "progress": [True],
}


def test_no_argument_is_forgotten() -> None:
    assert CASES.keys() == inspect.signature(audit).parameters.keys()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of images and two files of weights."""
    folder = tmp_path_factory.mktemp("given")
    for side, images in (("candidates", CANDIDATES), ("controls", CONTROLS)):
        (folder / side).mkdir(parents=True)
        for number, pixels in enumerate(images):
            (folder / side / f"{number:03d}.png").write_bytes(encode_png(pixels))
    (folder / "weights").write_bytes(weights_bytes(CASES["model"][2]))
    torch.save({"state_dict": CASES["model"][2].state_dict()}, folder / "nested")
    return folder


def settings_of(cases: dict[str, Any], place: Path) -> dict[str, Any]:
    """The arguments of an audit of a named encoder, with some arguments of a case and what they need beside them."""
    settings: dict[str, Any] = {"model": "checkpoint:conv4", "weights": place / "weights", "size": SIDE, "views": 2}
    settings |= {"candidates": place / "candidates", "controls": place / "controls", "quick": True, "progress": False}
    for argument, value in cases.items():
        add(settings, argument, value() if callable(value) and argument == "candidates" else value, place)
    return settings


def add(settings: dict[str, Any], argument: str, value: Any, place: Path) -> None:
    settings[argument] = value
    if argument == "model" or (argument == "weights" and value is None):
        settings |= {"weights": None} | ({} if argument == "model" else {"model": network()})
    elif argument == "weights":
        settings["weights"] = str(place / "weights")
    elif argument == "weights_key":
        settings["weights"] = place / "nested"
    elif argument == "references":
        settings["references"] = [(one[0], place / one[1]) if isinstance(one, tuple) else one for one in value]
        settings["quick"] = False
    elif argument == "registration":
        settings["registration"] = type(value)(place / value)
    elif argument in ("mean", "std"):
        settings |= {name: settings.get(name, (0.5,) * 3) for name in ("mean", "std")} | {argument: value}
    elif argument == "channels" and value == 1:
        grey = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIDE * SIDE, 16))
        settings |= {"model": grey, "weights": None}
    elif argument in ("endpoint", "key"):
        settings |= {"model": API, "weights": None}
    elif argument == "size" and value is None:
        settings |= {"model": Functional(), "weights": None}


ALONE = ("size", "channels", "weights", "weights_key", "references", "attacks", "endpoint", "key")
IN_MEMORY = ("candidates", "controls", "model")
TOGETHER = tuple(name for name in CASES if name not in (*ALONE, *IN_MEMORY, "quick"))
"""Arguments that go into one audit; what is in memory is filled in by the user, so it goes into others."""


@pytest.mark.parametrize(
    ("names", "number"),
    [(names, number) for names, audits in ((TOGETHER, 4), (IN_MEMORY, 8)) for number in range(audits)]
    + [((name,), number) for name in ALONE for number in range(len(CASES[name]))],
)
def test_it_is_saved_with_every_argument(
    names: tuple[str, ...], number: int, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_text, "EPOCHS", 1)
    settings = settings_of({name: CASES[name][number % len(CASES[name])] for name in names}, place)
    if settings["model"] == API:
        with serving(lambda images: {"backbone": images.flatten(1)}) as server:
            found = audit(**settings | {"model": f"{server.url}/json"})
    else:
        found = audit(**settings)
    found.save(tmp_path / "report.json")
    found.save(tmp_path / "report.html")
    jsonschema.Draft202012Validator(schema()).validate(json.loads((tmp_path / "report.json").read_text()))
    assert found.answer.partition(":")[0] in (tmp_path / "report.html").read_text()
    assert "secret" not in (tmp_path / "report.json").read_text()
    text = found.config()
    assert yaml.safe_load(text)["name"] == "audit"
    assert names != TOGETHER or "FILL-IN" not in text
    if "FILL-IN" not in text:
        (tmp_path / "audit.yaml").write_text(text)
        assert load(str(tmp_path / "audit.yaml"), []).queries.views == settings["views"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nonce": ""}, "nonce = '', allowed: a text"),
        ({"factor": np.inf}, "factor = inf, allowed: a number"),
        ({"augmentation": {"rotation": float("nan")}}, r"augmentation\.rotation = nan, allowed: a number"),
        ({"decoding": {"depth": len}}, r"decoding\.depth = <built-in .*, allowed: numbers, texts, and lists"),
        ({"attacks": [Odd(Oddities(rate=len))]}, r"odd\.rate = <built-in .*, allowed: numbers, texts, and lists"),
    ],
)
def test_a_value_that_cannot_be_written_down_is_named_before_anything_is_asked(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        audit(network(), CANDIDATES, CONTROLS, size=SIDE, quick=True, progress=False, **arguments)


def test_it_is_saved_where_a_folder_has_a_name_that_is_no_text(place: Path, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    odd.symlink_to(place)
    found = audit(network(), odd / "candidates", CONTROLS, size=SIDE, quick=True, progress=False)
    found.save(tmp_path / "report.json")
    found.save(tmp_path / "report.html")
    named = json.loads((tmp_path / "report.json").read_text())["config"]["data"]["sources"]["candidates"]["path"]
    assert named == str(odd / "candidates")
