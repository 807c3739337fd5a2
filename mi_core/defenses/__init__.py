"""Defenses of trained encoders: one module per method. `DEFENSES` is the table."""

from __future__ import annotations

from mi_core.defenses.additive_noise import AdditiveGaussian, AdditiveLaplace, AdditiveLogistic
from mi_core.defenses.attriguard import AttriGuard
from mi_core.defenses.base import Defense
from mi_core.defenses.dp_sgd import DpSgd
from mi_core.defenses.early_stopping import EarlyStopping
from mi_core.defenses.memguard import MemGuard
from mi_core.defenses.olympus import Olympus
from mi_core.defenses.output_noise import OutputNoise
from mi_core.plugins import plugged_in

DEFENSES: dict[str, type[Defense]] = {
    "additive-logistic": AdditiveLogistic,
    "additive-laplace": AdditiveLaplace,
    "additive-gaussian": AdditiveGaussian,
    "dp-sgd": DpSgd,
    "early-stopping": EarlyStopping,
    "output-noise": OutputNoise,
    "memguard": MemGuard,
    "attriguard": AttriGuard,
    "olympus": Olympus,
}
DEFENSES |= plugged_in("defenses", DEFENSES, Defense)
