"""Asking view by view: as a loop over single images does, no query more, and none that batching changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mi_core.augmentations.simclr import SimCLRAugmentation
from mi_core.augmentations.views import make_views
from mi_core.checks import ConfigError, NumericError
from mi_core.features.embedding import LpNorm
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.features.sequential import SequentialSimilarity, StoppingRule, by_views, stopped
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.streams import stream_keys
from tests.raising import refused

VIEWS, COUNT = 7, 50
AUGMENTATION = SimCLRAugmentation(crop_scale=(0.3, 1.0), rotation=10)
IDS = [f"pool/{row:03d}" for row in range(COUNT)]


class Counting(nn.Module):
    """A fixed random layer; notes the images of every call."""

    size = None

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.randn(3 * 12 * 12, 16, generator=torch.Generator().manual_seed(3))
        self.calls: list[torch.Tensor] = []

    def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.append(batch.clone())
        return {"backbone": (batch.flatten(1) - 0.5) @ self.weight}


def inputs() -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    generator = torch.Generator().manual_seed(1)
    flat = torch.randint(0, 200, (COUNT, 3, 1, 1), generator=generator)
    texture = torch.randint(0, 56, (COUNT, 3, 12, 12), generator=generator)
    return (flat + texture).to(torch.uint8), stream_keys(0, "train", "pool", [name[5:] for name in IDS]), IDS


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Compare counts of views exactly, and statistics on the scale of the cosine.

    The statistic is a mean of -log(1 - cosine), which magnifies differences in float32 where a cosine is near 1.
    """
    np.testing.assert_array_equal(found[:, 0], expected[:, 0])
    np.testing.assert_allclose(np.exp(-found[:, 1]), np.exp(-expected[:, 1]), rtol=0, atol=2e-6)


def extractor(model: nn.Module, rule: StoppingRule | None, **plan: Any) -> Extractor:
    settings = {"needs": (SequentialSimilarity(),), "outputs": ("backbone",), "views": VIEWS, "rule": rule} | plan
    return Extractor({"e": model}, QueryPlan(**settings), AUGMENTATION, torch.device("cpu"))  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def rule() -> StoppingRule:
    """One that stops some images after every number of views."""
    whole = extractor(Counting(), None, needs=(PairwiseSimilarity(),))(*inputs())["e"]["backbone.pairwise:cosine"]
    low, high = np.quantile(by_views(whole)[:, :-1], [0.15, 0.85], axis=0)
    return StoppingRule(tuple(low), tuple(high))


def test_it_asks_what_a_loop_over_single_images_asks(rule: StoppingRule) -> None:
    images, streams, ids = inputs()
    model = Counting()
    found = extractor(model, rule)(images, streams, ids)["e"]["backbone.sequential"]
    expected, queried = [], []
    oracle = Counting()
    for row in range(COUNT):
        seen: list[np.ndarray] = []
        while True:
            one = slice(row, row + 1)
            view = AUGMENTATION(images[one], streams[one], epoch=0, view=len(seen))
            queried.append(view[0])
            embedded = oracle(view)["backbone"][0].double().numpy()
            seen.append(embedded / np.linalg.norm(embedded))
            if len(seen) < 2:
                continue
            pairs = [-np.log(1 - seen[i] @ seen[j]) for i in range(len(seen)) for j in range(i)]
            statistic, stage = np.mean(pairs), len(seen) - 2
            if len(seen) == VIEWS or not rule.low[stage] < statistic < rule.high[stage]:
                break
        expected.append([len(seen), statistic])
    assert_same(found, np.array(expected))
    assert set(found[:, 0]) == set(range(2, VIEWS + 1))  # all kinds of ends were met
    sent = torch.cat(model.calls)
    assert len(sent) == found[:, 0].sum() == len(queried)  # the encoder saw no view more
    known = {tensor.numpy().tobytes() for tensor in queried}
    assert {tensor.contiguous().numpy().tobytes() for tensor in sent} == known  # and bit by bit those


def test_later_views_are_those_of_a_longer_series() -> None:
    images, streams, _ = inputs()
    whole = make_views(images, streams, AUGMENTATION, views=VIEWS)
    for first in (0, 1, 5):
        part = make_views(images, streams, AUGMENTATION, views=2, first=first)
        assert torch.equal(part, whole[:, first : first + 2])


@pytest.mark.parametrize("batch_views", [2, 14, 10_000])
def test_batches_change_no_decision(batch_views: int, rule: StoppingRule) -> None:
    model = Counting()
    found = extractor(model, rule, batch_views=batch_views)(*inputs())["e"]["backbone.sequential"]
    whole = extractor(Counting(), None, needs=(PairwiseSimilarity(),))(*inputs())["e"]["backbone.pairwise:cosine"]
    assert_same(found, stopped(by_views(whole), rule))
    assert max(len(call) for call in model.calls) <= batch_views


def test_other_needs_of_a_plan_are_answered_too(rule: StoppingRule) -> None:
    both = extractor(Counting(), rule, needs=(SequentialSimilarity(), LpNorm()))(*inputs())["e"]
    assert_same(both["backbone.sequential"], extractor(Counting(), rule)(*inputs())["e"]["backbone.sequential"])
    assert both["backbone.norm:2"].shape == (COUNT,)


def test_what_is_missing_is_said(rule: StoppingRule) -> None:
    refused(ConfigError, "not 1 and no rule for 7 views", extractor(Counting(), None), *inputs())
    refused(ConfigError, "not 1 and 7 for 6 views", extractor(Counting(), rule, views=6), *inputs())
    with pytest.raises(ConfigError, match="not 2 and 7 for 7 views"):
        extractor(Counting(), rule, outputs=("backbone", "projection"))(*inputs())


def test_a_faulty_answer_names_the_undecided_sample() -> None:
    class Faulty(Counting):
        def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
            answer = super().forward(batch)["backbone"]
            return {"backbone": answer if len(self.calls) == 1 else answer * torch.nan}

    images, streams, ids = inputs()
    always = StoppingRule((-1.0,) * (VIEWS - 2), (10.0,) * (VIEWS - 2))
    made = extractor(Faulty(), always)
    refused(NumericError, "embedding is NaN or infinite for 50 samples, first pool/000", made, images, streams, ids)
