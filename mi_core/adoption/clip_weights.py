"""Weights of CLIP and its kin, as open_clip and OpenAI name them, for an encoder of their parts."""

from __future__ import annotations

from mi_core.adoption.layouts.heads import State
from mi_core.adoption.published import import_timm, open_clip_tags
from mi_core.checks import ConfigError
from mi_core.encoders.clip import OpenCLIPText, SplitTower, import_open_clip

_OPENAI = ("input_resolution", "context_length", "vocab_size")  # numbers beside the weights in OpenAI's own files
_QUICK = "-quickgelu"


def convert_open_clip(state: State, parts: SplitTower, name: str) -> State:
    """Weights of a whole model, of open_clip's or of OpenAI's own names, for an encoder of its parts.

    Raises:
        ConfigError: they are OpenAI's own, which need QuickGELU, and the architecture has GELU.
    """
    twin = _twin(name)
    if all(part in state for part in _OPENAI) and twin is not None and not name.endswith(_QUICK):
        raise ConfigError(f"the file is OpenAI's own, whose weights need QuickGELU: set load = 'open_clip:{twin}'")
    state = {key: value for key, value in state.items() if key not in _OPENAI}
    tower = {key.removeprefix("visual."): value for key, value in state.items() if key.startswith("visual.")}
    if parts.projection_key == "proj" and "proj" in tower:
        tower["proj.weight"] = tower.pop("proj").T
    weights = _text_weights(state, parts.text) if parts.text is not None else {}
    for place, value in tower.items():
        own = parts.projection_key and place.startswith(f"{parts.projection_key}.")
        name = f"projection{place.removeprefix(parts.projection_key)}" if own else f"backbone.tower.{place}"
        weights[name] = value
    return weights


def _text_weights(state: State, text: OpenCLIPText) -> State:
    """Weights of the text side under the names that the model has, whichever of open_clip's two they come in."""
    own = text.model.state_dict()
    rest = {key: value for key, value in state.items() if not key.startswith("visual.")}
    if "positional_embedding" in rest and "positional_embedding" not in own:
        rest = import_open_clip().model.convert_to_custom_text_state_dict(rest)
    scalars = {key: value.reshape(own[key].shape) for key, value in rest.items() if key in own and value.numel() == 1}
    return {f"text.model.{key}": value for key, value in (rest | scalars).items()}


def activation_note(name: str, tag: str) -> str:
    """A remark that the file's activation cannot be told; empty where it is known or makes no difference.

    Raises:
        ConfigError: the published weights of this tag have the other activation; the architecture to write is named.
    """
    twin = _twin(name)
    if twin is None:
        return ""
    quick = name.endswith(_QUICK)
    of_quick = [known for known, entry in open_clip_tags(name.removesuffix(_QUICK)).items() if entry.get("quick_gelu")]
    if tag:
        if (tag in of_quick) != quick:
            raise ConfigError(f"the weights {tag} of {name} need load = 'open_clip:{twin}:{tag}'")
        return ""
    return _activation_in_words(of_quick, f"open_clip:{twin}")


def timm_activation_note(name: str) -> str:
    """The same of timm's names, which may end in a tag: timm itself takes weights with the other activation."""
    timm, plain = import_timm(), name.partition(".")[0].replace("_quickgelu", "")
    quick = plain.replace("_clip_", "_clip_quickgelu_")
    if quick == plain or not timm.is_model(quick) or not timm.is_model(plain):
        return ""
    of_quick = [known.partition(".")[2] for known in timm.list_pretrained(f"{quick}.*")]
    return _activation_in_words(of_quick, f"timm:{quick if name.partition('.')[0] == plain else plain}")


def _activation_in_words(of_quick: list[str], twin: str) -> str:
    """The activation that a name has, the weights that have the other, by their tags, and the name for these."""
    own, other, which = ("GELU", "QuickGELU", ", ".join(of_quick))
    if "quickgelu" not in twin:
        own, other, which = "QuickGELU", "GELU", "all others"
    return f"taken to have {own}, which no file tells; weights with {other} ({which}) need {twin}"


def _twin(name: str) -> str | None:
    """The architecture with the other activation, where open_clip has one."""
    twin = name.removesuffix(_QUICK) if name.endswith(_QUICK) else f"{name}{_QUICK}"
    return twin if twin in import_open_clip().list_models() else None
