"""A whole report as a run of three seeds would make it: numbers of the size measured on real digits."""

from __future__ import annotations

import hashlib
import math
import pickle
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from mi_core.records import Estimate
from mi_core.report.build import SeedTest, SetTest, combine_tests
from mi_core.report.figures.drawing import AttackScores, Drawing, FigureData, LossCurve
from mi_core.report.figures.figures import draw_figures
from mi_core.report.model.as_json import part_as_json, part_from_json
from mi_core.report.model.attacks import AttackResult
from mi_core.report.model.judgement import VerdictPart, judged
from mi_core.report.model.report import report_from_json
from mi_core.report.pooling import pool_seeds
from mi_core.validity.sets.dataset import dataset_test
from mi_core.validity.sets.share import least_share
from mi_core.validity.verdict import Validity

ATTACKS = {"encodermi-t": 1.0, "encodermi-v": 1.02, "encodermi-s": 1.03, "lpla": 0.45}
OUTPUTS = {"projection": 2.05, "backbone": 0.55}
EPOCHS = {50: 0.35, 100: 0.5, 200: 0.75, 400: 1.0}
SIDE = 440

BARE: dict[str, Any] = {
    "schema_version": 1,
    "name": "bare",
    "created": "2026-01-31T12:00:00Z",
    "config_sha256": "0" * 64,
    "versions": {"python": "3.12.4"},
    "data": {"source": "digits", "roles": {}, "duplicates_removed": 0},
    "encoders": {},
    "attacks": [],
}
"""What every report has."""


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def estimate(value: float, n: int, **extra: Any) -> dict[str, Any]:
    half = 1.96 * math.sqrt(max(value * (1 - value), 0.002) / n)
    return Estimate(value, max(0.0, value - half), min(1.0, value + half), n, **extra).as_json()


