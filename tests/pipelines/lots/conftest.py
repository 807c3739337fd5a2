"""Lots of tests are drawn alike each time they run."""

from __future__ import annotations

import random

import pytest


@pytest.fixture(autouse=True)
def salts_of_this_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Salts and keys drawn in this process follow from the test's name: what a test asserts of chance stays true."""
    drawn = random.Random(request.node.name)
    monkeypatch.setattr("pipelines.lots.vault.secrets.token_hex", lambda size: drawn.randbytes(size).hex())
