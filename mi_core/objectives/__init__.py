"""Pre-training losses on embeddings. `OBJECTIVES` is the table of pre-training frameworks."""

from __future__ import annotations

from mi_core.objectives.simclr import SimCLR

OBJECTIVES: dict[str, type[SimCLR]] = {"simclr": SimCLR}
