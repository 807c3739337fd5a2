"""An audit by flags, and by questions: the config that comes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from mi_core.encoders.checkpoint import OUTPUTS
from pipelines.cli.app import app
from pipelines.cli.flags import Flags
from pipelines.config.run_config import RunConfig
from pipelines.errors import UserError
from pipelines.plan.load import load, loaded_from
from pipelines.plan.rules import ThreatModel

ROOT = Path(__file__).parents[3]
IMAGES = {"candidates": "photos", "controls": "others"}


def config_of(**flags: Any) -> RunConfig:
    return loaded_from(Flags(**IMAGES | flags).settings(), "flags")


def test_flags_are_the_shipped_config() -> None:
    """Of an encoder by its weights: the same as audit-encoder.yaml with the same answers."""
    own = config_of(encoder="checkpoint:resnet50-imagenet", weights="w.pth", objective="moco-v2").model_dump()
    shipped = load(
        "configs/audit-encoder.yaml",
        [
            *("encoders.target.load=checkpoint:resnet50-imagenet", "encoders.target.weights=w.pth"),
            *("encoders.target.objective=moco-v2", "data.sources.candidates.path=photos"),
            "data.sources.controls.path=others",
        ],
    ).model_dump()
    assert {name for name in own if own[name] != shipped[name]} == {"name"}


def test_clip_behind_flags_is_the_shipped_config() -> None:
    pytest.importorskip("open_clip")
    own = config_of(encoder="open_clip:ViT-B-32", weights="open_clip_model.safetensors").model_dump()
    paths = [f"data.sources.{side}.path={path}" for side, path in IMAGES.items()]
    shipped = load("configs/clip-audit.yaml", paths).model_dump()
    assert {name for name in own if own[name] != shipped[name]} == {"name", "resources"}


def test_an_api_known_members_and_captions() -> None:
    found = config_of(
        url="https://api.example.com/v1/embeddings", adapter="openai", api_key_env="KEY", known="known", size=64
    )
    assert found.encoders["target"].endpoint.api_key_env == "KEY"  # type: ignore[union-attr]
    assert ThreatModel(found).references_of(found.attacks[0]) == tuple(f"reference-{number}" for number in range(4))
    assert [attack.attack for attack in found.attacks] == ["mean-cosine", "lpla"]
    assert {"known-member", "calibration-member"} <= set(found.data.roles)
    pytest.importorskip("open_clip")
    paired = config_of(
        encoder="open_clip:RN50", weights="w", captions=True, candidates="a-{0..9}.tar", controls="b.parquet"
    )
    assert [attack.attack for attack in paired.attacks] == ["mean-cosine", "clip-cosine"]
    assert [paired.data.sources[side].kind for side in IMAGES] == ["shards", "parquet"]
    assert ThreatModel(paired).outputs_of(paired.attacks[1]) == (OUTPUTS[1],)
    assert (
        ThreatModel(paired).references_of(paired.attacks[1]) == ()
    )  # references trained on images alone read no captions
    assert ThreatModel(paired).passed_over(paired.attacks[1]) == ("reference-0", "has no text tower")


def test_references_that_are_given_and_none() -> None:
    shown = {"encoder": "timm:resnet18", "weights": "w.pth"}
    found = config_of(**shown, references=("timm:resnet18", "python:m:f"), reference_weights=("r.pth",), nonce="x7")
    assert found.validity.references == ("reference-0", "reference-1")
    assert [found.encoders[name].load for name in found.validity.references] == ["timm:resnet18", "python:m:f"]  # type: ignore[union-attr]
    assert found.encoders["reference-0"].weights == "r.pth"  # type: ignore[union-attr]
    assert found.queries.nonce == "x7"
    quick = config_of(**shown, quick=True)
    assert ThreatModel(quick).references_of(quick.attacks[0]) == () and list(quick.encoders) == ["target"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"encoder": "timm:resnet18"}, "--weights is missing; give the file of the weights of timm:resnet18"),
        ({"encoder": "a:b", "url": "http://x"}, "--encoder and --encoder-url are both given"),
        ({}, "--encoder is missing"),
        ({"encoder": "python:m:f", "controls": None}, "--controls is missing; give the folder of the images"),
        (
            {"encoder": "python:m:f", "references": ("timm:a",)},
            "--reference-weights is missing; give the file of .* timm:a",
        ),
        ({"encoder": "python:m:f", "reference_weights": ("w",)}, "--reference-weights is given without --reference"),
        (
            {"encoder": "python:m:f", "references": ("python:m:f",), "reference_weights": ("w",)},
            "--reference-weights w belongs to no --reference",
        ),
        ({"encoder": "python:m:f", "references": ("python:m:f",), "quick": True}, "--quick leaves references out"),
    ],
)
def test_what_is_missing(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config_of(**flags)


def test_questions_write_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answers = ["checkpoint:resnet18-imagenet", "weights.pth", "moco-v2", "photos", "others", ""]
    done = CliRunner().invoke(app, ["init"], input="\n".join(answers) + "\n")
    assert done.exit_code == 0, done.output
    assert "audit.yaml is written. Next:" in done.output
    assert load("audit.yaml").encoders["target"].objective == "moco-v2"
    text = (tmp_path / "audit.yaml").read_text()
    assert text.count("#") > 5 and "known" not in yaml.safe_load(text)["data"]["sources"]
    again = CliRunner().invoke(app, ["init"], input="\n".join(answers) + "\n")
    assert "audit.yaml exists" in str(again.exception)
    flags = ["--encoder", "python:m:f", "--objective", "simclr", "--candidates", "a", "--controls", "b", "--known", "c"]
    silent = CliRunner().invoke(app, ["init", "other.yaml", *flags])
    assert silent.exit_code == 0 and "?" not in silent.output
    assert load("other.yaml").data.sources["known"].path == "c"


def test_one_line_is_checked_on_real_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags, and overrides after them."""
    import numpy as np

    from mi_core.encoders import build_backbone
    from mi_core.images import encode_png

    monkeypatch.chdir(tmp_path)
    for row, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (180, 8, 8, 3), dtype=np.uint8)):
        place = tmp_path / ("photos" if row < 80 else "others")
        place.mkdir(exist_ok=True)
        (place / f"{row}.png").write_bytes(encode_png(pixels))
    torch.save(build_backbone("conv4", 3, 8).state_dict(), "weights.pth")
    flags = ["--encoder", "checkpoint:conv4", "--weights", "weights.pth", "--candidates", "photos"]
    flags += ["--controls", "others", "--size", "8", "queries.views=3"]
    looked = CliRunner().invoke(app, ["check", *flags])
    assert looked.exit_code == 0, looked.exception
    said = " ".join(looked.output.split())
    assert "80 candidate, 100 control" in said and "to name one image" in said
    assert len(looked.output.splitlines()) <= 10
    assert said.startswith("WARNING: encoder target: this encoder recognises images no better than")
    assert said.count("encoder target: ") == 2 and said.endswith("the command line: 1 warning")


