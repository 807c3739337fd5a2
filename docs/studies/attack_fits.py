"""How long the attacks with a network take to fit on 20,000 samples.

``python -m docs.studies.attack_fits RESULT.json CACHE`` trains a small SimCLR encoder on 20,000 images of CIFAR-10.
Half of them, and as many others, are what an attack is fitted on; the other halves are judged. One core. CACHE keeps
features and scores, so that two commits can be compared: the second run tells the paired differences of the AUCs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from docs.studies.shared import MILD, Result, cifar10, trained
from mi_core.attacks.encodermi import EncoderMISet, EncoderMIVector
from mi_core.attacks.feature_mi import FeatureMI
from mi_core.attacks.sd_mi import SDMI
from mi_core.features.embedding import Embedding
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.metrics.delong import auc, auc_difference
from mi_core.objectives.simclr import SimCLRParameters
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.records import Features, LabelledFeatures
from mi_core.streams import pixel_streams
from mi_core.training.loop import PretrainingParameters
from mi_core.training.optimizers import OptimizerParameters

ANCHORS, EPOCHS = 2000, 100


def images_of(shards: range) -> torch.Tensor:
    whole, _ = cifar10("train", *shards)
    return torch.nn.functional.avg_pool2d(whole.float(), 4).round().to(torch.uint8)


def features_in(cache: Path) -> tuple[Features, npt.NDArray[np.bool_]]:
    """Features of 40,000 images, of which the first half trained the encoder, and who did."""
    file = cache / "features.npz"
    if not file.exists():
        members, others, anchors = images_of(range(4)), images_of(range(4, 8)), images_of(range(8, 9))[:ANCHORS]
        rate = OptimizerParameters(learning_rate=5e-3)
        settings = SimCLRParameters(0.2, 256, 128)
        how = PretrainingParameters("conv4", "simclr", settings, rate, epochs=EPOCHS, batch_size=250)
        ask = Extractor(
            {"target": trained(how, members, MILD)[EPOCHS]},
            QueryPlan((PairwiseSimilarity("cosine"), Embedding()), ("projection",)),
            MILD,
            torch.device("cpu"),
        )
        found = []
        for images in (torch.cat([members, others]), anchors):
            streams = pixel_streams("", 0, "query", images)
            found.append(ask(images, streams, [str(row) for row in range(len(images))])["target"])
        np.savez(
            file,
            pairs=found[0][f"projection.{PairwiseSimilarity('cosine')}"],
            embeddings=found[0][f"projection.{Embedding()}"],
            anchors=found[1][f"projection.{Embedding()}"],
        )
    stored = np.load(file)
    values = {PairwiseSimilarity("cosine").name: stored["pairs"], Embedding().name: stored["embeddings"]}
    count = len(stored["pairs"])
    return Features(np.arange(count).astype(str), values, stored["anchors"]), np.arange(count) < count // 2


def main(path: str, place: str) -> None:
    torch.set_num_threads(1)
    cache, result, scores = Path(place), Result(path), dict[str, npt.NDArray[np.float64]]()
    cache.mkdir(parents=True, exist_ok=True)
    features, member = features_in(cache)
    judged = np.arange(len(member)) % 2 == 0
    reference = LabelledFeatures(features.take(~judged), member[~judged])
    before = cache / "scores.npz"
    earlier = dict(np.load(before)) if before.exists() else {}
    for attack in (EncoderMIVector(), EncoderMISet(), FeatureMI(), SDMI()):
        began = time.process_time()
        attack.fit(reference)
        row = {"attack": attack.name, "cpu_seconds": round(time.process_time() - began, 1)}
        scores[attack.name] = attack.score(features.take(judged))
        row["auc"] = auc(scores[attack.name], member[judged]).as_json()
        if attack.name in earlier:
            difference = auc_difference(scores[attack.name], earlier[attack.name], member[judged])
            row["auc_less_that_of_the_run_before"] = difference.as_json()
        result.keep(row)
    np.savez(before, **scores)


if __name__ == "__main__":
    main(*sys.argv[1:])
