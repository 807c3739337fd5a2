"""What a config's verdict can find is told before anything is spent, and where it is hopeless."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mi_core.validity.conformal import conformal_p_values, flagged_at, least_flags, q_values
from mi_core.validity.power import detectable_auc, verdict_power
from pipelines.config.run_config import RunConfig
from pipelines.plan.load import parse
from pipelines.plan.prospects import prospects
from pipelines.plan.rules import ThreatModel
from tests.conftest import small_config

COUNTS = {"candidate": 500, "control": 700, "known-nonmember": 200}


def loaded(load: str) -> RunConfig:
    raw: dict[str, Any] = {
        "name": "web",
        "data": {
            "sources": {"one": {"kind": "shards", "path": "a/*.tar"}, "two": {"kind": "shards", "path": "b/*.tar"}},
            "image_size": 224,
            "roles": {
                "candidate": {"from": "one"},
                "control": {"from": "two"},
                "known-nonmember": {"from": "control", "fraction": 0.3},
            },
        },
        "encoders": {"target": {"load": load, "weights": "weights.safetensors"}},
        "queries": {"outputs": ["backbone"]},
        "attacks": [{"attack": "mean-cosine", "target": "target", "reference": "nonmembers"}],
    }
    return parse(raw, "web.yaml")


def test_known_controls_are_not_counted_and_the_numbers_are_those_of_the_rule() -> None:
    config = loaded("timm:resnet18.a1_in1k")
    assert ThreatModel(config).judged_counts(COUNTS) == (500, 500)
    line, single = prospects(config, COUNTS)
    least = detectable_auc(500, 500, by="choice")
    assert least is not None and verdict_power(500, 500, least - 0.02) < 0.8 <= verdict_power(500, 500, least + 0.02)
    told = f"leak: AUC {least:.2f} or more".replace("0.", ".", 1)
    assert line.startswith("500 images against 500 controls show ") and told in line
    together = least_flags(500, 500, 0.05)
    assert single == f"to name one image: 9,999 controls, or {together} images that stand out together"
    everyone = np.linspace(0, 1, 500)  # controls; as many candidates as were named score above all of them
    for flagged in (together, together - 1):
        scores = np.concatenate([np.full(flagged, 2.0), np.full(500 - flagged, -1.0)])
        chosen = flagged_at(q_values(conformal_p_values(scores, everyone)), 0.05)
        assert int(chosen.sum()) == (flagged if flagged == together else 0)


def test_one_candidate_of_few_can_be_flagged_alone_and_none_with_few_controls() -> None:
    config = loaded("timm:resnet18.a1_in1k")
    *_, alone = prospects(config, {"candidate": 20, "control": 700, "known-nonmember": 200})
    assert alone == "a single image can be named"
    *_, none = prospects(config, {"candidate": 500, "control": 25, "known-nonmember": 10})
    assert none == "to name one image: 9,999 controls"


@pytest.mark.parametrize("load", ["open_clip:ViT-B-32", "transformers:vit:org/name"])
def test_an_encoder_of_web_scale_is_warned_of_unless_there_are_images_enough(load: str) -> None:
    config = loaded(load)
    *_, warning = prospects(config, COUNTS)
    assert warning.startswith("WARNING: no evidence.")
    assert "Even twice that effect takes " in warning
    assert len(list(prospects(config, {name: 1000 * count for name, count in COUNTS.items()}))) == 2


def test_by_lot_far_fewer_images_do() -> None:
    config = parse(small_config(), "small.yaml")
    counts = dict.fromkeys(config.data.roles, 500)
    line, _ = prospects(config, counts)
    least = detectable_auc(*ThreatModel(config).judged_counts(counts), by="lot")
    assert least is not None and f"AUC {least:.2f} or more".replace("0.", ".") in line
    none, *_ = prospects(config, dict.fromkeys(config.data.roles, 2))
    assert "too few" in none or "none if only a tenth" in none
