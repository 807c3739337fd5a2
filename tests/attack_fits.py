"""How long the attacks with a network take to fit on 20,000 samples.

``python tests/attack_fits.py RESULT.json CACHE`` trains a small SimCLR encoder on 20,000 images of CIFAR-10. Half of
them, and as many others, are what an attack is fitted on; the other halves are judged. One core. CACHE
keeps features and scores, so that two commits can be compared: the second run tells the paired differences of the AUCs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mi_core.attacks.encodermi import EncoderMISet, EncoderMIVector  # noqa: E402
from mi_core.attacks.feature_mi import FeatureMI  # noqa: E402
from mi_core.attacks.sd_mi import SDMI  # noqa: E402
from mi_core.encoders.checkpoint import Encoder  # noqa: E402
from mi_core.features.embedding import Embedding  # noqa: E402
from mi_core.features.pairwise_similarity import PairwiseSimilarity  # noqa: E402
from mi_core.metrics.delong import auc, auc_difference  # noqa: E402
from mi_core.objectives.simclr import SimCLRParameters  # noqa: E402
from mi_core.querying.extractor import Extractor  # noqa: E402
from mi_core.querying.plan import QueryPlan  # noqa: E402
from mi_core.records import Features, LabelledFeatures  # noqa: E402
from mi_core.streams import pixel_streams  # noqa: E402
from mi_core.training.data import ResidentImages  # noqa: E402
from mi_core.training.loop import Pretrainer, PretrainingParameters  # noqa: E402
from mi_core.training.optimizers import OptimizerParameters  # noqa: E402
from tests.encoder_works import MILD, cifar10  # noqa: E402

ANCHORS = 2000
EPOCHS = 100


def images_of(shards: range) -> torch.Tensor:
    whole = torch.cat([cifar10("train", shard)[0] for shard in shards])
    return torch.nn.functional.avg_pool2d(whole.float(), 4).round().to(torch.uint8)


def trained(members: torch.Tensor) -> Encoder:
    how = PretrainingParameters(
        backbone="conv4",
        objective_parameters=SimCLRParameters(0.2, 256, 128),
        optimizer=OptimizerParameters(learning_rate=5e-3),
        epochs=EPOCHS,
        batch_size=250,
    )
    names = [("train", f"{row}") for row in range(len(members))]
    data = ResidentImages(members, names, torch.zeros(len(members), dtype=torch.int64), batch_size=250, seed=0)
    worker = Pretrainer(data, MILD, how, seed=0)
    for _ in range(EPOCHS):
        worker.train_epoch()
    return worker.encoder().eval()


def features_in(cache: Path) -> tuple[Features, npt.NDArray[np.bool_]]:
    """Features of 40,000 images, of which the first half trained the encoder, and who did."""
    file = cache / "features.npz"
    if not file.exists():
        members, others, anchors = images_of(range(4)), images_of(range(4, 8)), images_of(range(8, 9))[:ANCHORS]
        ask = Extractor(
            {"target": trained(members)},
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


def main(result: str, place: str) -> None:
    torch.set_num_threads(1)
    cache, rows, scores = Path(place), list[dict[str, Any]](), dict[str, npt.NDArray[np.float64]]()
    cache.mkdir(parents=True, exist_ok=True)
    features, member = features_in(cache)
    judged = np.arange(len(member)) % 2 == 0
    reference = LabelledFeatures(features.take(~judged), member[~judged])
    before = cache / "scores.npz"
    earlier = dict(np.load(before)) if before.exists() else {}
    for attack in (EncoderMIVector(), EncoderMISet(), FeatureMI(), SDMI()):
        began = time.process_time()
        attack.fit(reference)
        row: dict[str, Any] = {"attack": attack.name, "cpu_seconds": round(time.process_time() - began, 1)}
        scores[attack.name] = attack.score(features.take(judged))
        row["auc"] = auc(scores[attack.name], member[judged]).as_json()
        if attack.name in earlier:
            difference = auc_difference(scores[attack.name], earlier[attack.name], member[judged])
            row["auc_less_that_of_the_run_before"] = difference.as_json()
        rows.append(row)
        print(row, flush=True)  # noqa: T201
        Path(result).write_text(json.dumps(rows, indent=1) + "\n")
    np.savez(before, **scores)


if __name__ == "__main__":
    main(*sys.argv[1:])
