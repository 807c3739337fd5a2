"""Plans of shipped configs against the rules of their threat models, written down here by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mi_core.features.embedding import Embedding, LpNorm
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.validity.verdict import CLASSIFIED
from pipelines.attack.inference import inference_path, map_path
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import DefendedConfig, TrainedConfig
from pipelines.extract.division.passes import grouped
from pipelines.plan.items import Beside, Inference, Judge, Plan, Query, Reading, Role, items_in
from pipelines.plan.load import load, parse
from pipelines.plan.rules import ThreatModel
from pipelines.run.folder import RunFolder, SeedFolder
from pipelines.run.points import Run, points
from pipelines.tune.trial import Trial
from tests.conftest import small_config
from tests.pipelines.undrawn import asked_in, plan_in

ROOT = Path(__file__).parents[3]
AUDITED = ("target-member", "target-nonmember")
GIVEN = ("candidate", "control")
KNOWN = ("known-member", "known-nonmember")


class Read(NamedTuple):
    """A reading in short: encoder, epoch, output, measures, roles, and roles that are left out."""

    encoder: str
    epoch: int
    output: str
    measures: tuple[str, ...]
    roles: tuple[str, ...]
    without: tuple[str, ...] = ()


def shipped(name: str) -> RunConfig:
    """A config that is shipped; its images are somewhere."""
    paths = {"cifar10": ["pool"], "clip-audit": ["candidates", "controls"], "audit-encoder": ["candidates", "controls"]}
    return load(str(ROOT / "configs" / f"{name}.yaml"), [f"data.sources.{one}.path=x" for one in paths.get(name, ())])


def plan_of(name: str) -> Plan:
    return plan_in(shipped(name))


def names(roles: tuple[Role, ...]) -> tuple[str, ...]:
    return tuple(role.name for role in roles)


def short(reading: Reading) -> Read:
    first = reading.queries[0]
    assert {query.encoder for query in reading.queries} == {first.encoder}
    assert {(query.epoch, query.output) for query in reading.queries} == {(first.epoch, first.output)}
    measures = tuple(dict.fromkeys(query.measure.name for query in reading.queries))
    samples = reading.samples
    return Read(first.encoder.name, first.epoch, first.output, measures, names(samples.roles), names(samples.without))


def judge_of(plan: Plan, name: str) -> Judge:
    (judge,) = (judge for judge in plan.judges if judge.name == name)
    return judge


def recipes_of(reading: Reading) -> set[tuple[str, int] | None]:
    """Recipe and number of the views of a reading; None: images as they are."""
    return {
        None if query.views is None or query.views.recipe is None else (query.views.recipe.name, query.views.number)
        for query in reading.queries
    }


def beside_of(judge: Judge) -> list[tuple[Read, Read | None, bool]]:
    """What is read of the references, what the attack is fitted on there, and whether they are trained."""

    def fitted(other: Beside) -> Read | None:
        return None if other.fit is None else short(other.fit.readings[0])

    return [(short(other.reading), fitted(other), other.trained) for other in judge.score.beside]


PAIRS, NORM, PLAIN = ("pairwise:cosine",), ("norm:2",), ("embedding",)


def test_quickstart_fits_on_the_shadow_and_compares_with_it() -> None:
    plan = plan_of("quickstart")
    assert names(plan.audited) == AUDITED
    assert [encoder.name for encoder in plan.encoders] == ["target", "shadow"]
    assert [names(encoder.members) for encoder in plan.encoders] == [("target-member",), ("shadow-member",)]
    attacks = ["encodermi-t-0", "encodermi-v-1", "encodermi-s-2", "lpla-3"]
    assert [judge.name for judge in plan.judges] == [
        f"{attack}-{output}-0400" for attack in attacks for output in ("projection", "backbone")
    ]
    for output in ("projection", "backbone"):
        for attack in attacks[:3]:
            judge = judge_of(plan, f"{attack}-{output}-0400")
            fit = judge.score.fit
            shadow = Read("shadow", 400, output, PAIRS, ("shadow-member", "shadow-nonmember"))
            assert [short(reading) for reading in fit.readings] == [shadow]
            assert (names(fit.known_members), fit.audited, fit.by_halves) == (("shadow-member",), False, False)
            assert short(judge.score.reading) == Read("target", 400, output, PAIRS, AUDITED)
            assert beside_of(judge) == [(Read("shadow", 400, output, PAIRS, AUDITED), None, True)]
            for reading in (fit.readings[0], judge.score.reading, judge.score.beside[0].reading):
                assert recipes_of(reading) == {("simclr", 10)}
                assert (reading.drawn, reading.used) == (10, 10)
        lpla = judge_of(plan, f"lpla-3-{output}-0400")
        assert [short(one) for one in lpla.score.fit.readings] == [Read("target", 400, output, NORM, KNOWN)]
        assert names(lpla.score.fit.known_members) == ("known-member",)
        assert short(lpla.score.reading) == Read("target", 400, output, NORM, AUDITED, KNOWN)
        own = Read("shadow", 400, output, NORM, KNOWN)
        assert beside_of(lpla) == [(Read("shadow", 400, output, NORM, AUDITED), own, True)]
        assert recipes_of(lpla.score.reading) == {None}
    for judge in plan.judges:
        assert (judge.by, judge.last, judge.repeats, judge.fold) == ("lot", True, 1, "all")
        assert (judge.known, judge.score.calibration, judge.score.canaries) == (None, None, None)
    assert [judge.name for judge in plan.judges if judge.primary] == ["encodermi-t-0-projection-0400"]
    assert plan.blind is not None and names(plan.blind.audited) == AUDITED
    assert plan.semantic is None  # by lot it says nothing


def test_parts_are_read_of_the_whole_role_that_is_queried_anyway() -> None:
    lpla = judge_of(plan_of("quickstart"), "lpla-3-projection-0400")
    (fitted,) = lpla.score.fit.readings
    assert [names(query.samples.roles) for query in fitted.queries] == [("target-member",), ("target-nonmember",)]
    assert set(fitted.queries) == set(lpla.score.reading.queries)


def test_each_encoder_is_asked_only_what_is_needed() -> None:
    plan = plan_of("quickstart")
    pairs, norm, plain = PairwiseSimilarity(), LpNorm(), Embedding()
    assert asked_in(plan) == {
        ("target", "projection"): {role: {pairs, norm} for role in AUDITED},
        ("target", "backbone"): {
            **{role: {pairs, norm, plain} for role in AUDITED},  # the bank of utility, and images that it is tested on
            "shadow-member": {plain},
            "shadow-nonmember": {plain},
        },
        ("shadow", "projection"): {
            **{role: {pairs, norm} for role in AUDITED},  # the control
            "shadow-member": {pairs},  # LpLA is not fitted on the shadow
            "shadow-nonmember": {pairs},
        },
        ("shadow", "backbone"): {
            **{role: {pairs, norm, plain} for role in AUDITED},
            "shadow-member": {pairs, plain},
            "shadow-nonmember": {pairs, plain},
        },
    }
    of_target = [one for one in grouped(items_in(plan, Query), "store") if one.encoder == "target"]
    (attacked,) = (one for one in of_target if "target-member" in one.roles)  # each image is sent once for both outputs
    assert (set(attacked.outputs), attacked.views, set(attacked.roles)) == ({"backbone", "projection"}, 10, {*AUDITED})
    (utility,) = {one.encoder.name: one for one in plan.utilities if one.encoder.name == "target"}.values()
    assert utility.bank is not None and utility.test is not None
    assert short(utility.bank) == Read("target", 400, "backbone", PLAIN, ("target-member",))
    test = ("target-nonmember", "shadow-member", "shadow-nonmember")
    assert short(utility.test) == Read("target", 400, "backbone", PLAIN, test)
    assert (utility.neighbours, utility.trained, utility.unseen) == ((10,), None, None)


def test_cifar10_attacks_every_checkpoint_beside_the_same_of_the_shadow() -> None:
    config = shipped("cifar10")
    plan = plan_in(config, seed=2)
    assert {judge.epoch for judge in plan.judges} == {60, 115, 230, 460}
    assert len(plan.judges) == 4 * 2 * 4
    for judge in plan.judges:
        read = [judge.score.reading, *judge.score.fit.readings, *(other.reading for other in judge.score.beside)]
        assert {short(reading).epoch for reading in read} == {judge.epoch}
        assert judge.references == ("shadow",)
        assert judge.last == (judge.epoch == 460)
        assert judge.seed == 2
    primary = {judge.name for judge in plan.judges if judge.primary}
    assert primary == {f"encodermi-t-0-projection-{epoch:04d}" for epoch in (60, 115, 230, 460)}
    utilities = [(one.encoder.name, one.epoch) for one in plan.utilities]
    assert utilities == [(name, epoch) for name in ("target", "shadow") for epoch in (60, 115, 230, 460)]
    assert {names(one.test.samples.roles) for one in plan.utilities if one.test} == {("downstream-test",)}
    assert [names(one.bank.samples.roles) for one in plan.utilities[::4] if one.bank] == [
        ("target-member",),
        ("shadow-member",),
    ]
    last = plan_in(config.model_copy(update={"checkpoints": "last"}))
    assert {judge.epoch for judge in last.judges} == {460}


@pytest.mark.parametrize(
    ("name", "output", "views"), [("clip-audit", "projection", "clip"), ("audit-encoder", "backbone", "simclr")]
)
def test_an_encoder_from_elsewhere_is_compared_with_references_trained_on_halves(
    name: str, output: str, views: str
) -> None:
    plan = plan_of(name)
    assert names(plan.audited) == GIVEN
    references = [f"reference-{number}" for number in range(4)]
    assert [encoder.name for encoder in plan.encoders] == ["target", *references]
    halves = [encoder.settings for encoder in plan.encoders[1:]]
    assert [one.half for one in halves if isinstance(one, TrainedConfig)] == [0, 1, 2, 3]
    assert {names(encoder.members) for encoder in plan.encoders[1:]} == {GIVEN}
    assert names(plan.encoders[0].members) == ()  # nobody knows
    (judge,) = plan.judges
    assert (judge.by, judge.primary, judge.references) == ("choice", True, tuple(references))
    known = ("known-nonmember",)
    assert [short(one) for one in judge.score.fit.readings] == [Read("target", 0, output, PAIRS, known)]
    assert (names(judge.score.fit.known_members), judge.score.fit.by_halves) == ((), False)
    assert short(judge.score.reading) == Read("target", 0, output, PAIRS, GIVEN, known)
    assert beside_of(judge) == [
        (Read(one, 40, output, PAIRS, GIVEN), Read(one, 40, output, PAIRS, known), True) for one in references
    ]
    assert judge.score.calibration is not None
    assert short(judge.score.calibration) == Read("target", 0, output, PAIRS, known)
    for reading in items_in(plan.judges[0], Reading):
        assert recipes_of(reading) == {(views, 10)}  # of the target: she has no shadow
    assert plan.semantic is not None
    assert [short(one) for one in plan.semantic.readings] == [Read(one, 40, output, PLAIN, GIVEN) for one in references]
    assert {one.samples.count for one in plan.semantic.readings} == {CLASSIFIED}
    assert plan.semantic.recipe.name == views
    assert all(one.bank is None and one.trained is None for one in plan.utilities)  # no classes, no labelled images


def test_halves_depend_on_the_nonce_of_the_audit_and_other_trainings_do_not() -> None:
    config = shipped("audit-encoder")
    nonced = config.model_copy(update={"queries": config.queries.model_copy(update={"nonce": "dice"})})
    plain, diced = plan_in(config), plan_in(nonced)
    assert [encoder.nonce for encoder in diced.encoders] == [None, *["dice"] * 4]
    assert [one.key == other.key for one, other in zip(plain.encoders, diced.encoders, strict=True)] == [
        True, False, False, False, False,
    ]  # fmt: skip
    assert {query.protocol.nonce for query in items_in(diced, Query)} == {"dice"}


@pytest.mark.parametrize(("name", "epoch"), [("shadows-digits", 200), ("memorisation-digits", 100)])
def test_attacks_per_sample_are_fitted_on_all_halves_at_once(name: str, epoch: int) -> None:
    plan = plan_of(name)
    halves = [f"half-{number}" for number in range(8)]
    population = {"rmia": ("known-nonmember",)}
    for judge in plan.judges:
        fit, beside = judge.score.fit, population.get(judge.attack.attack)
        fitted = [Read(one, epoch, "projection", PAIRS, AUDITED) for one in halves]
        assert [short(one) for one in fit.readings] == fitted
        assert (fit.by_halves, fit.known_members, fit.audited) == (True, (), False)
        assert short(judge.score.reading) == Read("target", epoch, "projection", PAIRS, AUDITED)
        assert beside_of(judge) == [(Read("shadow", epoch, "projection", PAIRS, AUDITED), None, True)]
        read = [*fit.readings, judge.score.reading, judge.score.beside[0].reading]
        assert [None if one.population is None else names(one.population.samples.roles) for one in read] == (
            [beside] * 10
        )
        assert all(one.population is None or one.population.encoder == one.encoder for one in read)
        assert (judge.known, judge.score.calibration, judge.by) == (None, None, "lot")
    if name == "shadows-digits":
        online, offline = plan.judges[:2]
        assert online.score.fit.readings == offline.score.fit.readings  # nothing is asked twice
        assert online.score.fit != offline.score.fit


@pytest.mark.parametrize("shadows", [1, 2, 4])
def test_a_fit_on_one_shadow_of_halves_is_one_by_halves(shadows: int) -> None:
    point = next(one.config for one in points(shipped("shadows-digits"), RunFolder("x")) if one.label == str(shadows))
    for judge in plan_in(point).judges:
        fit = judge.score.fit
        assert [reading.encoder.name for reading in fit.readings] == [f"half-{number}" for number in range(shadows)]
        assert fit.by_halves


def test_coins_of_canaries_are_guessed_on_every_encoder_that_saw_them() -> None:
    plan = plan_of("dp-audit")
    targets = ["target", "target+honest", "target+noise-forgotten"]
    assert [judge.name for judge in plan.judges] == [f"metric-loss-{position}-logits-0020" for position in range(3)]
    for judge, target in zip(plan.judges, targets, strict=True):
        assert judge.score.canaries is not None
        assert short(judge.score.canaries) == Read(target, 20, "logits", PLAIN, ("canary-in", "canary-out"))
        assert short(judge.score.fit.readings[0]) == Read(target, 20, "logits", PLAIN, KNOWN)
        assert short(judge.score.reading) == Read(target, 20, "logits", PLAIN, AUDITED, KNOWN)
        assert judge.references == ("shadow",)
        assert judge.score.reading.labelled
    encoders = {encoder.name: encoder for encoder in plan.encoders}
    assert names(encoders["target"].members) == ("target-member", "canary-in")
    assert encoders["target"].start == encoders["shadow"].start == encoders["backbone"]
    for name in targets[1:]:
        assert isinstance(encoders[name].settings, DefendedConfig)
        assert encoders[name].start == encoders["target"]
    sent = {role for query in items_in(plan, Query) for role in names(query.samples.roles)}
    assert {"canary-in", "canary-out"} <= sent
    asked = asked_in(plan)
    assert {encoder for (encoder, _), roles in asked.items() if "canary-in" in roles} == set(targets)
    (utility,) = (one for one in plan.utilities if one.encoder.name == "target")
    assert utility.trained is not None and utility.unseen is not None
    assert names(utility.trained.samples.roles) == ("target-member",)  # canaries may have a wrong class
    assert names(utility.unseen.samples.roles) == ("downstream-test",)


def test_an_encoder_after_unlearning_is_compared_with_one_that_never_saw_the_images() -> None:
    plan = plan_of("forget-digits")
    for judge, (target, epoch) in zip(plan.judges, [("before", 400), ("retrained", 800), ("tuned", 1)], strict=True):
        known = ("known-nonmember",)
        assert short(judge.score.reading) == Read(target, epoch, "projection", PAIRS, AUDITED, known)
        assert short(judge.score.fit.readings[0]) == Read(target, epoch, "projection", PAIRS, known)
        control = Read("never", 400, "projection", PAIRS, AUDITED)  # it has no checkpoint of that epoch: its last
        assert beside_of(judge) == [(control, control._replace(roles=known), True)]
        assert (judge.by, judge.score.calibration) == ("lot", None)
    assert {names(one.bank.samples.roles) for one in plan.utilities if one.bank} == {("other-member",)}
    assert {names(one.test.samples.roles) for one in plan.utilities if one.test} == {("kept-member",)}
    tuned = next(encoder for encoder in plan.encoders if encoder.name == "tuned")
    assert tuned.start == plan.encoders[0]


def test_defended_encoders_are_attacked_through_defended_shadows() -> None:
    plan = plan_of("tune-digits")
    assert [encoder.name for encoder in plan.encoders] == ["target", "shadow", "target+noise", "shadow+noise"]
    adaptive = judge_of(plan, "encodermi-t-2-projection-0400")
    assert (adaptive.target.name, adaptive.references) == ("target+noise", ("shadow+noise",))
    assert adaptive.score.fit.readings[0].encoder.name == "shadow+noise"
    on_known = judge_of(plan, "lpla-3-projection-0400")
    assert (on_known.target.name, on_known.references) == ("target+noise", ("shadow",))
    assert {judge.position for judge in plan.judges if judge.primary} == {0}


def test_a_trial_judges_one_half_of_the_images_and_has_no_controls() -> None:
    run = Run(shipped("tune-digits"), RunFolder("runs/none"))
    for fold in ("search", "final"):
        plan = plan_in(Trial(run, "target+noise", {"defenses.0.settings.scale": 1.0}, fold).config())
        assert {(judge.fold, judge.references, judge.target.name) for judge in plan.judges} == {
            (fold, (), "target+noise")
        }
        assert (plan.blind, plan.semantic) == (None, None)
        assert [one.encoder.name for one in plan.utilities] == ["target+noise"]
        (utility,) = plan.utilities
        assert utility.bank is not None and utility.test is not None
        assert (utility.bank.samples.fold, utility.test.samples.fold) == ("all", fold)
        for judge in plan.judges:
            assert {reading.samples.fold for reading in judge.score.fit.readings} == {"all"}  # it learns from all
            assert {query.samples.fold for query in items_in(judge, Query)} == {"all"}  # and all are queried once


def with_calibration(*attacks: dict[str, Any]) -> Plan:
    raw = small_config(attacks=list(attacks))
    raw["data"]["roles"]["calibration-member"] = {"from": "digits", "count": 40}
    raw["encoders"]["target"]["train_on"] = ["target-member", "calibration-member"]
    raw["encoders"]["shadow"]["train_on"] = ["shadow-member"]
    raw["encoders"]["half"] = {"like": "shadow", "train_on": ["target-member", "target-nonmember"], "halves": 2}
    return plan_in(parse(raw, "x"))


def test_members_that_no_attack_is_fitted_on_tell_the_true_positive_rate_at_the_last_checkpoint() -> None:
    plan = with_calibration(
        {"attack": "encodermi-t"},
        {"attack": "lpla", "reference": "known"},
        {"attack": "lira", "reference": "half"},
        {"attack": "combined", "reference": "audited", "grid": "3x1"},
    )
    for judge in plan.judges:
        told = judge.attack.attack in ("encodermi-t", "lpla") and judge.epoch == 3
        assert (judge.known is not None) == told, judge.name
        if judge.known is not None:
            assert names(judge.known.samples.roles) == ("calibration-member",)
            assert judge.known.encoder == judge.target


def test_an_attack_on_the_audited_samples_counts_the_candidates_as_members() -> None:
    plan = with_calibration({"attack": "combined", "reference": "audited", "grid": "3x1"})
    for judge in plan.judges:
        fit = judge.score.fit
        assert (fit.audited, names(fit.known_members)) == (True, ("target-member",))
        assert fit.readings == (judge.score.reading,)
        (other,) = judge.score.beside
        assert other.fit is not None and other.fit.readings == (other.reading,)


def test_an_attribute_is_inferred_of_images_apart_from_those_that_are_known() -> None:
    raw = small_config(attribute_inference=[{"attribute": "digit", "target": "target", "test": ["target-nonmember"]}])
    raw["data"]["attributes"] = {"digit": {"from": "class", "values": list(range(10))}}
    plan = plan_in(parse(raw, "x"))
    assert [(item.epoch, item.last) for item in plan.inferences] == [(1, False), (3, True)]
    for item in plan.inferences:
        assert short(item.known) == Read("target", item.epoch, "backbone", PLAIN, ("target-member",))
        assert short(item.tested) == Read("target", item.epoch, "backbone", PLAIN, ("target-nonmember",))
        assert item.values == 10


def test_a_shadow_of_another_algorithm_tells_nothing_but_crops() -> None:
    raw = small_config(attacks=[{"attack": "encodermi-t"}])
    raw["encoders"]["shadow"] = {
        "objective": "supervised", "backbone": "conv4", "train_on": "shadow-member", "epochs": 3, "batch_size": 30,
        "parameters": {"classes": 10},
    }  # fmt: skip
    raw["queries"] |= {"outputs": ["backbone"]}
    (query, *_) = plan_in(parse(raw, "x")).judges[-1].score.reading.queries
    assert query.views is not None and query.views.recipe is not None
    settings = query.views.recipe.settings
    assert (settings["flip"], settings["grayscale"], settings["jitter_probability"]) == (0, 0, 0)
    other = plan_in(parse(small_config(attacks=[{"attack": "encodermi-t"}]), "x")).judges[-1]
    assert other.score.reading.queries[0].views != query.views


def test_resolving_takes_no_ray_no_torch_of_its_own_and_no_folder() -> None:
    """In a process of its own: what a config imports is there, and nothing is read or written."""
    code = """
