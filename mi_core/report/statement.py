"""An audit as an in-toto statement: what was registered, measured and found, bound to files by their digests.

The layout is that of in-toto's Statement v1: subjects are the audited encoder's files, one encoder per seed; the
predicate is ours. Nothing is signed here. Tools that sign statements sign the file as it is.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from mi_core.checks import ConfigError
from mi_core.report.contents import final_rows, schema
from mi_core.report.model.as_json import given_values, part_as_json, part_from_json
from mi_core.report.model.judgement import VerdictPart
from mi_core.report.model.report import Report
from mi_core.report.words.sentences import say
from mi_core.report.words.wording import answer
from mi_core.validity.verdict import FACTOR, LEVEL, Validity

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:encoder-audit:membership-audit:v1"
"""What the predicate is. It is a name, not an address: nothing is loaded from it."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
RECORD, WEIGHTS, DEFENSE, ANSWERS = "record", "weights", "defense", "answers"
"""What a file of an encoder is: its description, its weights, the state of its defense, or answers kept of an API."""
CODE = "code"
"""The kind of an encoder that is a function: no file of the run holds it. Other kinds: `WEIGHTS` and `ANSWERS`."""
UNDECIDED = "undecided"
_PRIMARY = ("attack", "target", "output", "reference", "epoch")

Part = dict[str, Any]


def statement(
    report: Report,
    *,
    registrations: Sequence[Mapping[str, Any]],
    roles: Sequence[Part],
    encoders: Sequence[Part],
    config: Part,
    report_file: Part,
    results: Sequence[Part],
) -> Part:
    """The statement of an audit.

    Args:
        report: with a primary attack.
        registrations: the lines of registration.jsonl.
        roles: by seed, number and digest of every role, and the files that tell them.
        encoders: by seed and name, kind, fingerprints by epoch, and files.
        config, report_file: the files config.yaml and report.json; the second with the digests of its parts.
        results: the scores, and the other files and folders that show what was found.

    Raises:
        ConfigError: no attack of the report is marked as primary.
    """
    said = of_report(report)
    return {
        "_type": TYPE,
        "subject": subjects(encoders, said["primary"]),
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            **said,
            "rule": rule(None if report.validity is None else report.validity.factor),
            "registrations": [dict(entry) for entry in registrations],
            "roles": list(roles),
            "encoders": list(encoders),
            "config": config,
            "report": report_file,
            "results": list(results),
        },
    }


def card(report: Report, digest: str) -> str:
    """A section of Markdown for the card of the audited model: the answer, what it rests on, and how to check it.

    Args:
        report: with a primary attack.
        digest: SHA-256 (hex) of the file of its statement.
    """
    said, target = answer(report), of_report(report)["primary"]["target"]
    encoder = report.encoders[target]
    version, day = report.versions["encoder-audit"], report.created[:10]
    lines = [f"**{said.headline}**", said.warning, *said.lines, said.sentence]
    lines.append(
        f"Encoder: {encoder.load or encoder.objective or target}, fingerprint `{encoder.fingerprint or 'none'}`. "
        f"Audited on {day} by encoder-audit {version}. Statement: SHA-256 `{digest}`; `encoder-audit verify` checks it."
    )
    return "\n\n".join(["## Membership audit", *filter(None, lines)]) + "\n"


def of_report(report: Report) -> Part:
    """The parts of the predicate that report.json tells: run, versions, primary attack and verdict.

    Raises:
        ConfigError: no attack is marked as primary.
    """
    rows = [row for row in final_rows(report.attacks) if row.primary]
    if not rows:
        raise ConfigError("report.json has no primary attack: it did not apply, so there is no verdict to state")
    primary = {name: getattr(rows[0], name) for name in _PRIMARY}
    told = [{name: getattr(row, name) for name in ("seed", "n_member", "n_nonmember", "threshold")} for row in rows]
    primary["per_seed"] = given_values(told)
    return {
        "run": {
            **{name: getattr(report, name) for name in ("name", "created", "config_sha256")},
            "membership": report.membership or "known",
        },
        "versions": dict(report.versions),
        "primary": primary,
        "verdict": judged(report.validity),
    }


def judged(verdict: VerdictPart | None) -> Part:
    """The part ``verdict`` of a statement, from the part ``validity`` of a report."""
    entry = part_as_json(verdict or VerdictPart(verdict=UNDECIDED))
    return {"verdict": entry["verdict"], **entry}


def rule(factor: float | None) -> Part:
    """The rule of the verdict, in words, with its numbers; ``factor``: least robustness of a leak, None: the usual."""
    return {"text": say("rule"), "confidence": 0.95, "level": LEVEL, "factor": FACTOR if factor is None else factor}


def verdict_by_rule(found: Mapping[str, Any]) -> tuple[str, str | None]:
    """The verdict and its reason that follow from the numbers of a statement's part ``verdict``.

    Without an AUC, because the attack did not apply, it is ``undecided`` without a reason.
    """
    return part_from_json(Validity, found).judgement if "attack_auc" in found else (UNDECIDED, None)


