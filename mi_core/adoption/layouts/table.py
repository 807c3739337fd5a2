"""The known layouts of checkpoints: marks of a file, places of its parts, and definitions of its authors' code.

An activation, a number of attention heads and the meaning of what is left over stand in no file. Here they come from
the repositories named. A further layout is a further entry of `LAYOUTS`; one that tells more stands before one that
tells less.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_TEACHER = "the other network; DINO releases the teacher"
_MOMENTUM = "a momentum copy, which is not what is released"
_PROTOTYPES = "prototypes, with which the loss compares"
ALWAYS_IGNORED: dict[str, str] = {
    r"(.*\.)?total_(ops|params)$": "counters of thop",
    r"(.*\.)?mask_token$": "stands for hidden patches in training",
    r"(encoder_k|key_backbone|key_projection|momentum_\w+|\w+_momentum|target_\w+)\.": _MOMENTUM,
    r"(.*_)?(queue|queue_ptr)(\d*)$": "the queue of negatives",
    r"(criterion|loss|loss_fn|\w+_loss)\.": "values of the loss",
    r"prototypes\.(?!weight_[gv]$)": _PROTOTYPES,
    r"(online_|linear_)classifier\.": "a classifier trained beside the encoder",
}
"""Keys that no encoder needs: the pattern of their beginning, and why."""
_GENERIC = ("projection.", "projection_head.", "projector.", "proj_head.")
_PREDICTION = ("prediction.", "prediction_head.", "predictor.")
_PROBE = {r"classifier\.": "a classifier trained beside the encoder"}
_OWN_STATE = {r"(pointer|steps|queue)$": "the state of its training"}
_CLASSIFIERS = ("fc.", "classifier.1.", "heads.head.", "head.")
_MOCO = {"encoder_q.": "encoder_k."}
_HEADS_64 = {192: 3, 384: 6, 768: 12, 1024: 16, 1536: 24}
_HEADS_MOCO = {384: 12, 768: 12, 1024: 16, 1280: 16}
_HEADS_MAE = {768: 12, 1024: 16, 1280: 16}
_HEADS_JEPA = _HEADS_MAE | {1408: 16}


@dataclass(frozen=True)
class Known:
    """A layout of checkpoints.

    Args:
        name: in words, with ``checkpoint`` or ``state dict``.
        prefix: of the backbone's keys.
        marks: patterns, each of which some key has to match from its beginning.
        heads: by output name the prefixes of its keys; the first that is there is taken.
        ignored: patterns of keys that are left out, with the reason, beside those of `ALWAYS_IGNORED`.
        activation: between the layers of its heads, by its authors' code; None: the code is not known.
        attention: number of attention heads of its transformers by width, likewise.
        own: this package wrote it, so the name of the backbone is the one it was trained under.
        momentum: by prefix of the encoder's keys the prefix that its momentum copy has in their place.
    """

    name: str
    prefix: str
    marks: tuple[str, ...] = ()
    heads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    activation: str | None = None
    attention: Mapping[int, int] = field(default_factory=dict)
    own: bool = False
    momentum: Mapping[str, str] = field(default_factory=dict)

    def fits(self, keys: Iterable[str]) -> bool:
        """True if the backbone's prefix and all marks are there."""
        keys = list(keys)
        marked = all(any(re.match(mark, key) for key in keys) for mark in self.marks)
        return marked and any(key.startswith(self.prefix) for key in keys)

    def copied(self, key: str) -> str | None:
        """The momentum copy's key for a key of the encoder; None: the copy has no such part.

        Example:
            >>> Known("MoCo", "encoder_q.", momentum={"encoder_q.": "encoder_k."}).copied("encoder_q.fc.weight")
            'encoder_k.fc.weight'
        """
        starts = (start for start in self.momentum if key.startswith(start))
        return next((self.momentum[start] + key.removeprefix(start) for start in starts), None)

    def why_ignored(self, key: str) -> str | None:
        """The reason to leave a key out; None: the key is not known."""
        rules = {**self.ignored, **ALWAYS_IGNORED}
        return next((reason for pattern, reason in rules.items() if re.match(pattern, key)), None)


