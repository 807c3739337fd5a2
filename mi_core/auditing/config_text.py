"""The YAML of a config that repeats an audit on a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

FIRST_LINE = "# Were these images used to train this encoder? The same audit as a config; run it with"
MISSING = "FILL-IN"
FAMILY = "reference"
"""The name that reference encoders share."""
EPOCHS = 40  # that reference encoders are trained for
KNOWN = 0.3  # share of the controls that fixes the threshold
_LARGEST = 32  # side of the images that reference encoders are trained on


def reference_settings(side: int | None = None) -> dict[str, Any]:
    """The settings of reference encoders that are made here, but for the roles that they are trained on.

    Args:
        side: of the audited images in pixels; larger ones are shrunk, smaller ones stay as they are. None: not known.
    """
    return {
        "objective": "simclr",
        "backbone": "resnet8",
        "size": min(_LARGEST, side or _LARGEST),
        "halves": 4,
        "epochs": EPOCHS,
        "batch_size": 64,
        "optimizer": {"name": "adamw", "learning_rate": 0.005, "weight_decay": 1e-4, "schedule": "cosine"},
    }


def audit_settings(
    target: Mapping[str, Any],
    references: Mapping[str, Mapping[str, Any]],
    sources: Mapping[str, Mapping[str, Any]],
    *,
    objective: str,
    augmentation: Mapping[str, Any] = {},
    data: Mapping[str, Any],
    output: str,
    views: int,
    fdr: float | None = None,
    factor: float | None = None,
    nonce: str | None = None,
    seed: int,
    known: bool = False,
    captions: bool = False,
    further: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The settings of an audit of candidates against controls.

    Args:
        target: settings of the encoder, as ``encoders`` has them.
        references: the same of encoders that saw neither group, by name; those without ``load`` and ``endpoint`` are
            trained on halves of both.
        sources: settings of ``candidates``, ``controls`` and, with ``known``, of ``known``.
        objective: training whose views the queries imitate; augmentation: settings of these views.
        data: side of the images and how they come to it, where a named encoder's publisher does not say that, and
            other settings of ``data``.
        output: that is attacked.
        views: of each image.
        fdr: false discovery rate at which single candidates are flagged; None: that of every config.
        factor: least robustness of a leak; None: that of every config.
        nonce: of the queries; None: drawn when the audit starts.
        seed: of everything random.
        known: whether members are known: LpLA runs too, and half of them are held back to estimate the share used.
        captions: whether images have captions: the attack on similarities of images and captions runs too.
        further: attacks beside these, as ``attacks`` has them.
    """
    roles: dict[str, Any] = {
        "candidate": {"from": "candidates"},
        "control": {"from": "controls"},
        "known-nonmember": {"from": "control", "fraction": KNOWN},
    }
    attacks: list[dict[str, Any]] = [{"attack": "mean-cosine", "target": "target", "reference": "nonmembers"}]
    if known:
        roles["known-member"] = {"from": "known", "fraction": 0.5}
        roles["calibration-member"] = {"from": "known", "fraction": 0.5}
        attacks.append({"attack": "lpla", "target": "target", "reference": "known"})
    if captions:
        attacks.append({"attack": "clip-cosine", "target": "target", "reference": "nonmembers"})
    attacks += map(dict, further)
    by_shadows = any(one["reference"] == FAMILY for one in further)  # which draw the views of the target here, too
    drawn = dict(augmentation) if by_shadows else "as-trained"
    views_of_training = {"objective": objective} | ({"augmentation": dict(augmentation)} if augmentation else {})
    return {
        "name": "audit",
        "seeds": [seed],
        "data": {
            "sources": {name: dict(one) for name, one in sources.items()},
            "near_duplicates": {},
            **data,
            "roles": roles,
        },
        "encoders": {
            "target": {**views_of_training, **target},
            **{  # trained on halves of both groups, or from elsewhere with the views of the target
                name: {**views_of_training, **one}
                if {"load", "endpoint"} & set(one)
                else {**one, "train_on": ["candidate", "control"]}
                for name, one in references.items()
            },
        },
        "queries": {"views": views, "augmentation": drawn, "outputs": [output]}
        | ({} if nonce is None else {"nonce": nonce}),
        "attacks": attacks,
        "validity": ({"references": list(references)} if references else {})
        | {name: value for name, value in (("fdr", fdr), ("factor", factor)) if value is not None},
    }


_REMARKS = {  # by the last part of a setting's name
    "seeds": "everything random depends on the seed",
    "near_duplicates": "leaves out controls that are nearly a candidate",
    "known-nonmember": "fixes the threshold; the other controls are judged",
    "calibration-member": "held back: they give the share of your images that was used",
    "target": "the queries imitate the views of its objective",
    "reference": "small encoders, each trained on half of both groups by lot; an image counts on the others",
    "outputs": "the embedding that is attacked",
    "references": "the same attack on these encoders, which saw neither group, must find much less",
}


def yaml_of(settings: Mapping[str, Any], remarks: tuple[str, ...] = ()) -> str:
    """Settings as YAML, with a remark where a reader needs one; ``remarks`` stand on top."""
    plain = json.loads(json.dumps(settings))  # tuples as lists
    text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)
    for name, remark in _REMARKS.items():
        text = re.sub(rf"(?m)^( *{name}:.*)$", rf"\1    # {remark}", text, count=1)
    head = [FIRST_LINE, "#   encoder-audit audit FILE --out runs/audit", *(f"# {one}" for one in remarks)]
    return "\n".join([*head, text])
