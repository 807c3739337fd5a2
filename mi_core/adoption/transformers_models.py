"""Image encoders of the package transformers (the ``hub`` extra): CLIP, SigLIP, ViT and DINOv2, in parts.

The package itself reads the weights, since it renames them from version to version. Image towers of models that answer
in words come here as folders of their own, see `model_folder.TOWERS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
from torch import nn

from mi_core.adoption.layouts.names import State
from mi_core.adoption.model_folder import TOWERS, Definition, PackedTower, json_of, unpacked
from mi_core.adoption.published import SHORTEST, SQUASH, Preprocessing, square_side
from mi_core.checks import ConfigError, import_extra
from mi_core.encoders.clip import TextTower

_INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_VOCABULARIES = {"tokenizer.json", "vocab.json", "spiece.model"}  # without one, a tokenizer loads that knows no word
_HALF = (0.5, 0.5, 0.5)
_FOLLOWED = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb", "do_reduce_labels")
_CHANGES = re.compile("do_|rescale_offset|offset|crop_pct|size_divis|keep_aspect_ratio|ensure_multiple_of")
_RULES = ("size", "crop_size", "resample", "image_mean", "image_std", *_FOLLOWED)
_BLOCKS = 8  # of merged patches on a side, where a tower takes images of any side


@dataclass(frozen=True)
class _Family:
    """A kind of model.

    Args:
        model: class of transformers; one that is not exported, with its module.
        tower: attribute of the image tower; empty: the model itself.
        specials: tokens before those of the patches, the first is the embedding; 0: the tower pools by itself.
        normalised: whether its last states are normalised as the embedding is.
        projection: attribute of the layer to the space shared with texts; empty: the tower ends in it; None: no such.
        text: attribute of the text tower and of the layer behind it.
        classifier: attribute of a linear classifier of the embedding.
        captions: whether it was trained on images and their captions.
        packed: whether it takes patches of images of any side, see `PackedTower`.
    """

    model: str
    tower: str = ""
    specials: int = 0
    normalised: bool = True
    projection: str | None = None
    text: tuple[str, str] | None = None
    classifier: str = ""
    captions: bool = False
    packed: bool = False


_CLIP = _Family("CLIPModel", "vision_model", 1, normalised=False, projection="visual_projection", captions=True)
_FAMILIES: dict[str, _Family] = {
    "clip": replace(_CLIP, text=("text_model", "text_projection")),
    "clip_vision_model": replace(_CLIP, model="CLIPVisionModelWithProjection"),
    "siglip": _Family("SiglipModel", "vision_model", projection="", text=("text_model", ""), captions=True),
    "siglip_vision_model": _Family("SiglipVisionModel", projection="", captions=True),
    "qwen2_vl_vision": _Family(
        "models.qwen2_vl.modeling_qwen2_vl.Qwen2VisionTransformerPretrainedModel", captions=True, packed=True
    ),
    "qwen2_5_vl_vision": _Family(
        "models.qwen2_5_vl.modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel", captions=True, packed=True
    ),
    "vit": _Family("ViTModel", specials=1),
    "dinov2": _Family("Dinov2Model", specials=1),
    "dinov2_with_registers": _Family("Dinov2WithRegistersModel", specials=1),
    "dinov3_vit": _Family("DINOv3ViTModel", specials=1),
}
"""Families of models by the ``model_type`` of their config."""
_BY_CLASS = {
    "ViTForImageClassification": _Family("ViTForImageClassification", "vit", 1, classifier="classifier"),
    "CLIPVisionModel": replace(_CLIP, model="CLIPVisionModel", projection=None),
}
"""Models by the first of ``architectures``, where the family is not enough: with a classifier that reads the embedding
(that of DINOv2 reads patches too), or without a projection."""


class TransformersBackbone(nn.Module):
    """An image tower: (B, 3, S, S) to (B, D)."""

    def __init__(self, tower: nn.Module, family: _Family) -> None:
        super().__init__()
        self.tower = tower
        self.family = family

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, S, S) to embeddings (B, D)."""
        answer = self.tower(pixel_values=images)
        pooled = not self.family.specials or not self.family.normalised
        embeddings: torch.Tensor = answer.pooler_output if pooled else answer.last_hidden_state[:, 0]
        if embeddings is None:  # a tower that ends in its patches
            return answer.last_hidden_state.mean(dim=1)
        return embeddings


