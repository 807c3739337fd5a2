"""Membership inference attacks: one module per method, from features to a score per sample. `ATTACKS` is the table."""

from __future__ import annotations

from mi_core.attacks.base import Attack
from mi_core.attacks.encodermi import EncoderMISet, EncoderMIThreshold, EncoderMIVector
from mi_core.attacks.lpla import LpLA
from mi_core.attacks.mean_cosine import MeanCosine

ATTACKS: dict[str, type[Attack]] = {
    "encodermi-t": EncoderMIThreshold,
    "encodermi-v": EncoderMIVector,
    "encodermi-s": EncoderMISet,
    "lpla": LpLA,
    "mean-cosine": MeanCosine,
}
