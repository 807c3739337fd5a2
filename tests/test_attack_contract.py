"""Every entry of ATTACKS keeps the contract of `mi_core.testing`."""

from __future__ import annotations

import pytest

from mi_core.attacks import ATTACKS
from mi_core.testing import CHECKS


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_keeps_its_contract(name: str, check: str) -> None:
    assert ATTACKS[name].name == name
    CHECKS[check](ATTACKS[name])
