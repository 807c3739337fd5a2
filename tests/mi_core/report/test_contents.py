"""report.json: the schema holds and can fail, seeds are pooled right, nothing empty or infinite is written."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest

from mi_core.checks import NumericError, ShapeError
from mi_core.records import Estimate
from mi_core.report.contents import final_rows, primary_row, schema, to_json
from mi_core.report.figures.drawing import AttackScores
from mi_core.report.model.as_json import part_as_json, part_from_json
from mi_core.report.model.attacks import AttackResult, PooledRow
from mi_core.report.pooling import bound_parts, pool_seeds
from tests.raising import refused


def rows_of(attacks: list[dict[str, Any]]) -> tuple[PooledRow, ...]:
    return pool_seeds(part_from_json(tuple[AttackResult, ...], attacks))


def errors(report: dict[str, Any]) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(schema()).iter_errors(report)]


def test_the_schema_is_valid_and_accepts_whole_reports(report: dict[str, Any], short_report: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert errors(report) == []
    assert errors(short_report) == []
    assert errors(json.loads(to_json(report))) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.pop("config_sha256"),
        lambda r: r.update(schema_version=2),
        lambda r: r.update(surprise=1),
        lambda r: r["attacks"][0].pop("auc"),
        lambda r: r["attacks"][0]["auc"].update(value=1.2),
        lambda r: r["attacks"][0]["auc"].update(value=None),
        lambda r: r["attacks"][0]["auc"].pop("n"),
        lambda r: r["attacks"][0]["auc"].update(ci95=[0.5]),
        lambda r: r["attacks"][0].pop("shadow"),
        lambda r: r["attacks"][0].update(output="pixels"),
        lambda r: r["attacks"][0]["tpr_at_fpr"].update({"1 %": r["attacks"][0]["auc"]}),
        lambda r: r["validity"].update(verdict="maybe"),
        lambda r: r["data"]["roles"]["target-member"].update(sha256="abc"),
        lambda r: r["throughput"].update(images_per_second=-1),
        lambda r: r["timings"].update(lunch=3600),
    ],
)
def test_the_schema_refuses(spoil: Any, short_report: dict[str, Any]) -> None:
    broken = copy.deepcopy(short_report)
    spoil(broken)
    assert errors(broken)


def test_missing_parts_are_absent_and_numbers_finite() -> None:
    refused(TypeError, r"report\.data\.x is None .* leave a missing part out", to_json, {"data": {"x": None}})
    refused(NumericError, r"report\.a\[1\] = nan", to_json, {"a": [0.5, math.nan]})


def test_pooling_is_by_attack_output_reference_and_epoch(report: dict[str, Any]) -> None:
    rows = rows_of(report["attacks"])
    assert len(rows) == 4 * 2 * 4
    lead = next(row for row in rows if row.primary and row.epoch == 400)
    mine = [
        entry
        for entry in report["attacks"]
        if (entry["attack"], entry["output"], entry["epoch"]) == ("encodermi-v", "projection", 400)
    ]
    values = [entry["auc"]["value"] for entry in mine]
    assert lead.seeds == (0, 1, 2)
    assert lead.auc.value == pytest.approx(np.mean(values))
    assert lead.auc.sd == pytest.approx(np.std(values, ddof=1))
    assert lead.auc.n == sum(entry["auc"]["n"] for entry in mine)
    assert lead.tpr_at_fpr["0.01"].false_positives == sum(entry["tpr_at_fpr"]["0.01"]["fp"] for entry in mine)
    assert lead.queries is not None
    assert lead.queries.evaluation == sum(entry["queries"]["evaluation"] for entry in mine)
    halves = [entry["auc"]["value"] - entry["auc"]["ci95"][0] for entry in mine]
    assert lead.auc.value - lead.auc.low == pytest.approx(math.sqrt(sum(h * h for h in halves)) / 3)


def test_one_unsupported_or_missing_seed_marks_the_pooled_row(report: dict[str, Any]) -> None:
    pair = copy.deepcopy([entry for entry in report["attacks"] if entry["epoch"] == 400][:1])
    pair.append({**copy.deepcopy(pair[0]), "seed": 7})
    pair[0]["tpr_at_fpr"]["0.1"]["supported"] = False
    del pair[1]["precision"], pair[1]["tpr_at_fpr"]["0.01"]
    (row,) = rows_of(pair)
    assert row.tpr_at_fpr["0.1"].supported is False
    assert row.precision is None
    assert "0.01" not in row.tpr_at_fpr


def test_final_and_primary_rows(report: dict[str, Any]) -> None:
    rows = rows_of(report["attacks"])
    assert {row.epoch for row in final_rows(rows)} == {400}
    assert len(final_rows(rows)) == 8
    lead = primary_row(rows)
    assert lead is not None
    assert (lead.attack, lead.output, lead.epoch) == ("encodermi-v", "projection", 400)
    assert primary_row([replace(row, primary=False) for row in rows]) is None


def test_the_same_result_twice_is_not_two_seeds(report: dict[str, Any]) -> None:
    """Two entries of a config may come to the same: the interval must not shrink for it."""
    once = rows_of(report["attacks"])
    assert rows_of([entry for entry in report["attacks"] for _ in range(2)]) == once


def result(attack: str, seed: int = 0, **more: Any) -> AttackResult:
    told: dict[str, Any] = {"target": "target", "output": "backbone", "reference": "known", "epoch": 3} | more
    auc = Estimate(0.5, 0.4, 0.6, 100)
    return AttackResult(attack=attack, seed=seed, n_member=50, n_nonmember=50, auc=auc, tpr_at_fpr={}, **told)


def test_seeds_are_pooled_attacks_and_targets_are_not() -> None:
    measured = [
        (result("lpla"), Estimate(0.52, 0.48, 0.56, 100)),
        (result("lpla", settings="p = 1"), Estimate(0.55, 0.49, 0.61, 100)),
        (result("lpla", target="target+noise"), Estimate(0.5, 0.46, 0.54, 100)),
        (result("lpla", 1), Estimate(0.50, 0.46, 0.54, 100)),
        (result("lpla", 1, settings="p = 1"), Estimate(0.53, 0.47, 0.59, 100)),
    ]
    plain, noisy = bound_parts(measured, planned={"target": 2}, bound=0.55)
    reach = 0.04 / 2**0.5  # of two independent seeds
    assert [row.settings for row in plain.limits] == [None, "p = 1"]
    assert (plain.limits[0].low, plain.limits[0].high) == pytest.approx((0.51 - reach, 0.51 + reach))
    assert (plain.at_most, plain.limits[0].n) == (pytest.approx(0.54 + 0.06 / 2**0.5), 200)
    assert (plain.attack, plain.attacks, plain.planned) == ("lpla, p = 1", 2, 2)
    assert (plain.outcome, noisy.outcome, noisy.planned) == ("cannot tell", "met", None)
    assert plain.outcome_of(0.6) == "met" and plain.outcome_of(0.501) == "cannot tell"
    again = bound_parts(measured, overlap=1.0)[0]
    assert again.limits[0].high == pytest.approx(0.51 + 0.04)
    assert (again.bound, again.outcome, again.registered) == (None, None, None)
    jsonschema.validate(part_as_json((plain, again)), schema()["properties"]["bounds"] | {"$defs": schema()["$defs"]})


def test_scores_are_checked() -> None:
    def made(score: list[float], member: list[bool]) -> AttackScores:
        return AttackScores("a", "t", "backbone", "shadow", 0, np.array(score), np.array(member))

    refused(ShapeError, "membership of the scores of a on t", made, [0.1, 0.2], [True])
    refused(ShapeError, "need members and non-members, got 2 of 2", made, [0.1, 0.2], [True, True])
    refused(NumericError, "row 1", made, [0.1, math.inf], [True, False])
