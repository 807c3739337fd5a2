"""Attacks, backbones and sources of other packages: the page's examples as real installed packages, and broken ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from tests.pages import blocks

ROOT = Path(__file__).parents[2]


def block(language: str, number: int = 0) -> str:
    return [one.text for one in blocks("docs/own-attack.md") if one.language == language][number]


def points(number: int) -> str:
    """The entry points of a block of the page, as pip writes them down."""
    tables = tomllib.loads(block("toml", number))
    groups = tables["project"]["entry-points"]
    return "".join(
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()) for group, named in groups.items()
    )


def install(folder: Path, code: str, points: str, name: str = "my-attack") -> Path:
    """What pip leaves of a package of one module."""
    info = folder / f"{name.replace('-', '_')}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(points)
    (folder / f"{name.replace('-', '_')}.py").write_text(code)
    return folder


def python(folder: Path, *arguments: str, code: int = 0) -> str:
    """The output of Python with a folder of packages, and its errors."""
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    return install(tmp_path, block("python"), points(0))


def test_the_page_s_attack_keeps_the_contract(installed: Path) -> None:
    python(installed, "-c", block("python", 1) + "\ntest_it_keeps_the_contract()")


def test_it_is_listed_configured_and_bound(installed: Path) -> None:
    told = " ".join(python(installed, "-m", "pipelines.cli", "list", "attacks", "low-cosine").split())
    assert "keeps even its odd views together" in told
    assert "share: 0.1" in told
    code = f"""
import yaml
from pathlib import Path
from mi_core.provenance import versions
from pipelines.config.sections.attacks import ATTACK_CONFIGS
from pipelines.run import registration
import my_attack
entry = yaml.safe_load({block("yaml", 1)!r})["attacks"][0]
print(ATTACK_CONFIGS["low-cosine"].model_validate(entry).parameters().share, versions()["my-attack"])
before = registration.code_digest()["code_sha256"]
path = Path(my_attack.__file__)
path.write_text(path.read_text() + "# changed\\n")
print(registration.code_digest()["code_sha256"] != before)
"""
    assert python(installed, "-c", code).split() == ["0.2", "0.1", "True"]


@pytest.mark.parametrize(
    ("code", "point", "words"),
    [
        ("1 / 0", "new = my_attack:New", "cannot be loaded (ZeroDivisionError: division by zero); uninstall it"),
        ("New = 1", "new = my_attack:New", "is no subclass of mi_core.attacks.base.Attack; uninstall it"),
        (
            "from mi_core.attacks.base import Attack as New",
            "new = my_attack:New",
            "lacks name, threat_model, source, reference, Parameters, _fit, _score, needs; uninstall it",
        ),
        ("from mi_core.attacks.lpla import LpLA as New", "new = my_attack:New", "calls itself 'lpla' in its attribute"),
        ("", "lpla = my_attack:New", "has a name that is taken; uninstall the package, or let its author rename it"),
    ],
    ids=["broken", "no class", "lacking", "another name", "taken"],
)
def test_a_package_that_cannot_be_used_is_listed_and_stops_what_needs_it(
    tmp_path: Path, code: str, point: str, words: str
) -> None:
    folder = install(tmp_path, code, f"[encoder_audit.attacks]\n{point}\n")
    name = point.split(maxsplit=1)[0]
    fault = f"the attack {name} of the package my-attack {words}"
    asked = f"""
import contextlib, os, sys
os.environ["COLUMNS"], sys.argv[1:] = "300", ["list", "attacks"]
from pipelines.cli.app import main
from pipelines.plan.load import load
with contextlib.suppress(SystemExit):
    main()
load("quickstart", ["attacks.0.attack=lpla"])
try:
    load("quickstart", ["attacks.0.attack={name}"])
except ValueError as error:
    print("refused:", error)
