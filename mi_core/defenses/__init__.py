"""Defenses of trained encoders: one module per method. `DEFENSES` is the table."""

from __future__ import annotations

from mi_core.defenses.base import Defense
from mi_core.defenses.early_stopping import EarlyStopping

DEFENSES: dict[str, type[Defense]] = {
    "early-stopping": EarlyStopping,
}
