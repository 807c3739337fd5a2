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
from mi_core.adoption.transformers_models import is_of_captions, preprocessing_of
from mi_core.adoption.weight_sources import read_local, read_weights_of
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import weights_bytes
from tests.mi_core.adoption.folders import WITH_WORDS, save_transformers
from tests.raising import refused

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
    "CLIPVisionModel": {"backbone": lambda model, images: model(images).pooler_output},
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
    bare = without_weights(found.files)
    first, second, third = (adopt(LOAD, bare, channels=3, image_size=32, fresh=seed) for seed in (1, 1, 2))
    assert len({found.fingerprint, first.fingerprint, third.fingerprint}) == 3
    assert first.fingerprint == second.fingerprint
    assert first.encoder.outputs == found.encoder.outputs


def packed(images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Images as Qwen's own processor gives them to its model."""
    import transformers

    plain = {"do_resize": False, "do_rescale": False, "do_normalize": False}
    processor = transformers.Qwen2VLImageProcessor(patch_size=4, merge_size=2, temporal_patch_size=2, **plain)
    answer = processor(list(images), return_tensors="pt")
    return {"hidden_states": answer["pixel_values"], "grid_thw": answer["image_grid_thw"]}


@pytest.mark.parametrize("name", WITH_WORDS)
def test_of_a_model_with_words_the_image_tower_is_taken(tmp_path: Path, name: str) -> None:
    model = save_transformers(name, tmp_path).model
    found, images = adopted(tmp_path), torch.rand(3, 3, 64, 64) if "Qwen" in name else torch.rand(3, 3, 32, 32)
    with torch.inference_mode():
        answers = found.encoder(images)
        sent = (images - 0.5) / 0.5
        if "Qwen" in name:
            told = model.visual(**packed(sent)).pooler_output.reshape(3, 64, 32)
            told = told.mean(dim=1)
        else:
            told = model.vision_tower(sent).pooler_output
            told = model.vision_tower(sent).last_hidden_state.mean(dim=1) if told is None else told
        torch.testing.assert_close(answers, {"backbone": told})
        saved = with_definition(weights_bytes(found.encoder), found.files)
        again = rebuild(LOAD, saved, found.preprocessing, channels=3, image_size=32, mark=found.fingerprint)
        torch.testing.assert_close(again(images), answers)
    assert found.encoder.text is None
    assert ("mean of the vectors of its patches" in found.layout) == (not name.startswith(("LlavaF", "LlavaNext")))
    assert is_of_captions(found.files)


def test_a_side_that_patches_do_not_fill_is_refused(tmp_path: Path) -> None:
    save_transformers("Qwen2VLForConditionalGeneration", tmp_path)
    refused(ConfigError, r"a multiple of 8 px, not 36; set size", adopted, tmp_path, preprocessing={"size": 36})


@pytest.mark.parametrize("older", [False, True])
def test_a_tower_is_read_without_the_parts_of_the_language_model(tmp_path: Path, *, older: bool) -> None:
    """Its weights have names of any version; a file that holds none of them need not be there."""
    model = save_transformers("LlavaForConditionalGeneration", tmp_path)
    state = safetensors.torch.load_file(tmp_path / "model.safetensors")
    tower = {name: value.half() for name, value in state.items() if name.startswith("vision_tower.")}
    if older:
        tower = {f"vision_tower.vision_model.{name.removeprefix('vision_tower.')}": tower[name] for name in tower}
        config = json.loads((tmp_path / "config.json").read_text())
        del config["vision_config"]["model_type"]
        (tmp_path / "config.json").write_text(json.dumps(config))
    else:
        tower = {f"model.{name}": value for name, value in tower.items()}
    halves = [dict(list(tower.items())[:5]), {**dict(list(tower.items())[5:]), "lm_head.weight": torch.ones(2)}]
    places = {name: f"{at}.safetensors" for at, half in enumerate(halves) for name in half}
    index = {"weight_map": {**places, "language_model.norm.weight": "absent.safetensors"}}
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for at, half in enumerate(halves):
        safetensors.torch.save_file(half, tmp_path / f"{at}.safetensors")
    content = read_weights_of(LOAD, str(tmp_path), read_local).content
    assert content is not None
    assert len(safetensors.torch.load(content)) == len(tower)
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        told = model.model.vision_tower((images - 0.5) / 0.5).pooler_output
        torch.testing.assert_close(adopted(tmp_path).encoder(images)["backbone"], told, atol=0.01, rtol=0.01)
    (tmp_path / "1.safetensors").unlink()
    refused(ConfigError, r"there is no 1\.safetensors, which the index", adopted, tmp_path)


def test_a_model_with_words_that_lacks_its_tower_is_one_line(tmp_path: Path) -> None:
    save_transformers("PaliGemmaForConditionalGeneration", tmp_path)
    place = tmp_path / "model.safetensors"
    state = safetensors.torch.load_file(place)
    norm = next(name for name in state if name.endswith("post_layernorm.weight"))
    safetensors.torch.save_file({name: value for name, value in state.items() if name != norm}, place)
    refused(ConfigError, r"missing \['post_layernorm.weight'\]", adopted, tmp_path)
    words = {name: value for name, value in state.items() if "vision_tower" not in name}
    safetensors.torch.save_file(words, place)
    refused(ConfigError, r"no weights of its image tower, whose names begin with vision_tower\.", adopted, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "paligemma"}')
    refused(ConfigError, "paligemma has no vision_config", adopted, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llava", "vision_config": {"model_type": "pixtral"}}')
    safetensors.torch.save_file(state, place)
    refused(ConfigError, r"'pixtral'.*save a tower of these kinds by itself", adopted, tmp_path)


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
    with torch.inference_mode():
        torch.testing.assert_close(text(captions), pooled(model.get_text_features(**asked)))


def test_without_a_vocabulary_there_is_no_text_side(tmp_path: Path) -> None:
    save_transformers("CLIPModel", tmp_path)
    found = adopted(tmp_path)
    assert found.encoder.text is None
    assert "text side is left out" in found.layout
    assert "no preprocessor_config.json" in found.layout


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


@pytest.mark.parametrize(
    "kind",
    ["CLIPImageProcessor", "ViTImageProcessor", "SiglipImageProcessor", "BitImageProcessor", "DINOv3ViTImageProcessor"],
)
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"do_rescale": False},
        {"do_rescale": False, "image_mean": [120.0, 110.0, 100.0], "image_std": [60.0, 50.0, 40.0]},
        {"rescale_factor": 1 / 127.5},
        {"do_normalize": False},
        {"do_normalize": False, "do_rescale": False},
    ],
)
def test_every_field_of_the_processor_is_followed(tmp_path: Path, kind: str, rules: dict[str, Any]) -> None:
    """The package's own processor is the referee, also of fields that a file leaves to the processor's class."""
    import numpy as np
    import transformers
    from PIL import Image

    from mi_core.images import Decoder, decode, encode_png

    if kind == "DINOv3ViTImageProcessor" and not rules.get("do_rescale", True):
        pytest.skip("its own processor fails")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": kind, **rules}))
    files = {"preprocessor_config.json": (tmp_path / "preprocessor_config.json").read_bytes()}
    ways, _ = preprocessing_of(files | {"config.json": b'{"model_type": "vit", "image_size": 32}'})
    picture = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    theirs = getattr(transformers, kind).from_pretrained(tmp_path)(Image.fromarray(picture), return_tensors="pt")
    pixels = torch.from_numpy(decode(encode_png(picture), Decoder(**ways.decoding())).copy()).float() / 255
    mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in (ways.mean, ways.std))
    wanted = theirs["pixel_values"][0]
    off = ((pixels - mean) / std - wanted).abs().max() / (wanted.max() - wanted.min())
    assert float(off) < 0.02  # rounding while it resizes


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"do_pad": True}, "preprocessor_config.json: do_pad = True changes pixels"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order"),
        ({"rescale_offset": True}, "rescale_offset"),
        ({"crop_pct": 0.875}, "crop_pct"),
        ({"size": {"longest_edge": 224}}, "size = {'longest_edge': 224}"),
        ({"size": {"height": 32, "width": 40}}, "images of 32 x 40 px"),
        ({"size": {"shortest_edge": 32}}, "square"),
        ({"do_pad": False, "size": 32}, ""),
    ],
)
def test_a_field_that_is_not_followed_is_refused_by_name(tmp_path: Path, rules: dict[str, Any], told: str) -> None:
    save_transformers("ViTModel", tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(rules))
    if told:
        refused(ConfigError, told, adopted, tmp_path)
    else:
        assert adopted(tmp_path).preprocessing.size == 32


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    save_transformers("ViTModel", tmp_path)
    place = tmp_path / "model.safetensors"
    state = safetensors.torch.load_file(place)
    name = "layernorm.weight"
    safetensors.torch.save_file({key: value for key, value in state.items() if key != name}, place)
    refused(ConfigError, f"missing.*{name}", adopted, tmp_path)
    safetensors.torch.save_file({**state, name: torch.ones(5)}, place)
    refused(ConfigError, rf"{name} \(5,\) instead of \(32,\)", adopted, tmp_path)


def test_other_models_and_a_missing_package_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_transformers("ViTModel", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    refused(ConfigError, "model_type = 'bert' of config.json, allowed: clip", adopted, tmp_path)
    (tmp_path / "config.json").write_text("{")
    refused(ConfigError, r"config\.json is no JSON", adopted, tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    refused(ConfigError, r"encoder-audit\[hub\]", adopted, tmp_path)


def test_an_activation_of_its_config_is_part_of_the_identity(tmp_path: Path) -> None:
    save_transformers("ViTModel", tmp_path)
    before = adopted(tmp_path).fingerprint
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    assert adopted(tmp_path).fingerprint != before
