"""PartCrop's feature against SciPy, part by part; its views are the same for everyone and every time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from mi_core.checks import ShapeError
from mi_core.features.part_energy import _bumps, global_and_parts, part_energies
from mi_core.streams import stream_keys

STREAMS = stream_keys(0, "train", "pool", ["a", "b", "c"])


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_divergences_by_hand() -> None:
    parts, tokens = drawn(3, 4, 5), drawn(3, 6, 5, seed=1)
    found = part_energies(parts, tokens, STREAMS).numpy()
    bumps = _bumps(STREAMS, 4, 6).numpy()
    for sample in range(3):
        uniform, bump = [], []
        for part in range(4):
            response = softmax(parts[sample, part].numpy() @ tokens[sample].numpy().T)
            uniform.append(entropy(response, np.full(6, 1 / 6)))
            bump.append(entropy(response, softmax(bumps[sample, part])))
        expected = sorted(uniform, reverse=True) + sorted(bump, reverse=True)
        np.testing.assert_allclose(found[sample], expected, rtol=1e-4, atol=1e-5)


def test_a_part_that_is_recognised_stands_out() -> None:
    """A flat response has no divergence from uniform; one that points at a place has log L."""
    tokens = torch.eye(6)[None]
    flat, sure = torch.zeros(1, 1, 6), 50 * torch.eye(6)[None, :1]
    assert float(part_energies(flat, tokens, STREAMS[:1])[0, 0]) == pytest.approx(0, abs=1e-6)
    assert float(part_energies(sure, tokens, STREAMS[:1])[0, 0]) == pytest.approx(np.log(6), abs=1e-4)


def test_an_image_always_gives_the_same() -> None:
    parts, tokens = drawn(3, 4, 5), drawn(3, 6, 5, seed=1)
    whole = part_energies(parts, tokens, STREAMS)
    alone = part_energies(parts[1:2], tokens[1:2], STREAMS[1:2])
    torch.testing.assert_close(whole[1:2], alone)
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    first, cut = global_and_parts(images, STREAMS, 5, size=16, part_size=8)
    assert (first.shape, cut.shape) == ((3, 3, 16, 16), (3, 5, 3, 8, 8))
    again, cut_again = global_and_parts(images[2:], STREAMS[2:], 3, size=16, part_size=8)
    torch.testing.assert_close(again[0], first[2])
    torch.testing.assert_close(cut_again[0], cut[2, :3])  # fewer parts are the first ones


def test_parts_come_from_the_global_view() -> None:
    """A part shows nothing that its global view does not: in an image of one bright row, no part is brighter."""
    images = torch.zeros(3, 1, 32, 32, dtype=torch.uint8)
    images[:, :, 16] = 255
    whole, cut = global_and_parts(images, STREAMS, 20, size=32, part_size=16)
    for sample in range(3):
        assert float(cut[sample].max()) <= float(whole[sample].max()) + 1e-5


def test_shapes() -> None:
    with pytest.raises(ShapeError, match="tokens"):
        part_energies(drawn(3, 4, 5), drawn(3, 6, 4), STREAMS)