class TransformersText(TextTower):
    """A text tower with its tokenizer: texts to embeddings.

    Neither family needs an attention mask: SigLIP attends to its padding, and CLIP's tokens to no later ones.
    """

    def __init__(self, tower: nn.Module, layer: nn.Module, tokenizer: Any, length: int, *, full: bool) -> None:
        super().__init__()
        self.tower, self.layer = tower, layer
        self.tokenizer, self.length, self.full = tokenizer, length, full

    def tokens(self, captions: Sequence[str]) -> torch.Tensor:
        """B texts to tokens (B, L) int64, with their padding at the end."""
        rows = self.tokenizer(
            list(captions),
            padding="max_length" if self.full else True,
            padding_side="right",
            truncation=True,
            max_length=self.length,
            return_tensors="pt",
        )
        return rows["input_ids"].to(next(self.tower.parameters()).device)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (B, L) to embeddings (B, E)."""
        return self.layer(self.tower(input_ids=tokens).pooler_output)


_Parts = tuple[TransformersBackbone, dict[str, nn.Module], TransformersText | None, tuple[str, ...]]


def import_transformers() -> Any:
    """The package transformers. Raises ConfigError naming the extra when it is missing."""
    return import_extra("transformers", "load = 'transformers:...'", "hub")


def is_of_captions(files: Definition) -> bool:
    """True if a model was trained on images and their captions."""
    return _family(files)[0].captions


def split_model(files: Definition) -> _Parts:
    """The parts of a model with fresh weights.

    Returns:
        the image tower before its projection; projection or classifier, by the output's name; texts to embeddings, None
        where it has none or no tokenizer that loads; and remarks for readers of its outputs.

    Raises:
        ConfigError: transformers is not installed, or the model is of another kind than those known here.
    """
    family, config = _family(files)
    with _quiet(), unpacked(files):
        model = _class(family)(config, **_class_arguments(family))
    return _split(model, family, files)


def weights_of(files: Definition, state: State) -> State:
    """Weights of a file under the names that an `Encoder` of `split_model` has.

    Raises:
        ConfigError: weights are missing, or of another shape.
    """
    family, config = _family(files)
    kind = _class(family)
    with _quiet():
        model, told = kind.from_pretrained(
            None,
            config=config,
            state_dict=state,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            **_class_arguments(family),
        )
    wrong = [f"{name} {tuple(have)} instead of {tuple(want)}" for name, have, want in told["mismatched_keys"]]
    missing = sorted(told["missing_keys"])
    if wrong or missing:
        raise ConfigError(
            f"weights do not fit {kind.__name__}: missing {missing[:3]}, wrong shape {wrong[:3]}, "
            f"left over {sorted(told['unexpected_keys'])[:3]}"
        )
    backbone, heads, text, _ = _split(model, family, files)
    parts = {"backbone": backbone, **heads} | ({} if text is None else {"text": text})
    return {f"{part}.{name}": value for part, own in parts.items() for name, value in own.state_dict().items()}


def preprocessing_of(files: Definition) -> tuple[Preprocessing, tuple[str, ...]]:
    """How images reach a model, and what has to be said about it.

    Raises:
        ConfigError: its images are not square.
    """
    family, config = _family(files)
    vision = getattr(config, "vision_config", config)
    known = _image_rules(files)
    if family.packed:
        return _packed_preprocessing(known or {}, vision)
    if known is None:
        size = square_side(vision.image_size)
        return Preprocessing(size, "bilinear", _HALF, _HALF, size, SQUASH), (
            "preprocessing assumed: the folder has no preprocessor_config.json",
        )
    resize, fit = _resized(known)
    crop = known.get("crop_size") if known.get("do_center_crop") else None
    size = square_side(crop) if crop else resize or square_side(vision.image_size)
    mean, std = _normalisation(known)
    interpolation = _INTERPOLATIONS.get(int(known.get("resample", 2)))
    notes = () if interpolation else ("it resizes by a filter that is none of bilinear and bicubic; bicubic is used",)
    if fit == SHORTEST and crop is None:
        raise ConfigError("its images are resized without a crop, so they are not square; only square ones are queried")
    return Preprocessing(size, interpolation or "bicubic", mean, std, resize, fit if resize else None), notes


def _packed_preprocessing(known: Mapping[str, Any], vision: Any) -> tuple[Preprocessing, tuple[str, ...]]:
    """The same of a tower that takes images of any side."""
    size = _BLOCKS * int(vision.patch_size * vision.spatial_merge_size)
    mean, std = _normalisation(known)
    beside = () if known else ("mean and std assumed: the folder has no preprocessor_config.json",)
    note = f"it takes images of any side; they are shown with {size} x {size} px"
    return Preprocessing(size, "bicubic", mean, std, size, SQUASH), (note, *beside)


def _normalisation(known: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of pixels in [0, 1] that do what the rules do to pixels of 0 to 255."""
    scale = 255 * float(known.get("rescale_factor") or 1 / 255) if known.get("do_rescale", True) else 255.0
    mean, std = known.get("image_mean") or _HALF, known.get("image_std") or _HALF
    mean, std = (mean, std) if known.get("do_normalize", True) else ((0.0,), (1.0,))
    return tuple(float(value) / scale for value in mean), tuple(float(value) / scale for value in std)


