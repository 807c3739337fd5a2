"""Models of transformers: the package itself is the referee of every output, also after saving."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from mi_core.adoption.foreign import Adopted, adopt, rebuild
from mi_core.adoption.model_folder import with_definition, without_weights
from mi_core.adoption.transformers_models import preprocessing_of
from mi_core.adoption.weight_sources import read_local, read_weights_of
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import weights_bytes
from tests.mi_core.adoption.folders import save_transformers

pytest.importorskip("transformers")
LOAD = "transformers:here"


def adopted(folder: Path, **more: Any) -> Adopted:
    source = read_weights_of(LOAD, str(folder), read_local)
    return adopt(LOAD, source.content, channels=3, image_size=32, **more)


def pooled(answer: Any) -> torch.Tensor:
    found: torch.Tensor = getattr(answer, "pooler_output", answer)
    return found


REFEREES: dict[str, dict[str, Any]] = {
    "CLIPModel": {"projection": lambda model, images: pooled(model.get_image_features(images))},
    "CLIPVisionModelWithProjection": {"projection": lambda model, images: model(images).image_embeds},
    "SiglipModel": {"projection": lambda model, images: pooled(model.get_image_features(images))},
    "SiglipVisionModel": {"backbone": lambda model, images: model(images).pooler_output},
    "ViTModel": {"backbone": lambda model, images: model(images).last_hidden_state[:, 0]},
    "ViTForImageClassification": {"logits": lambda model, images: model(images).logits},
    "Dinov2Model": {"backbone": lambda model, images: model(images).pooler_output},
    "Dinov2ForImageClassification": {"backbone": lambda model, images: model.dinov2(images).pooler_output},
    "Dinov2WithRegistersModel": {"backbone": lambda model, images: model(images).pooler_output},
    "DINOv3ViTModel": {"backbone": lambda model, images: model(images).pooler_output},
}


@pytest.mark.parametrize("name", REFEREES)
def test_outputs_are_those_of_the_package(tmp_path: Path, name: str) -> None:
    model = save_transformers(name, tmp_path, images="SiglipImageProcessor")
    found = adopted(tmp_path)
    images = torch.rand(3, 3, 32, 32)
    with torch.inference_mode():
        answers = found.encoder(images)
        for output, referee in REFEREES[name].items():
            torch.testing.assert_close(answers[output], referee(model, (images - 0.5) / 0.5))
        saved = with_definition(weights_bytes(found.encoder), found.files)
        again = rebuild(LOAD, saved, found.preprocessing, channels=3, image_size=32, mark=found.fingerprint)
        torch.testing.assert_close(again(images), answers)
    assert found.encoder.feature_map(images).shape == (3, 4 if "inov2" in name else 16, 32)
    bare = without_weights(found.files)
    first, second, third = (adopt(LOAD, bare, channels=3, image_size=32, fresh=seed) for seed in (1, 1, 2))
    assert len({found.fingerprint, first.fingerprint, third.fingerprint}) == 3
    assert first.fingerprint == second.fingerprint
    assert first.encoder.outputs == found.encoder.outputs


@pytest.mark.parametrize("name", ["CLIPModel", "SiglipModel"])
def test_captions_are_embedded_as_by_the_package(tmp_path: Path, name: str) -> None:
    import transformers

    model = save_transformers(name, tmp_path, images="SiglipImageProcessor", words=True)
    captions = ["a photo of a cat", "red car", "dog " * 30]
    padding = True if name == "CLIPModel" else "max_length"
    rows = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        captions, padding=padding, truncation=True, max_length=12, return_tensors="pt"
    )
    asked = {"input_ids": rows["input_ids"]}
    if name == "CLIPModel":
        asked["attention_mask"] = rows["attention_mask"]
    text = adopted(tmp_path).encoder.text
    assert text is not None
    with torch.inference_mode():
        torch.testing.assert_close(text(captions), pooled(model.get_text_features(**asked)))


def test_without_a_vocabulary_there_is_no_text_side(tmp_path: Path) -> None:
    save_transformers("CLIPModel", tmp_path)
    found = adopted(tmp_path)
    assert found.encoder.text is None
    assert "text side is left out" in found.layout
    assert "no preprocessor_config.json" in found.layout


def test_the_published_way_of_images(tmp_path: Path) -> None:
    """The package's own processor is the referee of size, crop and normalisation."""
    import numpy as np
    import transformers
    from PIL import Image

    from mi_core.images import Decoder, decode

    save_transformers("CLIPModel", tmp_path, images="CLIPImageProcessor")
    found = adopted(tmp_path)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))
    theirs = transformers.CLIPImageProcessor.from_pretrained(tmp_path)(picture, return_tensors="pt")["pixel_values"]
    stored = tmp_path / "picture.png"
    picture.save(stored)
    how = found.preprocessing.decoding()
    assert how == {"image_size": 32, "interpolation": "bicubic", "fit": "shortest", "resize": 36}
    pixels = torch.from_numpy(decode(stored.read_bytes(), Decoder(**how)).copy())
    ours = found.encoder._normalised(pixels[None].float() / 255)
    assert float((ours - theirs).abs().mean()) < 0.01  # the same pixels, up to rounding


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"size": 40, "crop_size": 32, "do_center_crop": True, "resample": 2}, (32, "bilinear", 40, "shortest")),
        ({"size": 32, "resample": 3}, (32, "bicubic", 32, "squash")),
        ({"do_resize": False, "do_normalize": False}, (32, "bilinear", None, None)),
        ({"size": {"height": 32, "width": 32}, "resample": 1}, (32, "bicubic", 32, "squash")),
    ],
)
def test_rules_for_images_of_all_ages(tmp_path: Path, rules: dict[str, Any], told: tuple[Any, ...]) -> None:
    save_transformers("ViTModel", tmp_path)
    files = {"config.json": (tmp_path / "config.json").read_bytes()}
    own, notes = preprocessing_of({**files, "preprocessor_config.json": json.dumps(rules).encode()})
    assert (own.size, own.interpolation, own.resize, own.fit) == told
    assert own.mean == ((0.5,) * 3 if rules.get("do_normalize", True) else (0.0,))
    assert bool(notes) == (rules.get("resample") == 1)
    nested = json.dumps({"image_processor": rules}).encode()
    assert preprocessing_of({**files, "processor_config.json": nested})[0] == own


def test_images_that_are_not_square_are_refused(tmp_path: Path) -> None:
    save_transformers("ViTModel", tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"shortest_edge": 32}}')
    with pytest.raises(ConfigError, match="square"):
        adopted(tmp_path)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    save_transformers("ViTModel", tmp_path)
    place = tmp_path / "model.safetensors"
    state = safetensors.torch.load_file(place)
    name = "layernorm.weight"
    safetensors.torch.save_file({key: value for key, value in state.items() if key != name}, place)
    with pytest.raises(ConfigError, match=f"missing.*{name}"):
        adopted(tmp_path)
    safetensors.torch.save_file({**state, name: torch.ones(5)}, place)
    with pytest.raises(ConfigError, match=rf"{name} \(5,\) instead of \(32,\)"):
        adopted(tmp_path)


def test_other_models_and_a_missing_package_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_transformers("ViTModel", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="model_type = 'bert' of config.json, allowed: clip"):
        adopted(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is no JSON"):
        adopted(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ConfigError, match=r"encoder-audit\[hub\]"):
        adopted(tmp_path)


def test_an_activation_of_its_config_is_part_of_the_identity(tmp_path: Path) -> None:
    save_transformers("ViTModel", tmp_path)
    before = adopted(tmp_path).fingerprint
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    assert adopted(tmp_path).fingerprint != before
