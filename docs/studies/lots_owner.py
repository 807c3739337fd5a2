"""How often an owner who bends a claim gets USED of an encoder that saw nothing: before, and as claims are asked now.

``python -m docs.studies.lots_owner RESULT.json`` takes CIFAR-10's test images of ``shared``, a network of random
weights, and lots of two releases of 240 images, decided by a beacon. Each of 1,000 lots is drawn once. The owner then
tries what was open to him before (60 nonces, 60 seeds of the redraws, either release alone), and what is open now:
deleting the claim and asking again, and copying the vault before the second release. At a true rate of .5 % more than
1.1 % of 1,000 lots come once in 50 cases. Nothing was tuned here.

The first `WHOLE` lots are also made as files, asked by the real command's function, deleted, asked again, and their
statements forged; p-values, and outcomes of `verify`, are compared with those above.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from docs.studies.shared import Result, Scores, cifar10, counted
from mi_core.auditing.models import device_of, model_of
from mi_core.auditing.questions import Scorer
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import seeded
from mi_core.hashing import digest64
from mi_core.lots.commitment import Header, Question, nonce_of, text_digest
from mi_core.lots.designs import held_back_p_value
from mi_core.lots.draw import HELD_BACK, Design, Drawn, asking_order, draw, joined_draws, waves_of
from mi_core.lots.verdict import judge_claim, level_of
from pipelines.config.sections.sources import SourceConfig
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.claim import claim
from pipelines.lots.commit import Wanted, commit
from pipelines.lots.publish import publish
from pipelines.lots.question import plan_of, way_of, whole
from pipelines.lots.vault import VAULT, Lot
from pipelines.lots.verify import verify_claim
from pipelines.run.parts import on_parts

LOTS, NONCES, SEEDS, WHOLE = 1000, 60, 60, 20
RELEASE, DRAWS = 240, 1999
SIDE = 16  # of the views, small enough for 1,000 nonces
LOAD = "checkpoint:resnet8-narrow"


class Owner:
    """An encoder of random weights, and the images of two releases.

    Args:
        place: folder of the weights.
    """

    def __init__(self, place: Path) -> None:
        network = seeded(0, lambda: build_backbone("resnet8-narrow", 3, 32))
        self.weights = str(place / "weights.pt")
        torch.save(network.state_dict(), self.weights)
        self.settings = whole({"weights": self.weights, "size": SIDE})
        self.way = way_of(LOAD, self.settings)
        self.target = model_of(LOAD, self.way.how)
        self.plan = plan_of(LOAD, self.settings, captions=False, counted="all")
        images, _ = cifar10("test", 0)
        self.images = images[: 2 * RELEASE]
        self.small = torch.nn.functional.interpolate(self.images.float(), SIDE, mode="area").round().to(torch.uint8)
        self.names = [str(row) for row in range(2 * RELEASE)]

    def scores(self, nonce: str) -> Scores:
        """The answers (480,) to all images in the views of a nonce."""
        ask = Scorer(self.target.encoder, self.way, 10, nonce, device_of(LOAD)).similarity
        return np.asarray(ask(self.small, self.names), dtype=np.float64)


def p_value(
    scores: Scores, releases: Sequence[int], salts: Sequence[str], headers: Sequence[Header], seed: str
) -> float:
    """The p-value of a claim on some of the releases, numbered 0 and 1: that of `judge_claim`, without the rest."""
    drawn, order = drawn_of(releases, salts, headers)
    own = np.concatenate([scores[one * RELEASE : (one + 1) * RELEASE] for one in releases])[order]
    seeded = digest64(seed, HELD_BACK)
    return held_back_p_value(own, drawn.held_back[order], drawn.strata[order], seed=seeded, draws=DRAWS)


def drawn_of(
    releases: Sequence[int], salts: Sequence[str], headers: Sequence[Header]
) -> tuple[Drawn, npt.NDArray[np.int64]]:
    """The coins of some releases, and the order of asking."""
    designs = [headers[one].design for one in releases]
    draws = [draw(headers[one].design, salts[one], BEACON) for one in releases]
    order = asking_order([headers[one].commitment for one in releases], [RELEASE] * len(releases))
    return joined_draws(designs, [["album"]] * len(releases), draws), order


BEACON = "c0ffee"


def tried(owner: Owner, number: int, by_nonce: Sequence[Scores]) -> dict[str, float]:
    """The least p-values of one lot, by what the owner tries."""
    salts = [f"{number}-{release}".zfill(32) for release in (0, 1)]
    headers: list[Header] = []
    for salt in salts:
        before = headers[-1].commitment if headers else ""
        headers.append(
            Header(Design((RELEASE,)), salt, text_digest(salt), text_digest("album"), "round 7", previous=before)
        )
    question = Question(LOAD, owner.target.part.fingerprint or "", owner.plan, (), "", "", {}, headers[-1].commitment)

    def now(releases: Sequence[int]) -> float:
        nonce = nonce_of([headers[one] for one in releases], [BEACON] * len(releases), question)
        return p_value(owner.scores(nonce), releases, salts, headers, nonce)

    both = (0, 1)
    if not number:
        drawn, order = drawn_of(both, salts, headers)
        whole = judge_claim(drawn, order, waves_of([RELEASE] * 2), by_nonce[0][order], seed="0", draws=DRAWS)
        assert whole.p_value == p_value(by_nonce[0], both, salts, headers, "0")
    first = [p_value(scores, both, salts, headers, f"{at}") for at, scores in enumerate(by_nonce)]
    alone = [p_value(by_nonce[0], (one,), salts, headers, "0") for one in both]
    return {
        "before: one nonce": first[0],
        "before: the best of 60 nonces": min(first),
        "before: the best of 60 seeds": min(
            p_value(by_nonce[0], both, salts, headers, f"seed {seed}") for seed in range(SEEDS)
        ),
        "before: the best of both releases and either one": min(first[0], *alone),
        "now: asked once, or deleted and asked 60 times": now(both),
        "now: the vault is copied before the second release": min(now(both), now((0,))),
    }


def in_files(owner: Owner, number: int, place: Path) -> dict[str, Any]:
    """One lot through files: what asking again gives, and which forgeries `verify` lets pass."""
    lot = Lot(str(place / "lot"))
    for release in (0, 1):
        for row in range(release * RELEASE, (release + 1) * RELEASE):
            path = place / "photos" / "album" / f"{row:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(owner.small[row].permute(1, 2, 0).numpy()).save(path)
        source = SourceConfig(kind="imagefolder", path=str(place / "photos"))
        with on_parts(f"{lot.path}/{VAULT}", None) as each:
            made = commit(source, lot, Wanted(0.2), beacon=f"round {number}", albums=None, each=each)
            assert made is not None
            publish(source, made, BEACON, each)
    found = [claim(lot.path, LOAD, weights=owner.weights, size=SIDE)]
    shutil.rmtree(lot.claims)
    shutil.rmtree(lot.asked)
    found.append(claim(lot.path, LOAD, weights=owner.weights, size=SIDE))
    path = f"{found[-1].statement}/statement.json"
    honest = any(check.outcome == "FAILS" for check in verify_claim(path))
    stated = storage.read_json(path)
    passed = []
    for kept in (0, 1):
        forged = json.loads(json.dumps(stated))
        forged["releases"] = [forged["releases"][kept]]
        forged["chain"] = [forged["chain"][kept], forged["chain"][2]]
        storage.write_json(path, forged)
        passed.append(all(check.outcome != "FAILS" for check in verify_claim(path)))
    try:
        claim(lot.path, LOAD, weights=owner.weights, size=SIDE, seed=1)
        seeded_anew = True
    except UserError:
        seeded_anew = False
    same = found[0].result == found[1].result
    forged = sum(passed) + seeded_anew
    return {"same": same, "fails": honest, "forgeries that pass": forged, "p": found[1].result.p_value}


def main(path: str, lots: int = LOTS) -> None:
    torch.set_num_threads(1)
    result, whole = Result(path, images=2 * RELEASE), min(WHOLE, lots)
    with tempfile.TemporaryDirectory() as folder:
        owner = Owner(Path(folder))
        by_nonce = [owner.scores(f"nonce {number}") for number in range(NONCES)]
        found = [tried(owner, number, by_nonce) for number in range(lots)]
        files = [in_files(owner, number, Path(folder) / f"lot-{number}") for number in range(whole)]
    for name in found[0]:
        values = np.array([one[name] for one in found])
        row: dict[str, Any] = {"owner": name, "lots": lots}
        for key, level in (("p_at_most_.01", 0.01), ("used", level_of(1))):
            count = int((values <= level).sum())
            row[key] = {"share": count / lots, "ci95": counted(count, lots)}
        result.keep(row)
    told = {"lots": whole, "forgeries": 3 * whole}
    for key, what in (
        ("same_answer_after_deletion", "same"),
        ("honest_statements_that_fail", "fails"),
        ("forgeries_that_pass", "forgeries that pass"),
    ):
        told[key] = sum(one[what] for one in files)
    result.write(in_files=told)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
