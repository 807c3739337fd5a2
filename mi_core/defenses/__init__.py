"""Defenses of trained encoders: one module per method. `DEFENSES` is the table."""

from __future__ import annotations

from mi_core.defenses.base import Defense

DEFENSES: dict[str, type[Defense]] = {}