@pytest.mark.parametrize("command", ["audit", "check", "estimate"])
def test_a_file_of_weights_that_is_missing_is_seen_before_anything_is_loaded(command: str, tmp_path: Path) -> None:
    """Neither Ray nor torch starts, and no folder is made."""
    script = (
        "import sys\nfrom pipelines.cli.app import main\ntry:\n    main()\n"
        "finally:\n    print(sorted({'torch', 'ray'} & set(sys.modules)))\n"
    )
    flags = ["--encoder", "timm:resnet18", "--weights", "nofile.pth", "--candidates", "a", "--controls", "b"]
    own = [sys.executable, "-c", script, command, *flags, *(["--out", "run"] if command == "audit" else [])]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(own, check=False, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 2 and done.stdout == "[]\n"
    assert done.stderr == "encoder-audit: --weights nofile.pth is no file; give that of the encoder's weights\n"
    assert not list(tmp_path.iterdir())
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump({"extends": "audit-encoder", "encoders": {"target": {"weights": "nofile.pth"}}}))
    own = [command, str(config), "data.sources.candidates.path=a", "data.sources.controls.path=b"]
    found = CliRunner().invoke(app, [*own, "encoders.target.load=timm:resnet18"])
    assert "encoders.target.weights = nofile.pth is no file" in str(found.exception)