import sys
from pipelines.plan.load import load
from pipelines.plan.resolve import resolve, roles_in_config
config = load("quickstart")
before = set(sys.modules)
def forbid(event, arguments):
    if event in ("open", "os.mkdir", "os.listdir", "os.scandir", "socket.connect"):
        raise RuntimeError(f"{event} {arguments}")
sys.addaudithook(forbid)
plan = resolve(config, 0, roles_in_config(config))
print(len(plan.judges), plan.key[:4] == resolve(config, 0, roles_in_config(config)).key[:4], "ray" in sys.modules,
      sorted(set(sys.modules) - before))
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.split(maxsplit=3) == ["8", "True", "False", "[]\n"], ran.stderr


def test_the_verdict_rests_on_an_output_that_its_attack_reads() -> None:
    attacks = [{"attack": "encodermi-t", "outputs": ["projection"]}, {"attack": "lpla", "reference": "known"}]
    raw = small_config(attacks=attacks, queries={"views": 2, "outputs": ["backbone", "projection"]})
    assert ThreatModel(parse(raw, "x")).primary_output == "projection"
    assert ThreatModel(parse(raw | {"validity": {"attack": 1}}, "x")).primary_output == "backbone"


def test_other_samples_have_another_map_and_other_settings_another_result() -> None:
    """Files of inferred attributes."""

    def inference(**settings: Any) -> Inference:
        chosen = {"attribute": "digit", "target": "target", "test": ["target-nonmember"]}
        raw = small_config(attribute_inference=[chosen | settings], checkpoints="last")
        raw["data"]["attributes"] = {"digit": {"from": "class", "values": list(range(10))}}
        (item,) = plan_in(parse(raw, "small.yaml")).inferences
        return item

    folder = SeedFolder("run/seed-0", 0)
    first, deeper, other = inference(), inference(layers=5), inference(test=["shadow-nonmember"])
    assert map_path(first, folder) == map_path(deeper, folder) != map_path(other, folder)
    assert len({inference_path(item, folder) for item in (first, deeper, other)}) == 3
