"""What an audit measured, as the content of report.json and as the settings of a config."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mi_core.adoption.soundness import QUERIES, noise_caveat
from mi_core.attacks import left_out
from mi_core.attacks.mean_cosine import MeanCosine
from mi_core.auditing.config_text import FAMILY, MISSING, audit_settings, reference_settings, yaml_of
from mi_core.auditing.models import Model
from mi_core.auditing.reading import CANDIDATES, CONTROLS, Samples
from mi_core.checks import NumericError
from mi_core.encoders.checkpoint import Encoder
from mi_core.encoders.remote.encoder import Endpoint
from mi_core.images import conditions_in_words
from mi_core.metrics.delong import auc
from mi_core.metrics.membership import evaluate
from mi_core.nonce import GIVEN, SYSTEM
from mi_core.querying.sanity import consistency_in_words
from mi_core.records import BoolArray
from mi_core.report.contents import pool_seeds
from mi_core.report.words.evidence import combine_tests
from mi_core.validity.bursts import bursts_as_json
from mi_core.validity.candidates import CandidateAnswers, answers_of, flags_as_json
from mi_core.validity.dataset import dataset_test
from mi_core.validity.power import fpr_floor, power_as_json
from mi_core.validity.share import least_share
from mi_core.validity.verdict import GROUPS_DIFFER, Validity

_TOP = 12  # candidates shown in the report
_PACKAGES = ("encoder-audit", "torch", "torchvision", "numpy", "scikit-learn", "pillow")
_RATES = ("accuracy", "precision", "recall")  # that take the truth about every image


@dataclass(frozen=True)
class Beside:
    """A reference encoder.

    Args:
        name: in the report, and in a config where it was made here.
        encoder: in evaluation mode.
        fingerprint: of its weights, before batch norm was folded.
        output: that is read.
        seen: (N,) which images it was trained on.
        consistency: whether it recognises images.
        model: as the user gave it; None: it was made here.
    """

    name: str
    encoder: Encoder
    fingerprint: str
    output: str
    seen: BoolArray
    consistency: Mapping[str, Any]
    model: Model | None


@dataclass(frozen=True)
class Measured:
    """What an audit measured.

    Args:
        samples: that were used.
        scores: of the judged images; see `mi_core.auditing.audit`.
        target: the encoder.
        beside: the reference encoders.
        consistency: whether the target recognises images.
        given: the candidates and controls as the user gave them.
        nonce: of the queries.
        nonce_given: whether the user gave it.
    """

    samples: Samples
    scores: Mapping[str, Any]
    target: Model
    beside: Sequence[Beside]
    consistency: Mapping[str, Any]
    given: Mapping[str, Any]
    nonce: str
    nonce_given: bool

    @property
    def trained(self) -> bool:
        """Whether a reference has learned to recognise images."""
        return any(one.consistency["works"] for one in self.beside)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a reader should know of the target's answers."""
        answers = self.target.answers
        return (noise_caveat("target", answers.noise),) if answers.noisy else ()