def subjects(encoders: Iterable[Mapping[str, Any]], primary: Mapping[str, Any]) -> list[Part]:
    """The audited encoders of all seeds as subjects: the files of the audited epoch, or what else identifies them.

    The files of their publishers stand beside, as they came.

    Args:
        encoders: as `statement` takes them.
        primary: the part ``primary`` of the predicate.
    """
    epoch, found = str(primary["epoch"]), []
    for encoder in (one for one in encoders if one["name"] == primary["target"]):
        own = {"encoder": encoder["name"], "seed": encoder["seed"], "kind": encoder["kind"]}
        own["fingerprint"] = encoder["fingerprints"][epoch]
        if encoder["kind"] == CODE:
            name = f"{encoder['name']}, seed {encoder['seed']}: the code, its name and its weights"
            found.append({"name": name, "digest": {"sha256": own["fingerprint"]}, "annotations": own})
        for file in encoder["files"] if encoder["kind"] != CODE else ():
            told = file["annotations"]
            if told["part"] != RECORD and told.get("epoch", int(epoch)) == int(epoch):
                found.append({"name": file["name"], "digest": dict(file["digest"]), "annotations": dict(own)})
        for name, mark in encoder["published"].items():
            found.append({"name": name, "digest": {"sha256": mark}, "annotations": {**own, "published": True}})
    return found


def parsed(data: bytes) -> Any:
    """The content of a JSON file in which no name stands twice: readers would take one value or the other.

    Raises:
        ValueError: a name stands twice, a number is none, or the file is no JSON.
    """

    def once(pairs: list[tuple[str, Any]]) -> Part:
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0][:60]!r} stands twice in one object")
        return dict(pairs)

    def refuse(number: str) -> None:
        raise ValueError(f"{number} is no number of JSON")

    return json.loads(data, object_pairs_hook=once, parse_constant=refuse)


def read_statement(content: Any) -> tuple[Part, int | None]:
    """The statement in a JSON file, and how many signatures its envelope has; None: it stands in none.

    Envelopes are those of DSSE, by themselves or in a bundle of Sigstore. Signatures are not checked.

    Args:
        content: of the file, whatever that is.

    Raises:
        ConfigError: it holds no statement of this package.
    """
    envelope = content.get("dsseEnvelope", content) if isinstance(content, dict) else content
    signatures = None
    if isinstance(envelope, dict) and "payloadType" in envelope:
        signed = envelope.get("signatures")
        content, signatures = _opened(envelope), len(signed) if isinstance(signed, list) else 0
    if not isinstance(content, dict) or content.get("_type") != TYPE:
        raise ConfigError(f"is no statement of encoder-audit: its _type is not {TYPE}")
    if content.get("predicateType", PREDICATE_TYPE) != PREDICATE_TYPE:
        raise ConfigError(f"is no statement of encoder-audit: its predicateType is not {PREDICATE_TYPE}")
    fault = best_match(Draft202012Validator(schema("statement")).iter_errors(content))
    if fault is not None:
        where = ".".join(map(str, fault.absolute_path)) or "the whole"
        raise ConfigError(f"is no statement of encoder-audit: {where}: {fault.message[:200]}")
    predicate = content["predicate"]
    names = Counter(f"encoder {one['name']} of seed {one['seed']}" for one in predicate["encoders"])
    for files in (predicate["results"], *(one["files"] for one in predicate["encoders"])):
        names += Counter(one["name"] for one in files)
    if twice := [name for name, count in names.items() if count > 1]:
        raise ConfigError(f"is no statement of encoder-audit: {twice[0][:60]} stands there twice")
    return content, signatures


def _opened(envelope: Mapping[str, Any]) -> Any:
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise ConfigError(f"is an envelope of something else: its payloadType is not {PAYLOAD_TYPE}")
    try:
        return parsed(base64.urlsafe_b64decode(envelope["payload"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError("is an envelope whose payload is no JSON in base64") from error


def differences(stated: Any, found: Any, place: str = "", *, tolerance: float = 0.0) -> list[str]:
    """Dotted names of all leaves in which two values differ; fractions may, by a share ``tolerance``.

    Example:
        >>> differences({"a": [1, 2], "b": 3}, {"a": [1, 4]}, "x")
        ['x.a.1', 'x.b']
    """
    if isinstance(stated, list) and isinstance(found, list):
        stated, found = (dict(enumerate(one)) for one in (stated, found))
    if isinstance(stated, dict) and isinstance(found, dict):
        leaves: list[str] = []
        for name in dict.fromkeys([*stated, *found]):
            inner, both = f"{place}.{name}" if place else str(name), name in stated and name in found
            leaves += differences(stated[name], found[name], inner, tolerance=tolerance) if both else [inner]
        return leaves
    near = isinstance(stated, float) and isinstance(found, float) and math.isclose(stated, found, rel_tol=tolerance)
    return [] if near or (type(stated) is type(found) and stated == found) else [place]
