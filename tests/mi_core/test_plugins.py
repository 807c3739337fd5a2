"""Attacks, backbones and sources of other packages: the page's examples as real installed packages, and broken ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np

from tests.pages import blocks

ROOT = Path(__file__).parents[2]


def block(language: str, number: int = 0) -> str:
    return [one.text for one in blocks("docs/own-attack.md") if one.language == language][number]


def points(number: int) -> str:
    """The entry points of a block of the page, as pip writes them down."""
    groups = tomllib.loads(block("toml", number))["project"]["entry-points"]
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


# one process has all packages that work: each new one imports everything anew
WORKING = """
import contextlib, io, os, sys
import mi_core.attacks.base, my_attack
import jsonschema, numpy as np, torch, yaml
from pathlib import Path
from PIL import Image
from mi_core.adoption.foreign import adopt
from mi_core.plugins import modules
from mi_core.provenance import versions
from mi_core.training.loop import audited_encoder
from pipelines.cli.app import main
from pipelines.config.reading.schema import schema
from pipelines.config.sections.attacks import ATTACK_CONFIGS
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.read.sources import Source
from pipelines.plan.load import parse
from pipelines.run import registration
from tests.conftest import small_config
TOLD = {}
for asked in ("list attacks low-cosine", "list encoders"):
    sys.argv[1:] = asked.split()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as out:
        main()
    TOLD[asked] = " ".join(out.getvalue().split())
assert "keeps even its odd views together" in TOLD["list attacks low-cosine"]
assert "share: 0.1" in TOLD["list attacks low-cosine"]
assert "two-convolutions Two convolutions and the mean over space, D = 64." in TOLD["list encoders"]
entry = yaml.safe_load(ATTACK)["attacks"][0]
assert ATTACK_CONFIGS["low-cosine"].model_validate(entry).parameters().share == 0.2
before = registration.code_digest()["code_sha256"]
path = Path(my_attack.__file__)
path.write_text(path.read_text() + "# changed\\n")
assert registration.code_digest()["code_sha256"] != before
encoders = parse(small_config(encoders=yaml.safe_load(BACKBONE)["encoders"]), "x").encoders
target = audited_encoder(encoders["target"].pretraining(), 1, 8)
assert target(torch.rand(3, 1, 8, 8))["backbone"].shape == (3, 64)
torch.save(target.backbone.state_dict(), "two.pt")
found = adopt(encoders["shadow"].load, open("two.pt", "rb").read(), channels=1, image_size=8)
assert torch.equal(found.encoder.backbone.first.weight, target.backbone.first.weight)
assert sorted(modules()) == ["my_attack", "my_backbone", "my_source"]
assert versions()["my-attack"] == versions()["my-backbone"] == "0.1"
given = yaml.safe_load(SOURCE)
jsonschema.validate(given, schema())
source = Source(SourceConfig(**given["data"]["sources"]["photos"], options={"any": 1}))
first, last = source.items()
keys = [sample.key for item in (first, last) for sample in source.read(item)]
assert (keys[0], keys[-1], len(set(keys))) == ("00000000", "00001024", 1025)
(sample,) = source.read(last)
assert np.array_equal(Image.open(io.BytesIO(sample.image)), np.load("photos.npy")[1024])
try:
    Source(SourceConfig(kind="numpy", path="absent.npy")).items()
except ValueError as error:
    assert str(error) == "path = absent.npy: there is no such file; give one that np.save wrote"
else:
    raise AssertionError