def _image_rules(files: Definition) -> dict[str, Any] | None:
    """The rules for images, those of their class where they are silent; None: none. Raises ConfigError: `_CHANGES`."""
    found = next((name for name in ("preprocessor_config.json", "processor_config.json") if name in files), "")
    own = json_of(files, found) if found else None
    own = own.get("image_processor") if own and found == "processor_config.json" else own
    if not isinstance(own, dict):
        return None
    for field, value in own.items():
        if value and _CHANGES.match(field) and field not in _FOLLOWED:
            raise ConfigError(f"{found}: {field} = {value!r} changes pixels in a way that is not followed here")
    named = str(own.get("image_processor_type") or own.get("feature_extractor_type"))
    kind = getattr(
        import_transformers(), re.sub("Fast$", "", named.replace("FeatureExtractor", "ImageProcessor")), None
    )
    return {field: getattr(kind, field) for field in _RULES if getattr(kind, field, None) is not None} | own


def _resized(known: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Side after the resizing and its way, of the rules for images."""
    size = known.get("size")
    if not known.get("do_resize", True) or size is None:
        return None, None
    if isinstance(size, int):  # as files of before have it
        return size, SHORTEST if known.get("do_center_crop") else SQUASH
    if not set(size) <= {"shortest_edge", "height", "width"}:
        raise ConfigError(f"size = {size} of its images is not followed here, only height and width or shortest_edge")
    if "shortest_edge" in size:
        return int(size["shortest_edge"]), SHORTEST
    return square_side(size), SQUASH


def _family(files: Definition) -> tuple[_Family, Any]:
    """The family of a model, and its config."""
    own = json_of(files, "config.json")
    kind = own.get("model_type")
    if kind not in _FAMILIES:
        raise ConfigError(
            f"model_type = {kind!r} of config.json, allowed: {', '.join(_FAMILIES)}, and {', '.join(TOWERS)}, of which "
            "the image tower is taken; of other models save a tower of these kinds by itself, and give that folder"
        )
    first = next(iter(own.get("architectures") or ()), "")
    family = _BY_CLASS.get(first) or _FAMILIES[kind]
    with _quiet(), unpacked({"config.json": files["config.json"]}) as place:
        try:
            config = _class(family).config_class.from_pretrained(place)
        except Exception as error:
            raise ConfigError(f"config.json: {' '.join(str(error).split())[:200]}") from error
    if not getattr(config, "vision_use_head", True):  # as PaliGemma has SigLIP, which then has no embedding of its own
        family = replace(family, projection=None)
    return family, config


def _class(family: _Family) -> Any:
    """The class of a model."""
    transformers = import_transformers()
    module, _, name = family.model.rpartition(".")
    return getattr(import_module(f"transformers.{module}") if module else transformers, name)


def _class_arguments(family: _Family) -> dict[str, Any]:
    """Arguments of the model's class: no second layer behind ViT's embedding, which pre-training does not have."""
    return {"add_pooling_layer": False} if family.model == "ViTModel" else {}


def _split(model: Any, family: _Family, files: Definition) -> _Parts:
    tower = getattr(model, family.tower, model) if family.tower else model
    tower = PackedTower(tower) if family.packed else tower
    heads: dict[str, nn.Module] = {}
    notes: list[str] = []
    pools = not family.packed and getattr(model.config, "vision_use_head", True)
    if not pools:
        notes.append("the embedding is the mean of the vectors of its patches, for it pools nothing by itself")
    if family.projection is not None:
        heads["projection"] = getattr(model, family.projection) if family.projection else nn.Identity()
        if not family.projection:
            notes.append("backbone and projection are the same, the tower ends in the shared space")
    if family.classifier:
        heads["logits"] = getattr(model, family.classifier)
    elif any("Classification" in name for name in json_of(files, "config.json").get("architectures") or ()):
        notes.append("its classifier is left out")
    text = _text(model, family, files)
    if family.text is not None and text is None:
        notes.append("its text side is left out, for its folder has no tokenizer that loads")
    return TransformersBackbone(tower, family), heads, text, tuple(notes)


def _text(model: Any, family: _Family, files: Definition) -> TransformersText | None:
    if family.text is None or not _VOCABULARIES & files.keys():
        return None
    try:
        with _quiet(), unpacked(files) as place:
            tokenizer = import_transformers().AutoTokenizer.from_pretrained(place)
    except Exception:  # noqa: BLE001 - whatever a tokenizer's package raises: images can be audited without it
        return None
    tower, layer = family.text
    length = int(model.config.text_config.max_position_embeddings)
    after = getattr(model, layer) if layer else nn.Identity()
    return TransformersText(getattr(model, tower), after, tokenizer, length, full=not layer)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no warnings: what matters is checked here."""
    logs = import_transformers().utils.logging
    before, bars = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        yield
    finally:
        logs.set_verbosity(before)
        if bars:
            logs.enable_progress_bar()
