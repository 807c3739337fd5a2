"""Momentum copies in checkpoint files: whole and finite, or none."""

from __future__ import annotations

import pytest
import torch

from mi_core.adoption.foreign import adopt
from mi_core.adoption.layouts import recognise
from mi_core.adoption.layouts.files import unwrap
from mi_core.checks import ConfigError
from mi_core.encoders.checkpoint import momentum_copy
from tests.mi_core.adoption.references import contrastive
from tests.mi_core.adoption.references.parts import MOMENTUM, images, saved
from tests.mi_core.adoption.test_layouts import bare


def test_a_copy_that_is_not_whole_is_none() -> None:
    case = contrastive.moco_v2()
    state = unwrap(case.content).state
    whole = recognise(state, bare(case.load), name=case.load)
    assert whole.used.endswith(", momentum copy 124")
    for broken in (
        {key: value for key, value in state.items() if key != "encoder_k.layer1.0.bn1.bias"},
        {key: value for key, value in state.items() if not key.startswith("encoder_k.fc.")},
        state | {"encoder_k.fc.2.weight": torch.ones(8, 64)},
    ):
        found = recognise(broken, bare(case.load), name=case.load)
        assert found.momentum == {}
        assert "momentum copy" not in found.used
        assert found.ignored[0].startswith("encoder_k.*, ")
        assert found.ignored[0].endswith(f" ({MOMENTUM})")


def test_a_copy_with_weights_that_are_not_finite_is_refused() -> None:
    case = contrastive.moco_v2()
    case.content["state_dict"]["module.encoder_k.fc.0.bias"][3] = float("nan")
    with pytest.raises(ConfigError, match=r"the momentum copy's projection\.0\.bias holds 1 values that are NaN"):
        adopt("checkpoint:resnet18-imagenet", saved(case.content), channels=3, image_size=32)


def test_fresh_weights_and_encoders_without_a_copy_have_none() -> None:
    content = saved(contrastive.moco_v2().content)
    fresh = adopt("checkpoint:resnet18-imagenet", content, channels=3, image_size=32, fresh=0)
    assert fresh.momentum is None
    copied = momentum_copy(fresh.encoder)
    assert copied.outputs == ("backbone", "projection")
    with torch.no_grad():
        torch.testing.assert_close(copied(images())["projection"], fresh.encoder(images())["projection"])
