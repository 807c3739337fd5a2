"""A statement says what the report says; its verdict follows from its numbers; what is none is refused by name."""

from __future__ import annotations

import base64
import json
from copy import deepcopy
from itertools import product
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mi_core.checks import ConfigError
from mi_core.records import Estimate
from mi_core.report import statement as layout
from mi_core.report.contents import schema
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.words.sentences import say
from mi_core.validity.verdict import Validity
from tests.mi_core.report.conftest import BARE, verdict_as_json

A, B, C = "a" * 64, "b" * 64, "c" * 64


def estimate(low: float) -> dict[str, Any]:
    return {"value": low + 0.05, "ci95": [low, low + 0.1], "n": 120}


def validity(attack: float, blind: float, delta: float, **settled: Any) -> dict[str, Any]:
    lows = {"attack_auc": attack, "blind_auc": blind, "control_auc": 0.4, "delta_auc": delta, "delta_control_auc": 0.1}
    found = {name: Estimate.from_json(estimate(low)) for name, low in lows.items()}
    return verdict_as_json(Validity(**found, **{"trained": True, **settled}))


def report(**parts: Any) -> dict[str, Any]:
    row = {"attack": "lpla", "target": "target", "output": "backbone", "reference": "known", "seed": 0}
    row |= {"n_member": 60, "n_nonmember": 60, "threshold": 0.5, "auc": estimate(0.6), "tpr_at_fpr": {}}
    primary = row | {"primary": True}
    return BARE | {
        "name": "small",
        "created": "2026-01-01T00:00:00+00:00",
        "config_sha256": A,
        "versions": {"encoder-audit": "0.1.0"},
        "attacks": [primary | {"epoch": epoch} for epoch in (10, 20)] + [row | {"attack": "other"}],
        "validity": validity(0.8, 0.4, 0.1),
        **parts,
    }


def encoder(name: str = "target", kind: str = "weights") -> dict[str, Any]:
    folder = f"seed-0/encoders/{name}"
    files = [{"name": f"{folder}/encoder.json", "digest": {"sha256": C}, "annotations": {"part": "record"}}]
    files += [
        {
            "name": f"{folder}/epoch-{epoch:04d}.safetensors",
            "digest": {"sha256": f"{epoch:064d}"},
            "annotations": {"part": "weights", "epoch": epoch},
        }
        for epoch in (10, 20)
    ]
    published = {"model.bin": C} if kind == "weights" else {}
    marks = {"10": A, "20": B}
    return {"name": name, "seed": 0, "kind": kind, "fingerprints": marks, "published": published, "files": files}


def made(**parts: Any) -> dict[str, Any]:
    roles = {"target-member": {"n": 60, "sha256": A}}
    plan = {"output": "backbone", "threshold": "fitted", "by": "choice", "factor": 2.0, "nonce": {"from": "seed"}}
    lines = [
        {"event": "roles", "time": "2026", "previous": "0" * 64, "sha256": A, "roles": {"0": roles}},
        {"event": "plan", "time": "2026", "previous": A, "sha256": B, **plan}
        | {"primary_attack": {"attack": "lpla", "target": "target"}},
    ]
    files = [{"name": "seed-0/splits/roles.json", "digest": {"sha256": A}}]
    return layout.statement(
        typed({name: part for name, part in report(**parts).items() if part is not None}),
        registrations=lines,
        roles=[{"seed": 0, "roles": roles, "files": files, "folders": []}],
        encoders=[encoder(), encoder("shadow")],
        config={"name": "config.yaml", "digest": {"sha256": A}},
        report_file={"name": "report.json", "digest": {"sha256": B}, "parts": {"name": C}},
        results=[{"name": "report.html", "digest": {"sha256": C}}, {"name": "figures", "digest": {"dirHash": C}}],
    )


def test_it_is_an_in_toto_statement_and_satisfies_its_schema() -> None:
    found = made()
    jsonschema.validate(found, schema("statement"))
    assert (found["_type"], found["predicateType"]) == (layout.TYPE, layout.PREDICATE_TYPE)
    assert layout.read_statement(found) == (found, None)


def test_the_subject_is_the_audited_encoder_at_the_audited_epoch() -> None:
    subject, published = made()["subject"]
    assert (published["name"], published["digest"]) == ("model.bin", {"sha256": C})
    assert subject["name"] == "seed-0/encoders/target/epoch-0020.safetensors"
    assert subject["digest"] == {"sha256": f"{20:064d}"}
    assert subject["annotations"]["fingerprint"] == B


def test_the_subject_of_code_is_its_fingerprint() -> None:
    (subject,) = layout.subjects([encoder(kind="code")], {"target": "target", "epoch": 20})
    assert subject["digest"] == {"sha256": B}
    assert "epoch" not in subject["name"]


def test_it_says_the_last_epoch_of_the_primary_attack_alone() -> None:
    primary = made()["predicate"]["primary"]
    assert (primary["attack"], primary["epoch"]) == ("lpla", 20)
    assert primary["per_seed"] == [{"seed": 0, "n_member": 60, "n_nonmember": 60, "threshold": 0.5}]


