"""From what an audit measured to its verdict, its report and the config that repeats it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mi_core.adoption.soundness import QUERIES, noise_caveat
from mi_core.attacks import left_out
from mi_core.auditing.asking import COMMAND, EMBEDDING, RegistrationFile, Setup
from mi_core.auditing.attacks import NONMEMBERS, SHADOWS, AuditAttack, Scores, needs_of
from mi_core.auditing.config_text import FAMILY, MISSING, audit_settings, reference_settings, yaml_of
from mi_core.auditing.found import Found
from mi_core.auditing.models import Model, Reference
from mi_core.auditing.reading import CANDIDATES, CONTROLS, AuditedImages
from mi_core.encoders.remote.encoder import Endpoint
from mi_core.features import queries_per_image
from mi_core.metrics.membership import evaluate
from mi_core.provenance import now, versions
from mi_core.querying.sanity import consistency_in_words, fault_in_words
from mi_core.registration import LOOK
from mi_core.report import build
from mi_core.report.model.as_json import given_values
from mi_core.report.model.attacks import AttackQueries, AttackResult, EncoderPart, MethodPart, NotApplicable
from mi_core.report.model.judgement import Evidence, TopSample, VerdictPart
from mi_core.report.model.report import SCHEMA_VERSION, DataPart, QueriesPart, QueryEntry, RejectedTotal, Remark, Report
from mi_core.report.pooling import bound_parts, pool_seeds
from mi_core.report.words.sentences import WORDS, say, sections
from mi_core.report.words.wording import answer
from mi_core.validity.candidates import NUMBERS, CandidateAnswers, answers_of

_TARGET = "target"


@dataclass(frozen=True)
class Measured:
    """What an audit measured.

    Args:
        samples: that were used.
        scores: of those that are judged.
        target: the encoder.
        beside: the reference encoders.
        consistency: whether the target recognises images.
        given: the candidates and controls as the user gave them.
        setup: of the audit.
        grid: some images and their views, for the report.
        file: of the registration.
    """

    samples: AuditedImages
    scores: Scores
    target: Model
    beside: Sequence[Reference]
    consistency: Mapping[str, Any]
    given: Mapping[str, Any]
    setup: Setup
    grid: tuple[np.ndarray, np.ndarray]
    file: RegistrationFile


def conclude(measured: Measured) -> Found:
    """The result of an audit."""
    scores, setup, answers, samples = measured.scores, measured.setup, measured.target.answers, measured.samples
    fault = fault_in_words(measured.consistency)
    trained = any(reference.consistency["works"] for reference in measured.beside)
    measured.file.add(LOOK, {"command": COMMAND, "auc": scores.first.limits.value})
    told = measured.file.part(setup)
    registered = None if told.after_looking is None else not told.after_looking
    settled = {"trained": trained, "works": not fault, "factor": setup.factor, "registered": registered}
    verdict = build.verdict_part(
        {setup.seed: scores.first.validity(scores.blind, scores.semantic, **settled)},
        fault=f"The encoder {_TARGET}: {fault}" if fault else "",
        others=lambda: {
            f"{one.attack.method.name}, fitted on {one.attack.reference}, on the {setup.question.output} output": [
                one.validity()
            ]
            for one in scores.attacks[1:]
        },
    )
    assert verdict.validity is not None
    shown, single = _evidence(measured, verdict, told.attacks or 0)
    caveats = [noise_caveat(_TARGET, answers.noise)] if answers.noisy else []
    caveats += [f"{measured.samples.doubt}."] if measured.samples.doubt else []
    config, remarks = _config(measured)
    report = replace(_report(measured, verdict, shown, caveats, config), registration=told)
    said, text = answer(report), yaml_of(config, remarks)
    lines = tuple(dict.fromkeys(line for _, line in sections(f"{WORDS}/audit.j2", answer=said, report=report)))
    kept = samples, scores, measured.grid
    return Found(said.headline, lines, verdict.validity, setup.fdr, report, text, single, *kept)


def _evidence(measured: Measured, verdict: VerdictPart, planned: int) -> tuple[Evidence, CandidateAnswers | None]:
    """What the scores say of all candidates and of single ones; nothing where a check tells the groups apart.

    So many attacks were ever planned on the target, as far as that is known.
    """
    scores, setup = measured.scores, measured.setup
    member, seed, fdr = scores.first.member, setup.seed, setup.fdr
    counts = int(member.sum()), int((~member).sum())
    tests = []
    if verdict.validity is not None and verdict.validity.withheld_because is None:
        for number, one in enumerate(scores.attacks):
            result = build.SetTest.from_scores(one.score, one.control, one.member, seed=seed)
            named = _identity(setup, one.attack) | {"reference": one.attack.settings()["reference"]}
            tests.append(build.SeedTest(**named, primary=not number, result=result))
    groups: dict[str, Any] = {"counts": counts, "worths": counts, "bursts": scores.first.groups}
    shown = build.evidence(verdict, tests, **groups, telling=scores.telling, planned={_TARGET: planned})
    single = build.single_tests(shown, tests)
    if not single or scores.calibrated is None:
        return shown, None
    share, _ = single[0].result.best_share
    answers = answers_of(scores.calibrated, member, share, fdr=fdr, seed=seed)
    ids = measured.samples.ids  # candidates first
    most, least = (
        tuple(
            TopSample(id=ids[row], shard=CANDIDATES, **{name: float(getattr(answers, name)[row]) for name in NUMBERS})
            for row in order[: build.TOP].tolist()
        )
        for order in (answers.order, answers.order[::-1])
    )
    told = build.sample_answers(
        single[0],
        candidates=counts[0],
        controls=answers.controls,
        flagged=int(answers.flagged.sum()),
        fdr=fdr,
        file="the table of the result",
        top=most,
        lowest=least,
    )
    return replace(shown, samples=(told,)), answers


def _identity(setup: Setup, attack: AuditAttack) -> dict[str, Any]:
    """What tells an attack from others."""
    told = {"attack": attack.method.name, "target": _TARGET, "output": setup.question.output}
    return told | {"reference": attack.reference, "seed": setup.seed}


def _attacks(measured: Measured) -> Iterator[AttackResult]:
    """What every attack reached."""
    scores, setup = measured.scores, measured.setup
    for number, one in enumerate(scores.attacks):
        each = one.attack.method.queries_per_sample(setup.views)
        trained = scores.known if one.attack.reference == NONMEMBERS else 0
        trained = len(one.score) * len(measured.beside) if one.attack.reference == SHADOWS else trained
        yield build.attack_result(
            evaluate(one.score, one.member, one.threshold, seed=setup.seed),
            asked=True,
            **_identity(setup, one.attack),
            epoch=0,
            shadow=FAMILY if one.attack.reference == SHADOWS else None,
            queries=AttackQueries(per_sample=each, attack_training=each * trained, evaluation=each * len(one.score)),
            seconds=0.0,
            primary=not number,
            difference=one.difference_from(scores.first) if number else None,
        )


def _report(
    measured: Measured, verdict: VerdictPart, shown: Evidence, caveats: Sequence[str], config: Mapping[str, Any]
) -> Report:
    """The content of report.json."""
    samples, scores, setup = measured.samples, measured.scores, measured.setup
    methods, attacks = [one.method for one in setup.attacks], tuple(_attacks(measured))
    encoder, output = measured.target.encoder, setup.question.output
    missing, useless = left_out([one.name for one in methods], encoder.outputs, text=encoder.text is not None)
    rejected = tuple(samples.rejected)
    data = DataPart(
        source="images given in Python",
        roles=samples.roles(setup.seed),
        duplicates_removed=samples.copies,
        near_duplicates_removed=samples.near_copies,
        remarks=tuple(
            Remark(source=side, remark=remark, n=count)
            for side, counts in samples.remarks.items()
            for remark, count in counts.items()
        ),
    )
    return Report(
        schema_version=SCHEMA_VERSION,
        name="audit",
        created=now(),
        config_sha256=hashlib.sha256(yaml_of(config).encode()).hexdigest(),
        config=given_values(config),
        membership="asked",
        versions=versions(),
        command=COMMAND,
        data=data,
        encoders={
            _TARGET: _encoder(measured.target, measured.consistency),
            **{
                one.name: _encoder(one.model, one.consistency) if one.given else one.model.part
                for one in measured.beside
            },
        },
        attacks=attacks,
        pooled=pool_seeds(attacks),
        methods={
            method.name: MethodPart(
                threat_model=method.threat_model,
                source=method.source,
                queries_per_sample=method.queries_per_sample(setup.views),
            )
            for method in methods
        },
        not_applicable=tuple(
            NotApplicable(attack=name, target=_TARGET, output=output, epoch=0, seed=setup.seed, reason=reason)
            for name, reason in scores.not_applicable.items()
        ),
        validity=verdict,
        bounds=bound_parts(zip(attacks, (one.limits for one in scores.attacks), strict=True)),
        evidence=shown,
        queries=_queries(measured),
        rejected=rejected,
        rejected_count=len(rejected),
        rejected_total=RejectedTotal(samples=len(rejected), shards=0, estimated=False) if rejected else None,
        caveats=(say("same_source"), *caveats, *filter(None, (say("condition", one) for one in data.remarks))),
        not_tested=(*missing, "what a defense would hide, and at what price"),
        not_applying=tuple(useless),
    )


def _queries(measured: Measured) -> QueriesPart:
    """Queries by encoder and side; views of some images tried the target out."""
    read, views = needs_of(measured.setup.attacks), measured.setup.views
    each, beside = queries_per_image(read, views), queries_per_image((*read, EMBEDDING), views)
    inside, shown = int(measured.samples.candidate.sum()), measured.consistency
    sides = {CANDIDATES: inside, CONTROLS: len(measured.samples.items) - inside}
    per_image = {_TARGET: each, **dict.fromkeys((reference.name for reference in measured.beside), beside)}
    sent = [(name, side, count, per * count) for name, per in per_image.items() for side, count in sides.items()]
    tried = shown["queries"] + isinstance(measured.target.encoder, Endpoint) * QUERIES
    sent.append((_TARGET, "trying out the encoder", shown["encoder"]["n"], tried))
    return build.queries_part(
        QueryEntry(encoder=name, role=role, seed=measured.setup.seed, images=images, queries=queries)
        for name, role, images, queries in sent
    )


def _encoder(model: Model, consistency: Mapping[str, Any]) -> EncoderPart:
    return replace(model.part, consistency=consistency_in_words(consistency), answers=model.answers.words() or None)


def _config(measured: Measured) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings of a config that repeats the audit, and remarks on what it cannot name."""
    setup, question, remarks = measured.setup, measured.setup.question, []
    sources = {}
    for side in (CANDIDATES, CONTROLS):
        images = measured.given[side]
        is_folder = isinstance(images, str | Path) and Path(images).is_dir()
        sources[side] = {"kind": "imagefolder", "path": str(images) if is_folder else MISSING}
        if not is_folder:
            remarks.append(f"{MISSING}: the folder of the {side}, which were given as a {type(images).__name__}")

    def named(model: Model, name: str) -> Mapping[str, Any]:
        if model.settings is None:
            remarks.append(f"{MISSING}: the module and function of {name}, which was given as {model.part.load}")
            return {"load": f"python:{MISSING}:{MISSING}", "trust_code": True}
        return model.settings

    target = named(measured.target, "the encoder")
    given = {one.name: named(one.model, one.name) for one in measured.beside if one.given}
    made = {FAMILY: reference_settings(question.data.get("image_size"))} if measured.beside and not given else {}
    chosen = {name: getattr(setup, name) for name in ("views", "fdr", "factor", "nonce", "seed")}
    chosen |= {name: getattr(question, name) for name in ("objective", "augmentation", "data", "output")}
    further = [one.settings() for one in setup.attacks[1:]]
    return audit_settings(target, given or made, sources, further=further, **chosen), tuple(remarks)
