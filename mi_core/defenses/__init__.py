"""Defenses of trained encoders: one module per method. `DEFENSES` is the table."""

from __future__ import annotations

from mi_core.defenses.attriguard import AttriGuard
from mi_core.defenses.base import Defense
from mi_core.defenses.memguard import MemGuard
from mi_core.defenses.olympus import Olympus
from mi_core.defenses.output_noise import OutputNoise

DEFENSES: dict[str, type[Defense]] = {
    "attriguard": AttriGuard,
    "memguard": MemGuard,
    "olympus": Olympus,
    "output-noise": OutputNoise,
}