"""
    listed, _, refused = " ".join(python(folder, "-c", asked).split()).partition("refused:")
    assert fault in listed and "lpla" in listed and "Traceback" not in listed
    assert name == "lpla" or f"attacks.0: {fault}" in refused


def test_a_module_that_is_imported_before_ours_says_so(installed: Path) -> None:
    told = python(installed, "-c", "import my_attack; from mi_core.plugins import BROKEN; print(BROKEN)")
    assert "; import mi_core.attacks.base before my_attack" in told
    python(installed, "-c", "import mi_core.attacks.base, my_attack")


def test_of_two_packages_with_one_name_the_second_is_named(tmp_path: Path) -> None:
    point = "[encoder_audit.attacks]\nlow-cosine = {}:LowCosine\n"
    install(tmp_path, block("python"), point.format("my_attack"))
    install(tmp_path, block("python"), point.format("other"), name="other")
    told = python(tmp_path, "-c", "import mi_core.attacks; from mi_core.plugins import BROKEN; print(BROKEN)")
    assert "has a name that is taken" in told


def test_a_backbone_is_listed_trained_and_loaded(tmp_path: Path) -> None:
    folder = install(tmp_path, block("python", 2), points(1), name="my-backbone")
    told = " ".join(python(folder, "-m", "pipelines.cli", "list", "encoders").split())
    assert "two-convolutions Two convolutions and the mean over space, D = 64." in told
    code = f"""
import yaml
import torch
from mi_core.adoption.foreign import adopt
from mi_core.plugins import modules
from mi_core.provenance import versions
from mi_core.training.loop import audited_encoder
from pipelines.plan.load import parse
from tests.conftest import small_config
config = small_config(encoders=yaml.safe_load({block("yaml", 2)!r})["encoders"])
encoders = parse(config, "x").encoders
target = audited_encoder(encoders["target"].pretraining(), 1, 8)
print(tuple(target(torch.rand(3, 1, 8, 8))["backbone"].shape))
torch.save(target.backbone.state_dict(), "{tmp_path}/two.pt")
found = adopt(encoders["shadow"].load, open("{tmp_path}/two.pt", "rb").read(), channels=1, image_size=8)
print(torch.equal(found.encoder.backbone.first.weight, target.backbone.first.weight))
print(modules(), versions()["my-backbone"])
"""
    assert python(folder, "-c", code).splitlines() == ["(3, 64)", "True", "['my_backbone'] 0.1"]


def test_a_kind_of_source_is_configured_listed_and_read(tmp_path: Path) -> None:
    folder = install(tmp_path, block("python", 3), points(2), name="my-source")
    pixels = np.random.default_rng(0).integers(0, 256, (1025, 4, 4), dtype=np.uint8)
    np.save(tmp_path / "photos.npy", pixels)
    code = f"""
import os
import jsonschema, yaml
from PIL import Image
import io
import numpy as np
from pipelines.config.reading.schema import schema
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.read.sources import Source
os.chdir("{tmp_path}")
given = yaml.safe_load({block("yaml", 3)!r})
jsonschema.validate(given, schema())
source = Source(SourceConfig(**given["data"]["sources"]["photos"], options={{"any": 1}}))
first, last = source.items()
keys = [sample.key for item in (first, last) for sample in source.read(item)]
print(keys[0], keys[-1], len(set(keys)))
(sample,) = source.read(last)
print(np.array_equal(Image.open(io.BytesIO(sample.image)), np.load("photos.npy")[1024]))
try:
    Source(SourceConfig(kind="numpy", path="absent.npy")).items()
except ValueError as error:
    print(error)
"""
    assert python(folder, "-c", code).splitlines() == [
        "00000000 00001024 1025",
        "True",
        "path = absent.npy: there is no such file; give one that np.save wrote",
    ]


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ("[encoder_audit.encoders]\nnew = my_attack:New", "the encoder new of the package my-attack is no mi_core.enc"),
        ("[encoder_audit.sources]\ndigits = my_attack:New", "the source digits of the package my-attack has a name"),
    ],
    ids=["no architecture", "taken source"],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, point: str, words: str) -> None:
    folder = install(tmp_path, "New = 1", f"{point}\n")
    loaded = "import mi_core.encoders, pipelines.data.read.sources; from mi_core.plugins import BROKEN; print(BROKEN)"
    assert words in python(folder, "-c", loaded)
    python(folder, "-c", "from pipelines.plan.load import load; load('quickstart')")


def test_a_source_that_cannot_be_read_stops_what_needs_it(tmp_path: Path) -> None:
    folder = install(tmp_path, "1 / 0", "[encoder_audit.sources]\nnew = my_attack:New\n")
    read = (
        "from pipelines.config.sections.sources import SourceConfig\nfrom pipelines.data.read.sources import Source\n"
    )
    told = python(folder, "-c", read + "Source(SourceConfig(kind='new', path='x')).items()", code=1)
    assert "UserError: kind = new: the source new of the package my-attack cannot be loaded (ZeroDivisionError" in told