def scores(attack: str, output: str, epoch: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(2N,) Gaussian scores with the separation of this attack, and their truth."""
    gap = ATTACKS[attack] * OUTPUTS[output] * EPOCHS[epoch]
    size = SIDE * 4 // 5 if attack == "lpla" else SIDE
    generator = np.random.default_rng([seed, epoch, list(ATTACKS).index(attack), len(output)])
    member = np.arange(2 * size) < size
    return 0.9 + 0.03 * (generator.standard_normal(2 * size) + gap * member), member


def pooled(attacks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The part ``pooled`` from the part ``attacks``, both as in report.json."""
    rows: list[dict[str, Any]] = part_as_json(pool_seeds(part_from_json(tuple[AttackResult, ...], attacks)))
    return rows


def attack_entry(attack: str, output: str, epoch: int, seed: int) -> dict[str, Any]:
    score, member = scores(attack, output, epoch, seed)
    n = int(member.sum())
    threshold = 0.9 + 0.015 * ATTACKS[attack] * OUTPUTS[output] * EPOCHS[epoch]
    said = score >= threshold
    outside = np.sort(score[~member])
    auc = float(np.searchsorted(outside, score[member]).mean() / n)
    rates = {}
    for alpha in (0.1, 0.01, 0.001):
        cut = outside[n - 1 - math.floor(alpha * n)]
        extra: dict[str, Any] = {"false_positives": int((outside > cut).sum()), "supported": n >= 10 / alpha}
        rates[f"{alpha:g}"] = estimate(float((score[member] > cut).mean()), n, **extra)
    views = 1 if attack == "lpla" else 10
    entry = {
        "attack": attack,
        "target": "target",
        "output": output,
        "reference": "known" if attack == "lpla" else "shadow",
        "seed": seed,
        "epoch": epoch,
        "n_member": n,
        "n_nonmember": n,
        "accuracy": estimate(float((said == member).mean()), 2 * n),
        "precision": estimate(float(member[said].mean()), int(said.sum())),
        "recall": estimate(float(said[member].mean()), n),
        "auc": estimate(auc, 2 * n),
        "tpr_at_fpr": rates,
        "threshold": threshold,
        "queries": {"attack_training": 2 * (88 if attack == "lpla" else SIDE) * views, "evaluation": 2 * n * views},
        "seconds": 1.3,
    }
    if attack != "lpla":
        entry["shadow"] = "shadow"
    if (attack, output) == ("encodermi-v", "projection"):
        entry["primary"] = True
    return entry


def validity(attack_auc: float, blind: float, control: float, n: int, **settled: Any) -> dict[str, Any]:
    def difference(value: float) -> Estimate:
        half = 3.2 / math.sqrt(n) * 0.5
        return Estimate(value, value - half, value + half, n)

    aucs = {"attack_auc": attack_auc, "blind_auc": blind, "control_auc": control}
    grounds = Validity(
        **{name: Estimate.from_json(estimate(value, n)) for name, value in aucs.items()},
        delta_auc=difference(attack_auc - blind),
        delta_control_auc=difference(attack_auc - control),
        **settled,
    )
    return verdict_as_json(grounds)


def verdict_as_json(grounds: Validity) -> dict[str, Any]:
    """The part ``validity`` of report.json."""
    told: dict[str, Any] = part_as_json(VerdictPart(**judged(grounds)))
    return told


BY_LOT: dict[str, Any] = {"by": "lot", "p_value": 1e-4, "trained": True}
BY_CHOICE: dict[str, Any] = {"by": "choice", "trained": True}


def utility(epoch: int) -> dict[str, Any]:
    found = {"knn": 0.30 + 0.045 * math.log2(epoch / 25), "linear": 0.35 + 0.05 * math.log2(epoch / 25)}
    return {**found, "n": 1500, "ci95": {name: estimate(value, 1500)["ci95"] for name, value in found.items()}}


def encoder(name: str, epochs: tuple[int, ...], seeds: tuple[int, ...]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "objective": "moco-v2",
        "backbone": "conv4",
        "epochs": epochs[-1],
        "train_on": f"{name}-member",
        "fingerprint": sha(name + "0")[:16],
        "utility": utility(epochs[-1]),
        "curve": [{"epoch": epoch, "utility": utility(epoch)} for epoch in epochs],
    }
    if len(seeds) > 1:
        entry["per_seed"] = [
            {"seed": s, "fingerprint": sha(f"{name}{s}")[:16], "utility": utility(epochs[-1])} for s in seeds
        ]
    return entry


def evidence(seeds: tuple[int, ...], epoch: int, blind: dict[str, Any]) -> dict[str, Any]:
    """Tests of every attack on real scores of the right size, and the answers for single candidates."""
    tests = []
    for seed, output, attack in product(seeds, OUTPUTS, ATTACKS):
        score, member = scores(attack, output, epoch, seed)
        row = {"attack": attack, "target": "target", "output": output, "reference": "shadow", "seed": seed}
        primary = (attack, output) == ("encodermi-v", "projection")
        test = dataset_test(score, member, seed=seed, permutations=99)
        result = SetTest(test=test, least_share=least_share(score, member))
        tests.append(SeedTest(**row, primary=primary, result=result))
    top = [
        {
            "id": f"pool/{number:06d}",
            "score": 1.0 - number / 100,
            "p_value": 1 / 441,
            "q_value": 0.01,
            "posterior": 0.99,
        }
        for number in range(6)
    ]
    samples = {
        "fdr": 0.05,
        "n_candidate": SIDE,
        "n_control": SIDE,
        "flagged": 300,
        "least_flags": 20,
        "needed_controls": 8799,
        "share": 0.8,
        "file": "seed-0/validity/candidates.parquet",
        "top": top,
    }
    return {
        "exchangeable": True,
        "blind_auc": blind,
        "telling": [{"feature": "sharpness", "auc": 0.53}],
        "grouped": False,
        "n_candidate": SIDE,
        "n_control": SIDE,
        "fpr_floor": 10 / SIDE,
        "power": [{"used": 1.0, "auc": 0.554}, {"used": 0.1, "auc": 0.93}, {"used": 0.01}],
        "tests": part_as_json(combine_tests(tests)),
        "samples": [{"seed": seed, **samples} for seed in seeds],
    }


def make_report(seeds: tuple[int, ...] = (0, 1, 2), epochs: tuple[int, ...] = (50, 100, 200, 400)) -> dict[str, Any]:
    return pickle.loads(_pickled(seeds, epochs))  # type: ignore[no-any-return]


@cache
def _pickled(seeds: tuple[int, ...], epochs: tuple[int, ...]) -> bytes:
    attacks = [attack_entry(a, o, e, s) for s in seeds for o in OUTPUTS for e in epochs for a in ATTACKS]
    n = 2 * SIDE * len(seeds)
    auc = next(row for row in pooled(attacks) if row.get("primary") and row["epoch"] == epochs[-1])["auc"]["value"]
    verdict = validity(auc, 0.505, 0.497, n, **BY_LOT)
    if len(seeds) > 1:
        verdict["per_seed"] = [{"seed": s, **validity(auc, 0.505, 0.497, 2 * SIDE, **BY_LOT)} for s in seeds]
    roles = ("target-member", "target-nonmember", "shadow-member", "shadow-nonmember")
    sides = ("member", "nonmember")
    report = {
        "schema_version": 1,
        "name": "quickstart",
        "created": "2026-01-31T12:00:00Z",
        "config_sha256": sha("config"),
        "versions": {"encoder-audit": "0.1.0", "torch": "2.11.0", "ray": "2.60.0", "python": "3.12.4"},
        "command": "encoder-audit audit quickstart.yaml --out runs/quickstart",
        "data": {
            "source": "digits (scikit-learn), 1,797 images",
            "roles": {role: {"n": SIDE, "sha256": sha(role)} for role in roles},
            "duplicates_removed": 3,
        },
        "encoders": {name: encoder(name, epochs, seeds) for name in ("target", "shadow")},
        "attacks": attacks,
        "pooled": pooled(attacks),
        "methods": {
            "encodermi-v": {
                "threat_model": "embeddings of ten views of an image; a shadow encoder of the same kind",
                "source": "Liu et al., EncoderMI, CCS 2021, section 4",
                "queries_per_sample": 10,
            },
            "lpla": {"threat_model": "the length of one embedding; some known members", "queries_per_sample": 1},
        },
        "validity": verdict,
        "evidence": evidence(seeds, epochs[-1], verdict["blind_auc"]),
        "throughput": {
            "images_per_second": 1840.0,
            "views_per_second": 18400.0,
            "encoder_fraction": 0.974,
            "precision": "float32 with TF32 products",
        },
        "timings": {"ray_start": 4.2, "data": 1.1, "pretrain": 212.0, "extract": 17.5, "attack": 21.3, "report": 6.4},
        "queries": {
            "total": 4 * SIDE * 10 * len(epochs) * len(seeds),
            "entries": [
                {"encoder": e, "role": f"{e}-{side}", "images": SIDE, "queries": SIDE * 10 * len(epochs) * len(seeds)}
                for e in ("target", "shadow")
                for side in sides
            ],
        },
        "rejected": [
            {
                "source": "pool",
                "shard": "train-000003.tar",
                "key": "000412",
                "reason": "truncated JPEG: 311 bytes missing",
            },
            {"source": "pool", "shard": "train-000007.tar", "key": "001208", "reason": "image of 0 x 0 pixels"},
        ],
        "rejected_count": 2,
        "rejected_total": {"samples": 2, "shards": 0, "estimated": False},
        "caveats": ["Few members, mild augmentation and many epochs make this encoder leak more than most do."],
        "not_tested": ["attacks with many shadow encoders", "near-duplicates across roles", "defenses"],
        "not_applying": ["posterior-nn, metric-loss: the encoder gives no logits"],
    }
    return pickle.dumps(report)


def make_figure_data(seeds: tuple[int, ...] = (0, 1, 2), epoch: int = 400) -> FigureData:
    drawn = []
    for seed in seeds:
        for output in OUTPUTS:
            for attack in ATTACKS:
                score, member = scores(attack, output, epoch, seed)
                threshold = attack_entry(attack, output, epoch, seed)["threshold"]
                drawn.append(AttackScores(attack, "target", output, "shadow", seed, score, member, threshold))
    epochs = np.arange(1, epoch + 1, dtype=np.float64)
    losses = [
        LossCurve(name, seed, epochs, 5.1 * np.exp(-epochs / (90 + 9 * seed)) + 1.2 + 0.1 * (name == "shadow"))
        for name in ("target", "shadow")
        for seed in seeds
    ]
    return FigureData(tuple(drawn), tuple(losses))


@pytest.fixture
def report() -> dict[str, Any]:
    """Three seeds, four attacks, two outputs, four checkpoints; a leak."""
    return make_report()


@pytest.fixture
def short_report() -> dict[str, Any]:
    """One seed, one checkpoint."""
    return make_report(seeds=(0,), epochs=(400,))


@pytest.fixture(scope="session")
def figure_data() -> FigureData:
    return make_figure_data()


@pytest.fixture(scope="session")
def drawings(figure_data: FigureData) -> dict[str, Drawing]:
    return draw_figures(report_from_json(make_report()), figure_data)


def make_asked(seeds: tuple[int, ...] = (0,), epochs: tuple[int, ...] = (400,)) -> dict[str, Any]:
    """The same of candidates and controls: nobody knows who is a member, so there are no rates that take the truth."""
    changed = make_report(seeds, epochs)
    changed["membership"] = "asked"
    auc = changed["validity"]["attack_auc"]["value"]
    changed["validity"] = validity(auc, 0.505, 0.497, 2 * SIDE, **BY_CHOICE)
    roles = changed["data"]["roles"]
    changed["data"]["roles"] = {"candidate": roles["target-member"], "control": roles["target-nonmember"]}
    for row in (*changed["attacks"], *changed["pooled"]):
        for name in ("accuracy", "precision", "recall"):
            del row[name]
    changed["classes"] = [
        {
            "class": "cats", "n_member": 9, "n_nonmember": 9, "auc": estimate(0.6, 18),
            "false_positive_rate": estimate(0.1, 9),
        }
    ]  # fmt: skip
    return changed


@pytest.fixture
def asked() -> dict[str, Any]:
    """One seed, one checkpoint, of candidates and controls; a leak."""
    return make_asked()


LIMITS: list[dict[str, Any]] = [
    {"attack": "lpla", "reference": "known", "settings": "p = 1", "auc": 0.5, "low": 0.48, "high": 0.5201, "n": 880},
    {"attack": "lpla", "reference": "known", "settings": "p = 2", "auc": 0.52, "low": 0.5109, "high": 0.5432, "n": 880},
    {"attack": "encodermi-t", "reference": "shadow", "shadow": "s", "auc": 0.5, "low": 0.47, "high": 0.53, "n": 880},
]
BOUNDED: dict[str, Any] = {
    "target": "target",
    "output": "backbone",
    "epoch": 20,
    "at_most": 0.5432,
    "attack": "lpla, p = 2",
    "attacks": 3,
    "planned": 4,
    "limits": LIMITS,
}
BOUND_MET = BOUNDED | {"bound": 0.55, "outcome": "met", "registered": True}
BOUND_BROKEN = BOUNDED | {
    "target": "target+noise",
    "bound": 0.505,
    "outcome": "not met",
    "registered": False,
    "planned": 3,
}


MEMORISED: dict[str, Any] = {
    "attack": "sslmem",
    "shadow": "half",
    "output": "projection",
    "epoch": 200,
    "seed": 0,
    "pairs": 4,
    "mean": {"value": 0.0213, "ci95": [0.0121, 0.0305], "n": 880},
    "memorised": 1,
    "fdr": 0.05,
    "top": [
        {"id": "digits/0007", "value": 0.31, "ci95": [0.22, 0.4], "q_value": 0.004},
        {"id": "digits/<b>9", "value": 0.29, "ci95": [-0.02, 0.6], "q_value": 0.2},
    ],
    "file": "seed-0/attacks/sslmem-0-projection-0200/memorisation.parquet",
}
MEMORISED_NOTHING = MEMORISED | {
    "output": "backbone",
    "memorised": 0,
    "mean": {"value": 0.0, "ci95": [-0.01, 0.01], "n": 880},
}
MEMORISED_BELOW = MEMORISED | {"mean": {"value": -0.1, "ci95": [-0.2, -0.05], "n": 880}}


REFUTED: dict[str, Any] = {
    "target": "target+forgotten",
    "attack": "metric-loss",
    "output": "logits",
    "epoch": 20,
    "seeds": [0, 1],
    "kind": "mislabelled",
    "canaries": 600,
    "inside": 301,
    "tried": [{"guesses": 60, "correct": 58}, {"guesses": 1200, "correct": 1001}],
    "guesses": 1200,
    "correct": 1001,
    "confidence": 0.95,
    "family": "gaussian",
    "delta": 1e-5,
    "epsilon": 2.714,
    "most": 6.32,
    "mu": 0.61,
    "promised": {"epsilon": 1.0, "delta": 1e-5, "by": "config"},
    "p_value": 0.0004,
    "verdict": "refuted",
}
KEPT = REFUTED | {
    "target": "target+honest",
    "tried": [{"guesses": 60, "correct": 31}],
    "kind": "plain",
    "epsilon": 0.0,
    "promised": {"epsilon": 1.0, "delta": 1e-5, "by": "defense", "gamma": 0.077},
    "p_value": 1.0,
    "verdict": "not-refuted",
}
UNPROMISED = {name: part for name, part in REFUTED.items() if name not in ("promised", "p_value", "mu")} | {
    "target": "target",
    "family": "approximate",
    "verdict": "no-promise",
}
CONVERTED = KEPT | {"promised": {"epsilon": 1.34, "delta": 1e-5, "by": "defense", "replaced": 1.0}}


def within(value: float, half: float) -> dict[str, Any]:
    return {"value": value, "ci95": [value - half, value + half], "n": 300}


def trial(leak: float, utility: float, loss: float) -> dict[str, Any]:
    attacks = [{"attack": "lpla", "output": "backbone", **within(leak - 0.2, 0.05)}]
    attacks.append({"attack": "encodermi-t", "output": "projection", **within(leak - 0.05, 0.05)})
    told = {"measure": "linear", **within(utility, 0.02)}
    return {"utility": told, "attacks": attacks, "strongest": "lpla", "leak": leak, "utility_loss": loss}


def search(held_back: float, *, allowed: float = 0.65, within: bool = True) -> dict[str, Any]:
    """A search of three trials, of which the second is chosen; its leak on images held back is given."""
    rows = [
        {
            "id": f"{scale}",
            "parameters": {"defenses.0.settings.scale": scale},
            "seeds": 1,
            "seconds": 1.0,
            "cpu_seconds": 1.0,
            "utility_loss": loss,
            "leak": leak,
            "pareto": pareto,
        }
        for scale, loss, leak, pareto in ((1.0, 0.3, 0.6, True), (0.5, 0.1, 0.64, True), (0.4, 0.2, 0.7, False))
    ]
    return {
        "target": "target+noise",
        "plain": "target",
        "measure": "linear",
        "metric": "auc",
        "allowed": allowed,
        "trials": 3,
        "failed": 0,
        "cut": 0,
        "seeds": 1,
        "rows": rows,
        "without": {"search": trial(0.95, 0.98, 0.0), "final": trial(0.93, 0.97, 0.0)},
        "winner": {
            "id": "0.5",
            "parameters": rows[1]["parameters"],
            "within": within,
            "search": trial(0.64, 0.88, 0.1),
            "final": trial(held_back, 0.87, 0.104),
        },
    }


def attack_pair(attack: str, clean: float, defended: float) -> dict[str, Any]:
    """An attack on the plain and on the defended encoder, by AUC and accuracy."""

    def told(value: float) -> dict[str, Any]:
        return {name: {"value": value, "ci95": [value - 0.1, value + 0.1], "n": 40} for name in ("auc", "accuracy")}

    return {"attack": attack, "output": "logits", "clean": told(clean), "defended": told(defended)}


def defense_entry(label: str, loss: float, *attacks: dict[str, Any]) -> dict[str, Any]:
    measure = {"value": 0.8, "ci95": [0.7, 0.9], "n": 40}
    return {
        "defense": label,
        "label": label,
        "target": "target",
        "served": label,
        "parameters": {},
        "numbers": {},
        "utility": [{"measure": "knn", "clean": measure, "defended": measure, "loss": loss}],
        "attacks": list(attacks),
        "attributes": [],
    }


def make_full() -> dict[str, Any]:
    """A report with every part."""
    whole = make_report((0, 1), (50, 400))
    inferred = {"attribute": "race", "target": "target", "output": "backbone", "settings": "layers = 3", "epoch": 400}
    inferred |= {"values": 5, "seeds": [0], "n_auxiliary": 300, "accuracy": estimate(0.6, 9)}
    inferred |= {"auxiliary_accuracy": estimate(0.7, 9), "majority": estimate(0.4, 9)}
    point = {"label": "2", "rows": whole["pooled"][:1], "attribute_inference": [inferred], "value": 2.0}
    named = {"attack": "lpla", "target": "target", "output": "logits", "epoch": 1, "seed": 0}
    parts: dict[str, Any] = {
        "membership": "known",
        "not_applicable": [named | {"settings": "a = 1", "reason": "no logits"}],
        "attribute_inference": [inferred],
        "registration": {
            "nonce": {"from": "given", "value": "7"},
            "time": "2026",
            "sha256": "0" * 64,
            "reports": 1,
            "attacks": 2,
            "after_looking": False,
        },
        "classes": [make_asked()["classes"][0] | {"recall": estimate(0.5, 9)}],
        "memorisation": [MEMORISED, MEMORISED_NOTHING, MEMORISED_BELOW],
        "bounds": [BOUND_MET, BOUND_BROKEN, BOUNDED],
        "dp_audit": [REFUTED, KEPT, UNPROMISED, CONVERTED],
        "defenses": [defense_entry("noise", 0.0, attack_pair("metric-conf", 0.6, 0.55)) | {"adaptive": False}],
        "tuning": search(0.66),
        "sweeps": [{"name": "queries.views", "points": [point | {"utility": {"target": {"n": 3, "ci95": {}}}}]}],
    }
    return whole | parts