def evidence_of(
    scores: Mapping[str, Any], validity: Validity, output: str, fdr: float, seed: int, samples: Samples
) -> tuple[dict[str, Any], CandidateAnswers | None]:
    """What the scores say of all candidates and of single ones; nothing where a control tells the groups apart."""
    score, member = scores["score"], scores["member"]
    inside, outside = int(member.sum()), int((~member).sum())
    checks = validity.checks
    withheld = validity.withheld_because
    found: dict[str, Any] = {
        "exchangeable": withheld != GROUPS_DIFFER,
        **{name: one.as_json() for name, one in checks.items()},
        "telling": [{"feature": name, "auc": value} for name, value in scores["telling"].items()],
        "grouped": False,
        **bursts_as_json(scores.get("groups")),
        "n_candidate": inside,
        "n_control": outside,
        "fpr_floor": fpr_floor(outside),
        "power": power_as_json(inside, outside, by=validity.by, factor=validity.factor),
    }
    if withheld is not None:
        return found | {"withheld_because": withheld}, None
    if auc(scores["control"], member).low > 0.5:
        return found | {"withheld": [f"{MeanCosine.name} on the {output} output of target"]}, None
    try:
        test = dataset_test(score, member, seed=seed)
    except NumericError:
        return found, None
    least = least_share(score, member).as_json()
    entry = {"attack": MeanCosine.name, "target": "target", "output": output, "reference": "nonmembers", "seed": seed}
    found["tests"] = combine_tests([{**entry, "primary": True, "test": test.as_json(), "least_share": least}])
    answers = answers_of(scores["calibrated"], member, float(least["low"]), fdr=fdr, seed=seed)
    keys = [name for name, one in zip(samples.ids, samples.sides, strict=True) if one == CANDIDATES]
    numbers = ("score", "p_value", "q_value", "posterior")
    found["samples"] = [
        {
            "seed": seed,
            **flags_as_json(inside, answers.controls, int(answers.flagged.sum()), fdr),
            "share": float(least["low"]),
            "share_is_bound": True,
            "file": "the table of the result",
            "top": [
                {"id": keys[row], "shard": CANDIDATES, **{name: float(getattr(answers, name)[row]) for name in numbers}}
                for row in answers.order[:_TOP].tolist()
            ],
        }
    ]
    return found, answers


def report_of(
    measured: Measured,
    validity: Mapping[str, Any],
    proof: Mapping[str, Any],
    settings: Mapping[str, Any],
    output: str,
    views: int,
    seed: int,
) -> dict[str, Any]:
    """The content of report.json."""
    scores, samples = measured.scores, measured.samples
    metrics = evaluate(scores["score"], scores["member"], scores["threshold"], seed=seed).as_json()
    method = MeanCosine(seed=seed)
    each = method.queries_per_sample(views)
    entry = {
        "attack": method.name,
        "target": "target",
        "output": output,
        "reference": "nonmembers",
        "seed": seed,
        "epoch": 0,
        **{name: part for name, part in metrics.items() if name not in _RATES},
        "queries": {
            "per_sample": each,
            "attack_training": each * scores["known"],
            "evaluation": each * len(scores["score"]),
        },
        "seconds": 0.0,
        "primary": True,
    }
    encoder = measured.target.encoder
    missing, useless = left_out(
        [method.name], encoder.outputs, text=encoder.text is not None, weights=measured.target.open
    )
    config, data = settings["config"], _data(samples, scores, seed)
    rejected = [
        {"source": bad.side, "shard": bad.side, "key": bad.key, "reason": bad.reason} for bad in samples.rejected
    ]
    report: dict[str, Any] = {
        "schema_version": 1,
        "name": "audit",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config_sha256": hashlib.sha256(yaml_of(config).encode()).hexdigest(),
        "config": config,
        "membership": "asked",
        "versions": _versions(),
        "command": "mi_core.audit(...)",
        "data": data,
        "encoders": {
            "target": _encoder(measured.target, consistency_in_words(measured.consistency)),
            **{one.name: _reference(one) for one in measured.beside},
        },
        "attacks": [entry],
        "pooled": pool_seeds([entry]),
        "methods": {
            method.name: {
                "access": method.access,
                "threat_model": method.threat_model,
                "source": method.source,
                "queries_per_sample": each,
            }
        },
        "registration": {"nonce": {"from": GIVEN if measured.nonce_given else SYSTEM, "value": measured.nonce}},
        "validity": dict(validity),
        "evidence": dict(proof),
        "queries": _queries(measured, each, seed),
        "rejected": rejected,
        "rejected_count": len(rejected),
        "caveats": [
            "The answer holds only if your images and the control images come from the same source, and the control "
            "images were surely not trained on.",
            *measured.caveats,
            *conditions_in_words(data.get("remarks", ())),
        ],
        "not_tested": [f"attacks: {', '.join(missing)}", "what a defense would hide, and at what price"],
        "not_applying": [f"{', '.join(names)}: {reason}" for reason, names in useless.items()],
    }
    if rejected:
        report["rejected_total"] = {"samples": len(rejected), "shards": 0, "estimated": False}
    return {name: part for name, part in report.items() if part not in ({}, [], "")}


