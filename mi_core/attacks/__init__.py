"""Membership inference attacks: one module per method, from features to a score per sample. `ATTACKS` is the table."""

from __future__ import annotations

from collections.abc import Collection

from mi_core.attacks.base import Attack
from mi_core.attacks.clip import CaptionCosine, PairLoss
from mi_core.attacks.combined import Combined
from mi_core.attacks.downstream import BaselineA, BaselineB, BaselineC
from mi_core.attacks.encodermi import EncoderMISet, EncoderMIThreshold, EncoderMIVector
from mi_core.attacks.feature_mi import FeatureMI
from mi_core.attacks.label_only import LabelOnly
from mi_core.attacks.lira import LiRA
from mi_core.attacks.lpla import LpLA
from mi_core.attacks.mean_cosine import MeanCosine
from mi_core.attacks.memorisation import CLIPMem, SSLMem
from mi_core.attacks.metric import MetricConfidence, MetricCorrectness, MetricEntropy, MetricLoss, MetricModifiedEntropy
from mi_core.attacks.patch_similarity import PatchSimilarity
from mi_core.attacks.posterior_nn import PosteriorMLP, PosteriorNN
from mi_core.attacks.rmia import RMIA
from mi_core.attacks.sd_mi import SDMI
from mi_core.attacks.update import Update
from mi_core.plugins import plugged_in

ATTACKS: dict[str, type[Attack]] = {
    "encodermi-t": EncoderMIThreshold,
    "encodermi-v": EncoderMIVector,
    "encodermi-s": EncoderMISet,
    "patch-similarity": PatchSimilarity,
    "lpla": LpLA,
    "feature-mi": FeatureMI,
    "sd-mi": SDMI,
    "lira": LiRA,
    "rmia": RMIA,
    "sslmem": SSLMem,
    "combined": Combined,
    "mean-cosine": MeanCosine,
    "update": Update,
    "clip-cosine": CaptionCosine,
    "clip-loss": PairLoss,
    "clipmem": CLIPMem,
    "posterior-nn": PosteriorNN,
    "posterior-mlp": PosteriorMLP,
    "metric-corr": MetricCorrectness,
    "metric-conf": MetricConfidence,
    "metric-loss": MetricLoss,
    "metric-ent": MetricEntropy,
    "metric-ment": MetricModifiedEntropy,
    "label-only": LabelOnly,
    "baseline-a": BaselineA,
    "baseline-b": BaselineB,
    "baseline-c": BaselineC,
}
ATTACKS |= plugged_in("attacks", ATTACKS, Attack)


def left_out(tried: Collection[str], outputs: Collection[str], *, text: bool) -> tuple[list[str], list[str]]:
    """Sentences of a report on attacks that were not tried: some could run, others do not apply.

    Args:
        tried: names of attacks.
        outputs: that the encoder exposes.
        text: whether it has a text tower.

    Returns:
        One line or none of those that could run; a line for every reason of the others.

    Example:
        >>> missing, useless = left_out([], ["backbone", "projection"], text=False)
        >>> "lpla" in missing[0], [line for line in useless if line.startswith("clip")]
        (True, ['clip-cosine, clip-loss, clipmem: the encoder has no text tower'])
    """
    missing: list[str] = []
    useless: dict[str, list[str]] = {}
    for name, method in ATTACKS.items():
        if name in tried:
            continue
        if not text and any(measure.captions for measure in method().needs):
            useless.setdefault("the encoder has no text tower", []).append(name)
        elif method.outputs and not set(method.outputs) & set(outputs):
            useless.setdefault(f"the encoder gives no {' or '.join(method.outputs)}", []).append(name)
        else:
            missing.append(name)
    told = [f"{', '.join(names)}: {reason}" for reason, names in useless.items()]
    return [f"attacks: {', '.join(missing)}"] if missing else [], told