"""


def test_the_page_s_packages_are_listed_configured_bound_trained_and_read(tmp_path: Path) -> None:
    install(tmp_path, block("python"), points(0))
    install(tmp_path, block("python", 2), points(1), name="my-backbone")
    install(tmp_path, block("python", 3), points(2), name="my-source")
    np.save(tmp_path / "photos.npy", np.random.default_rng(0).integers(0, 256, (1025, 4, 4), dtype=np.uint8))
    named = {name: block("yaml", number) for number, name in enumerate(("ATTACK", "BACKBONE", "SOURCE"), 1)}
    given = "".join(f"{name} = {text!r}\n" for name, text in named.items())
    contract = block("python", 1) + "\ntest_it_keeps_the_contract()"
    python(tmp_path, "-c", f"import os; os.chdir({str(tmp_path)!r})\n{given}{WORKING}\n{contract}")


TAKEN = "has a name that is taken; uninstall the package, or let its author rename it"
BROKEN = {  # the package: group, entry point, code, what is said of it
    "broken": ("attacks", "new", "1 / 0", "cannot be loaded (ZeroDivisionError: division by zero); uninstall it"),
    "other-kind": ("attacks", "one", "New = 1", "is no subclass of mi_core.attacks.base.Attack; uninstall it"),
    "lacking": (
        "attacks",
        "bare",
        "from mi_core.attacks.base import Attack as New",
        "lacks name, threat_model, source, reference, Parameters, _fit, _score, needs; uninstall it",
    ),
    "renamed": (
        "attacks",
        "another",
        "from mi_core.attacks.lpla import LpLA as New",
        "calls itself 'lpla' in its attribute",
    ),
    "taken": ("attacks", "lpla", "", TAKEN),
    "no-network": ("encoders", "net", "New = 1", "is no mi_core.enc"),
    "taken-source": ("sources", "digits", "New = 1", "has a name"),
    "bad-source": ("sources", "store", "1 / 0", "cannot be loaded (ZeroDivisionError"),
}


def test_packages_that_cannot_be_used_are_listed_and_stop_what_needs_them(tmp_path: Path) -> None:
    install(tmp_path, block("python"), points(0))
    install(tmp_path, block("python"), "[encoder_audit.attacks]\nlow-cosine = second:LowCosine\n", name="second")
    faults = {}
    for package, (group, name, code, words) in BROKEN.items():
        install(tmp_path, code, f"[encoder_audit.{group}]\n{name} = {package.replace('-', '_')}:New\n", name=package)
        faults[package] = f"the {group[:-1]} {name} of the package {package} {words}"
    asked = """
import os, sys
os.environ["COLUMNS"], sys.argv[1:] = "300", ["list", "attacks"]
from pipelines.cli.app import main
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.read.sources import Source
from pipelines.plan.load import load
import mi_core.plugins
try:
    main()
except SystemExit:
    print("told:", *mi_core.plugins.BROKEN.values())
load("quickstart", ["attacks.0.attack=lpla"])
for name in ("new", "one", "bare", "another"):
    try:
        load("quickstart", [f"attacks.0.attack={name}"])
    except ValueError as error:
        print("refused:", error)
Source(SourceConfig(kind="store", path="x")).items()
"""
    shown = " ".join(python(tmp_path, "-c", asked, code=1).split())
    listed, _, rest = shown.partition("told:")
    told, *refused = rest.split("refused:")
    assert f"the attack low-cosine of the package my-attack {TAKEN}" in told.replace(
        "package second", "package my-attack"
    )
    attacks = [fault for package, fault in faults.items() if BROKEN[package][0] == "attacks"]
    assert all(fault in listed for fault in attacks) and "lpla" in listed and "Traceback" not in listed
    assert all(fault in told for fault in faults.values())
    assert [f"attacks.0: {fault}" in one for fault, one in zip(attacks[:4], refused, strict=True)] == [True] * 4
    assert f"UserError: kind = store: {faults['bad-source']}" in refused[-1]


def test_a_module_that_is_imported_before_ours_says_so(tmp_path: Path) -> None:
    install(tmp_path, block("python"), points(0))
    told = python(tmp_path, "-c", "import my_attack; from mi_core.plugins import BROKEN; print(BROKEN)")
    assert "; import mi_core.attacks.base before my_attack" in told
