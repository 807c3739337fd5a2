"""Small models in folders, as transformers, open_clip and timm save them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

TINY: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = ["<pad>", "<end>", "<unk>", "a", "cat", "dog", "red", "car", "photo", "of"]
_VISION = {**TINY, "image_size": 32, "patch_size": 8}
_PACKED = {"depth": 3, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
_OF_CLIP = {**_VISION, "model_type": "clip_vision_model"}
_OF_SIGLIP = {**_VISION, "model_type": "siglip_vision_model", "vision_use_head": False}
WITH_WORDS: dict[str, tuple[str, dict[str, Any]]] = {
    "LlavaForConditionalGeneration": ("llama", _OF_CLIP),
    "LlavaNextForConditionalGeneration": ("llama", _OF_CLIP),
    "LlavaOnevisionForConditionalGeneration": ("qwen2", _OF_SIGLIP),
    "PaliGemmaForConditionalGeneration": ("gemma", _OF_SIGLIP),
    "Qwen2VLForConditionalGeneration": ("", {**_PACKED, "embed_dim": 32, "hidden_size": 32}),
    "Qwen2_5_VLForConditionalGeneration": (
        "",
        {
            **_PACKED,
            "hidden_size": 32,
            "out_hidden_size": 32,
            "intermediate_size": 64,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
    ),
}
"""Models that answer in words: the kind of the language model, and the image tower."""


def with_words(text: str, vision: dict[str, Any]) -> dict[str, Any]:
    """The config of a small model that answers in words."""
    words = {**TINY, "vocab_size": len(WORDS), "num_key_value_heads": 2, "head_dim": 16}
    named = {"model_type": text} if text else {}
    return {"vision_config": vision, "text_config": {**words, **named}, "image_token_index": 3, "image_token_id": 3}


def transformers_model(name: str) -> Any:
    """A small model of transformers with random weights, in evaluation mode."""
    transformers = pytest.importorskip("transformers")
    vision = {**TINY, "image_size": 32, "patch_size": 8}
    text = {**TINY, "vocab_size": len(WORDS), "max_position_embeddings": 12, "bos_token_id": 0, "eos_token_id": 1}
    sizes: dict[str, dict[str, Any]] = {
        "CLIPModel": {
            "vision_config": {**vision, "projection_dim": 16},
            "text_config": {**text, "projection_dim": 16},
            "projection_dim": 16,
        },
        "CLIPVisionModelWithProjection": {**vision, "projection_dim": 16},
        "CLIPVisionModel": vision,
        "SiglipModel": {"vision_config": vision, "text_config": text},
        "SiglipVisionModel": vision,
        "ViTModel": vision,
        "ViTForImageClassification": {**vision, "num_labels": 5},
        "Dinov2Model": {**vision, "patch_size": 16},
        "Dinov2ForImageClassification": {**vision, "patch_size": 16, "num_labels": 5},
        "Dinov2WithRegistersModel": {**vision, "patch_size": 16},
        "DINOv3ViTModel": vision,
    }
    kind = getattr(transformers, name)
    sizes |= {name: with_words(*towers) for name, towers in WITH_WORDS.items()}
    torch.manual_seed(0)
    return kind(kind.config_class(**sizes[name])).eval()


def save_transformers(name: str, folder: Path, *, images: str | None = None, words: bool = False) -> Any:
    """Save a small model, with the rules for images of a processor's class and a tokenizer of `WORDS`; returns it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model = transformers_model(name)
    model.save_pretrained(folder)
    transformers.utils.logging.enable_progress_bar()
    if images == "CLIPImageProcessor":
        sides = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}
        transformers.CLIPImageProcessor(**sides).save_pretrained(folder)
    elif images is not None:
        getattr(transformers, images)(size={"height": 32, "width": 32}).save_pretrained(folder)
    if words:
        save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    """A tokenizer whose tokens are words; it ends texts with ``<end>``, as CLIP's does."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))  # type: ignore[call-arg]
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 1)])  # type: ignore[assignment]
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unk>"
    ).save_pretrained(folder)


def save_open_clip(folder: Path) -> Any:
    """A small open_clip model in a folder as the Hub has it; returns the model."""
    open_clip = pytest.importorskip("open_clip")
    settings = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    }
    rules = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25], "interpolation": "bilinear", "resize_mode": "squash"}
    torch.manual_seed(0)
    model = open_clip.CLIP(**settings).eval()
    folder.mkdir(exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": settings, "preprocess_cfg": rules}))
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    safetensors.torch.save_file(state, folder / "open_clip_model.safetensors")
    return model


def save_timm(folder: Path) -> Any:
    """A small model of timm in a folder as the Hub has it; returns the model without its classifier."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=7).eval()
    folder.mkdir(exist_ok=True)
    own = {**model.pretrained_cfg, "num_classes": 7, "mean": [0.1, 0.2, 0.3]}
    (folder / "config.json").write_text(
        json.dumps({"architecture": "test_vit", "num_classes": 7, "pretrained_cfg": own}, default=str)
    )
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors")
    model.reset_classifier(0)
    return model