LAYOUTS: tuple[Known, ...] = (
    Known(
        "MoCo CIFAR demo checkpoint",
        "encoder_q.net.",
        heads={"projection": ("encoder_q.net.9.",)},
        activation="relu",
        momentum=_MOCO,
    ),
    Known(
        "MoCo v2 checkpoint",
        "encoder_q.",
        marks=(r"encoder_q\.fc\.2\.weight$",),
        heads={"projection": ("encoder_q.fc.",)},
        activation="relu",
        momentum=_MOCO,
    ),
    Known(
        "MoCo v1 checkpoint", "encoder_q.", heads={"projection": ("encoder_q.fc.",)}, activation="relu", momentum=_MOCO
    ),
    Known(
        "MoCo v3 checkpoint",
        "base_encoder.",
        heads={"projection": ("base_encoder.fc.", "base_encoder.head."), "prediction": ("predictor.",)},
        activation="relu",
        attention=_HEADS_MOCO,
        momentum={"base_encoder.": "momentum_encoder."},
    ),
    Known(
        "SimSiam checkpoint",
        "encoder.",
        marks=(r"encoder\.fc\.6\.weight$", r"encoder\.fc\.7\.running_mean$", r"predictor\.3\.weight$"),
        heads={"projection": ("encoder.fc.",), "prediction": ("predictor.",)},
        activation="relu",
    ),
    Known(
        "BYOL checkpoint of byol-pytorch",
        "online_encoder.net.",
        heads={"projection": ("online_encoder.projector.",), "prediction": ("online_predictor.",)},
        ignored={
            r"net\.": "the same network once more",
            r"online_encoder\.net\.fc\.": "the network's own classifier, which BYOL does not train",
        },
        activation="relu",
        momentum={"online_encoder.": "target_encoder."},
    ),
    Known(
        "DINO checkpoint",
        "backbone.",
        marks=(r"head\.mlp\.", r"head\.last_layer\."),
        heads={"projection": ("head.mlp.",), "prototypes": ("head.last_layer.",)},
        ignored={r"head\.last_layer\.(?!weight_[gv]$)": _PROTOTYPES, **_PROBE},
        activation="gelu",
        attention=_HEADS_64,
    ),
    Known(
        "DINOv2 training checkpoint",
        "backbone.",
        marks=(r"backbone\.blocks\.0\.ls1\.gamma$",),
        heads={"projection": ("dino_head.mlp.",), "prototypes": ("dino_head.last_layer.",)},
        ignored={r"dino_head\.last_layer\.(?!weight_[gv]$)": _PROTOTYPES, r"ibot_head\.": "the head for patches"},
        activation="gelu",
        attention=_HEADS_64,
    ),
    Known(
        "lightly DINO state dict",
        "teacher_backbone.",
        heads={"projection": ("teacher_head.layers.",), "prototypes": ("teacher_head.last_layer.",)},
        ignored={r"teacher_head\.last_layer\.(?!weight_[gv]$)": _PROTOTYPES, r"student_(backbone|head)\.": _TEACHER},
        activation="gelu",
    ),
    Known(
        "lightly state dict",
        "backbone.",
        marks=(r"projection_head\.layers\.0\.",),
        heads={"projection": ("projection_head.",), "prediction": ("prediction_head.",)},
        activation="relu",
        momentum={"backbone.": "backbone_momentum.", "projection_head.": "projection_head_momentum."},
    ),
    Known(
        "Barlow Twins checkpoint",
        "backbone.",
        marks=(r"projector\.6\.weight$", r"bn\.running_mean$"),
        heads={"projection": ("projector.",)},
        ignored={r"bn\.": "the norm before the loss"},
        activation="relu",
    ),
    Known(
        "solo-learn state dict",
        "backbone.",
        marks=(r"projector\.0\.weight$", r"classifier\.weight$", r"classifier\.bias$"),
        heads={"projection": ("projector.",), "prediction": ("predictor.",)},
        ignored=_PROBE,
        activation="relu",
        momentum={"backbone.": "momentum_backbone.", "projector.": "momentum_projector."},
    ),
    Known(
        "VICReg checkpoint",
        "backbone.",
        marks=(
            r"projector\.0\.bias$",
            r"projector\.1\.running_mean$",
            r"projector\.4\.running_mean$",
            r"projector\.6\.",
        ),
        heads={"projection": ("projector.",)},
        activation="relu",
    ),
    Known(
        "SimCLR checkpoint of sthalles/SimCLR",
        "backbone.",
        marks=(r"backbone\.fc\.0\.weight$", r"backbone\.fc\.2\.weight$"),
        heads={"projection": ("backbone.fc.",)},
        activation="relu",
    ),
    Known(
        "SimCLR state dict of leftthomas/SimCLR",
        "f.",
        marks=(r"g\.0\.weight$", r"g\.1\.running_mean$", r"g\.3\.weight$"),
        heads={"projection": ("g.",)},
        activation="relu",
    ),
    Known(
        "DINO state dict of this package",
        "backbone.",
        marks=("mean$", "std$", r"prototypes\.weight_v$"),
        heads={"projection": ("projection.",), "prototypes": ("prototypes.",)},
        ignored=_OWN_STATE,
        activation="gelu",
        own=True,
    ),
    Known(
        "state dict of this package",
        "backbone.",
        marks=("mean$", "std$"),
        heads={"projection": ("projection.",), "prediction": ("prediction.",), "logits": ("logits.",)},
        ignored=_OWN_STATE,
        activation="relu",
        own=True,
    ),
    Known(
        "SwAV checkpoint",
        "",
        marks=(r"projection_head\.", r"prototypes\."),
        heads={"projection": ("projection_head.",)},
        activation="relu",
    ),
    Known(
        "MAE checkpoint",
        "",
        marks=(r"decoder_embed\.", r"decoder_blocks\.", r"mask_token$"),
        ignored={r"(decoder_|mask_token$)": "the decoder, no part of the encoder"},
        attention=_HEADS_MAE,
    ),
    Known(
        "I-JEPA checkpoint",
        "",
        marks=(r"predictor\.predictor_embed\.", r"predictor\.mask_token$"),
        ignored={r"predictor\.": "the predictor, no part of the encoder"},
        attention=_HEADS_JEPA,
    ),
    Known("DINOv2 state dict", "", marks=(r"blocks\.0\.ls1\.gamma$", r"mask_token$"), attention=_HEADS_64),
    Known(
        "backbone.* state dict",
        "backbone.",
        heads={"projection": (*_GENERIC, "backbone.fc."), "prediction": _PREDICTION, "logits": ("logits.",)},
        ignored={**_PROBE, **_OWN_STATE},
    ),
    Known(
        "encoder.* state dict",
        "encoder.",
        heads={"projection": (*_GENERIC, "head.", "encoder.fc."), "prediction": _PREDICTION, "logits": ("fc.",)},
        ignored=_PROBE,
    ),
    Known("f.* state dict", "f.", heads={"projection": ("g.", *_GENERIC), "logits": ("fc.",)}),
    Known(
        "plain state dict",
        "",
        heads={"projection": _GENERIC, "prediction": _PREDICTION, "logits": _CLASSIFIERS},
        ignored={r"classifier\.(?!1\.)": "a classifier that reads another embedding"},
    ),
)
"""All layouts. Where two fit a backbone equally well, the first is taken."""
ENDS = frozenset(known.prefix for known in LAYOUTS if known.prefix)
"""The prefixes of all layouts, before which other parts of a name may stand."""
