"""The attack benchmark: every attack is timed, and the arithmetic holds."""

from __future__ import annotations

import pytest

from mi_core.attacks import ATTACKS
from mi_core.bench.attacks import attack_benchmark
from mi_core.checks import ConfigError


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_every_attack_is_timed(name: str) -> None:
    found = attack_benchmark(name, 200, width=8, anchors=5)
    assert found["score_seconds"] > 0
    trained = found.get("epochs", 0) * found.get("epoch_seconds", 0)
    assert found["fit_seconds"] == pytest.approx(
        found["prepare_seconds"] + trained, abs=0.05 + 1e-4 * found.get("epochs", 0)
    )
    assert found["dominates"] in ("training the network", "reading the features")


def test_unknown() -> None:
    with pytest.raises(ConfigError, match="attack = 'x', allowed: "):
        attack_benchmark("x", 100)