def _queries(measured: Measured, each: int, seed: int) -> dict[str, Any]:
    """Queries by encoder and side; views of some images tried the target out."""
    inside = int(measured.samples.candidate.sum())
    sides = {CANDIDATES: inside, CONTROLS: len(measured.samples.items) - inside}
    per_image = {"target": each, **{one.name: each + 1 for one in measured.beside}}  # of references also the image
    asked = [(name, side, count, per * count) for name, per in per_image.items() for side, count in sides.items()]
    remote = isinstance(measured.target.encoder, Endpoint)
    tried = (
        "trying out the encoder",
        measured.consistency["encoder"]["n"],
        measured.consistency["queries"] + remote * QUERIES,
    )
    entries = [
        {"encoder": name, "role": role, "seed": seed, "images": images, "queries": queries}
        for name, role, images, queries in [*asked, ("target", *tried)]
    ]
    return {"total": sum(entry["queries"] for entry in entries), "entries": entries}


def _data(samples: Samples, scores: Mapping[str, Any], seed: int) -> dict[str, Any]:
    known = samples.known(seed)
    roles = {"candidate": samples.candidate, "control": ~samples.candidate, "known-nonmember": known}
    remarks = [
        {"source": side, "remark": remark, "n": count}
        for side, counts in samples.remarks.items()
        for remark, count in counts.items()
    ]
    return {
        "source": "images given in Python",
        "roles": {role: {"n": int(rows.sum()), "sha256": samples.digest(rows)} for role, rows in roles.items()},
        "duplicates_removed": samples.copies,
        "near_duplicates_removed": samples.near_copies,
        **({"remarks": remarks} if remarks else {}),
    }


def _encoder(model: Model, consistency: str) -> dict[str, Any]:
    told = {name: getattr(model, name) for name in ("load", "weights", "layout", "preprocessing", "fingerprint")}
    words = model.answers.words()
    return told | {"consistency": consistency} | ({"answers": words} if words else {})


def _reference(one: Beside) -> dict[str, Any]:
    if one.model is not None:
        return _encoder(one.model, consistency_in_words(one.consistency))
    made = reference_settings()
    told = {name: made[name] for name in ("objective", "backbone", "epochs")}
    return told | {"train_on": "half of candidates and controls, by lot", "fingerprint": one.fingerprint}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def settings_of(
    measured: Measured,
    recipe: tuple[str, Mapping[str, Any]],
    output: str,
    views: int,
    data: Mapping[str, Any],
    fdr: float,
    factor: float,
    seed: int,
) -> dict[str, Any]:
    """Settings of a config, and remarks on what it cannot name."""
    remarks: list[str] = []
    sources = {}
    for side in (CANDIDATES, CONTROLS):
        place = measured.given[side]
        if isinstance(place, str | Path) and Path(place).is_dir():
            sources[side] = {"kind": "imagefolder", "path": str(place)}
        else:
            sources[side] = {"kind": "imagefolder", "path": MISSING}
            remarks.append(f"{MISSING}: the folder of the {side}, which were given as a {type(place).__name__}")
    target = measured.target.settings
    if target is None:
        given = measured.target.load
        remarks.append(f"{MISSING}: the module and function of the encoder, which was given as {given}")
        target = {"load": f"python:{MISSING}:{MISSING}", "trust_code": True}
    references: dict[str, Mapping[str, Any]] = {}
    for one in measured.beside:
        if one.model is None:
            references = {FAMILY: reference_settings(data.get("image_size"))}
        elif one.model.settings is None:
            remarks.append(f"{MISSING}: the module and function of {one.name}, which was given as {one.model.load}")
            references[one.name] = {"load": f"python:{MISSING}:{MISSING}", "trust_code": True}
        else:
            references[one.name] = one.model.settings
    made = audit_settings(
        target,
        references,
        sources,
        objective=recipe[0],
        augmentation=recipe[1],
        data=data,
        output=output,
        views=views,
        fdr=fdr,
        factor=factor,
        nonce=measured.nonce,
        seed=seed,
    )
    return {"config": made, "remarks": remarks}