def test_without_a_primary_attack_there_is_nothing_to_state() -> None:
    with pytest.raises(ConfigError, match="no primary attack"):
        layout.of_report(typed(report(attacks=[])))


def test_the_rule_in_numbers_gives_the_verdict() -> None:
    assert layout.rule(2.0) == {"text": say("rule"), "confidence": 0.95, "level": 0.01, "factor": 2.0}
    seen = set()
    for attack, blind, delta, trained in product((0.45, 0.6, 0.9), (0.45, 0.5, 0.51), (-0.01, 0.01), (True, False)):
        found = validity(attack, blind, delta, trained=trained)
        assert layout.verdict_by_rule(found) == (found["verdict"], found["reason"])
        seen.add(found["reason"])
    expected = {"robust", "untrained-references", "checks-differ", "nothing-found", "not-robust", "not-beyond-checks"}
    assert seen == expected
    assert layout.verdict_by_rule(validity(0.7, 0.9, -0.1, by="lot", p_value=0.01)) == ("leak", "by-lot")
    assert layout.verdict_by_rule(validity(0.7, 0.9, -0.1, by="lot", p_value=0.02)) == ("no-evidence", "nothing-found")
    assert layout.verdict_by_rule({"attack_auc": estimate(0.6)}) == ("undecided", "no-checks")


def test_a_run_without_control_is_stated_as_undecided() -> None:
    found = made(validity=None)["predicate"]["verdict"]
    assert found == {"verdict": "undecided"}
    assert layout.verdict_by_rule(found) == ("undecided", None)


def enveloped(content: Any, **parts: Any) -> dict[str, Any]:
    payload = base64.b64encode(json.dumps(content).encode()).decode()
    return {"payloadType": layout.PAYLOAD_TYPE, "payload": payload, "signatures": [{"sig": "", "keyid": ""}]} | parts


def test_an_envelope_is_opened_and_its_signatures_counted() -> None:
    found = made()
    assert layout.read_statement(enveloped(found)) == (found, 1)
    bundle = {"mediaType": "a bundle", "dsseEnvelope": enveloped(found, signatures=[])}
    assert layout.read_statement(bundle) == (found, 0)
    assert layout.read_statement(enveloped(found, signatures=3)) == (found, 0)


def changed(place: str, value: Any) -> dict[str, Any]:
    """The statement with another value at a dotted place; None: without it."""
    content = made()
    *above, last = place.split(".")
    inner: Any = content
    for name in above:
        inner = inner[int(name)] if isinstance(inner, list) else inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return content


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "its _type is not https://in-toto.io/Statement/v1"),
        ([], "its _type is not https://in-toto.io/Statement/v1"),
        ({}, "its _type is not https://in-toto.io/Statement/v1"),
        ({"_type": "https://in-toto.io/Statement/v1"}, "the whole: 'subject' is a required"),
        (changed("_type", "https://in-toto.io/Statement/v0.1"), "its _type is not https://in-toto.io"),
        (changed("predicateType", "https://slsa.dev/provenance/v1"), "its predicateType is not urn:encoder-audit:"),
        (changed("predicate.roles.0.seed", None), "predicate.roles.0: 'seed' is a required"),
        (changed("predicate.verdict.verdict", "innocent"), "predicate.verdict.verdict: 'innocent' is not one of"),
        (changed("predicate.verdict.delta_auc.n", True), "predicate.verdict.delta_auc.n: True is not of type"),
        (changed("predicate.verdict.delta_auc.ci95", [1, 2, 3]), "delta_auc.ci95: [1, 2, 3] is too long"),
        (changed("subject", []), "subject: [] should be non-empty"),
        (changed("predicate.config.digest.sha256", "xyz"), "predicate.config.digest.sha256: 'xyz' does not match"),
        (changed("predicate.note", "all is well"), "predicate: Additional properties are not allowed ('note'"),
        (enveloped(made(), payloadType="text/plain"), "an envelope of something else"),
        (enveloped(made(), payload="{}"), "an envelope whose payload is no JSON"),
        (enveloped(made(), payload=3), "an envelope whose payload is no JSON"),
    ],
)
def test_what_is_no_statement_is_refused_by_name(content: Any, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        layout.read_statement(content)
    assert text in str(refused.value)


def leaves(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(leaf for name, one in inner for leaf in leaves(one, (*place, name)))]


@given(st.data())
def test_every_change_is_named(data: st.DataObject) -> None:
    content, place = json.loads(json.dumps(made())), data.draw(st.sampled_from(leaves(made())[1:]))
    other = deepcopy(content)
    inner: Any = other
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = 1.5
    assert layout.differences(content, other) == [".".join(map(str, place))]
    assert layout.differences(content, deepcopy(content)) == []
    assert layout.differences({"a": 1}, {"a": True}) == ["a"]
    assert layout.differences([1], [1, 2], "x") == ["x.1"]
