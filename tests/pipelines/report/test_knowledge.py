"""What follows from a config of many attacks: who is queried how, what an attacker knows, sweeps spelled out."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import yaml

from mi_core.features.patch_similarity import CenterSimilarity
from mi_core.report.model.attacks import Knowledge
from pipelines.config.reading.fields import with_changes
from pipelines.config.run_config import RunConfig
from pipelines.errors import UserError
from pipelines.plan.load import load, parse
from pipelines.plan.resolve import queries_in
from pipelines.plan.rules import ThreatModel
from pipelines.report.attacks import knowledge
from pipelines.run.folder import RunFolder
from pipelines.run.points import points
from tests.conftest import small_config

ROLES = ("target-member", "target-nonmember", "shadow-member", "shadow-nonmember", "other-member", "other-nonmember")


def wide() -> dict[str, Any]:
    """Shadows that differ from the target in one thing each."""
    config = small_config()
    config["data"]["roles"] = {
        role: {"from": "digits", "count": 60, "classes": [5, 6, 7, 8, 9] if "other" in role else [0, 1, 2, 3, 4]}
        for role in ROLES
    }
    shadow = config["encoders"]["shadow"]
    config["encoders"] |= {
        "other-data": {**shadow, "train_on": "other-member"},
        "other-network": {"like": "shadow", "backbone": "resnet8"},
        "other-algorithm": {"like": "shadow", "objective": "supervised", "parameters": {"classes": 10}},
        "other-views": {"like": "shadow", "augmentation": {"crop_scale": [0.5, 1.0]}},
    }
    config["queries"]["outputs"] = ["backbone"]
    names = ["shadow", "other-data", "other-network", "other-algorithm", "other-views"]
    config["attacks"] = [{"attack": ["encodermi-t", "patch-similarity"], "reference": names}]
    return config


def parsed(**changes: Any) -> RunConfig:
    return parse(wide() | changes, "wide.yaml")


def refused(config: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        parse(config, "wide.yaml")
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_lists_stand_for_all_combinations() -> None:
    config = parsed()
    assert [(attack.attack, attack.reference) for attack in config.attacks] == [
        (attack, reference)
        for attack in ("encodermi-t", "patch-similarity")
        for reference in ("shadow", "other-data", "other-network", "other-algorithm", "other-views")
    ]


def test_what_the_attacker_knows_is_read_off_the_encoders() -> None:
    config = parsed()
    known = {attack.reference: knowledge(ThreatModel(config), attack) for attack in config.attacks}
    everything = Knowledge(distribution=True, architecture=True, algorithm=True)
    assert known["shadow"] == known["other-views"] == everything
    assert known["other-data"] == replace(everything, distribution=False)
    assert known["other-network"] == replace(everything, architecture=False)
    assert known["other-algorithm"] == replace(everything, algorithm=False)


def test_views_are_those_of_the_attackers_shadow_and_crops_alone_when_the_algorithm_is_unknown() -> None:
    config = parsed()
    recipes = {attack.reference: ThreatModel(config).recipe_of(attack) for attack in config.attacks}
    assert recipes["shadow"].settings["crop_scale"] == [0.75, 1.0] or recipes["shadow"].settings["crop_scale"] == (
        0.75,
        1.0,
    )
    assert tuple(recipes["other-views"].settings["crop_scale"]) == (0.5, 1.0)  # figure 3: the inferrer keeps her views
    unknown = recipes["other-algorithm"].settings
    assert tuple(unknown["crop_scale"]) == (0.2, 1.0)
    assert not any(unknown[name] for name in ("flip", "jitter_probability", "grayscale", "blur", "rotation"))
    by_recipe = {
        tuple(query.views.recipe.settings["crop_scale"])
        for query in queries_in(config)
        if query.encoder.name == "target" and query.views is not None and query.views.recipe is not None
    }
    assert by_recipe == {(0.75, 1.0), (0.5, 1.0), (0.2, 1.0)}  # the target is queried in each of these ways


def test_what_needs_no_views_is_asked_once_however_many_recipes_there_are() -> None:
    config = parsed()
    on_target = [query for query in queries_in(config) if query.encoder.name == "target" and query.output == "backbone"]
    recipes = {query.views.key for query in on_target if query.views is not None}
    assert len(recipes) == 3
    roles = [
        query.samples.roles[0].name for query in on_target if query.measure == CenterSimilarity() and query.epoch == 3
    ]
    assert sorted(roles) == ["target-member", "target-nonmember"]


def test_a_shadow_is_fitted_on_what_it_was_trained_on() -> None:
    config = parsed()
    roles = {attack.reference: ThreatModel(config).reference_roles(attack) for attack in config.attacks}
    assert roles["shadow"] == ("shadow-member", "shadow-nonmember")
    assert roles["other-data"] == ("other-member", "other-nonmember")
    raw = wide()
    raw["data"]["roles"]["stranger"] = {"from": "digits", "count": 60}
    raw["encoders"]["other-data"]["train_on"] = "stranger"
    assert "was trained on 'stranger': call it x-member, and give x-nonmember" in refused(raw)


def test_halves_stand_for_several_encoders() -> None:
    raw = wide()
    raw["encoders"]["half"] = {"like": "target", "train_on": ["target-member", "target-nonmember"], "halves": 4}
    raw["attacks"] = [{"attack": "encodermi-t"}, {"attack": "lira", "reference": "half"}]
    config = parse(raw, "wide.yaml")
    assert [name for name in config.encoders if name.startswith("half")] == ["half-0", "half-1", "half-2", "half-3"]
    assert ThreatModel(config).shadows_of(config.attacks[1]) == ("half-0", "half-1", "half-2", "half-3")
    assert ThreatModel(config).reference_roles(config.attacks[1]) == ("target-member", "target-nonmember")
    assert ThreatModel(config).references_of(config.attacks[1]) == ("shadow",)  # those of halves saw members
    assert parse(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json", by_alias=True))), "again") == config


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"halves": 3}, "half.halves = 3, allowed: an even number"),
        ({"train_on": "target-member"}, "train its encoders on ['target-member', 'target-nonmember']"),
    ],
)
def test_impossible_halves(changes: dict[str, Any], expected: str) -> None:
    raw = wide()
    half = {"like": "target", "train_on": ["target-member", "target-nonmember"], "halves": 4}
    raw["encoders"]["half"] = half | changes
    raw["attacks"] = [{"attack": "encodermi-t"}, {"attack": "lira", "reference": "half"}]
    assert expected in refused(raw)


def halved(**attack: Any) -> dict[str, Any]:
    """Four shadows on halves, with a population apart."""
    raw = small_config(attacks=[{"attack": "rmia", "reference": "half"} | attack])
    raw["data"]["roles"]["known-nonmember"] = {"from": "digits", "count": 30}
    raw["encoders"]["half"] = {"like": "target", "train_on": ["target-member", "target-nonmember"], "halves": 4}
    return raw


def test_an_attack_takes_the_first_shadows_and_asks_no_others() -> None:
    config = parse(halved(shadows=3), "halved.yaml")
    assert ThreatModel(config).shadows_of(config.attacks[0]) == ("half-0", "half-1", "half-2")
    asked: dict[str, set[str]] = {}
    for query in queries_in(config):
        if query.views is not None:
            asked.setdefault(query.encoder.name, set()).add(query.samples.roles[0].name)
    roles = {"target-member", "target-nonmember", "known-nonmember"}
    assert asked == dict.fromkeys(("target", "shadow", "half-0", "half-1", "half-2"), roles)


def test_a_sweep_over_shadows_trains_nothing_anew() -> None:
    raw = halved()
    raw["attacks"] = [*raw["attacks"], {"attack": "lira", "reference": "half"}, {"attack": "encodermi-t"}]
    raw["sweep"] = {"attacks.*.shadows": [1, 2]}
    config = parse(raw, "halved.yaml")
    for point, count in zip(points(config, RunFolder("x")), (1, 2), strict=True):
        assert point.config.encoders == config.encoders
        assert [attack.shadows for attack in point.config.attacks] == [count, count, None]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"attacks.0.shadows": 5}, "'half' has 4 encoders, not shadows = 5; raise its halves"),
        ({"attacks.1": {"attack": "encodermi-t", "shadows": 1}}, "'shadow' is not made by halves; leave shadows out"),
        (
            {"attacks.0": {"attack": "sslmem", "reference": "half", "shadows": 1}},
            "shadows = 1, but sslmem needs at least 2; raise shadows",
        ),
        ({"attacks.0.reference": "shadow"}, "rmia needs several encoders with halves: N"),
        ({"data.roles.known-nonmember": None}, "attacks.0 needs the role 'known-nonmember'"),
        ({"data.roles.known-nonmember.count": 18}, "rmia needs 19 known non-members with its fpr, not 18"),
        (
            {"data.roles.known-nonmember": {"from": "target-nonmember", "count": 30}},
            "known-nonmember is a part of target-nonmember, which the shadows of rmia are trained on; draw it from a",
        ),
    ],
)
def test_impossible_shadows_and_populations(changes: dict[str, Any], expected: str) -> None:
    raw = halved()
    raw["attacks"].append({"attack": "encodermi-t"})
    raw = with_changes(raw, changes)
    raw["data"]["roles"] = {name: role for name, role in raw["data"]["roles"].items() if role is not None}
    assert expected in refused(raw)


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ({"attack": "lira"}, "lira needs several encoders with halves: N"),
        ({"attack": "lira", "reference": "known"}, "lira cannot be fitted on 'known'"),
        ({"attack": "sd-mi"}, "needs the role 'anchor'"),
        ({"attack": "encodermi-t", "views": 5}, "views = 5 exceeds queries.views = 4"),
        ({"attack": "feature-mi", "views": 2}, "feature-mi draws no views"),
        ({"attack": "metric-loss", "outputs": ["projection"]}, "outputs = 'projection', allowed: logits"),
        (
            {"attack": "encodermi-t", "reference": "nobody"},
            "reference = 'nobody', allowed: audited, known, nonmembers, other",
        ),
        ({"attack": "lpla", "reference": "known"}, "needs the role 'known-member'"),
        ({"attack": "lpla", "reference_count": 61}, "asks for 61 samples of shadow-member, which has 60"),
    ],
)
def test_impossible_attacks(attack: dict[str, Any], expected: str) -> None:
    assert expected in refused(wide() | {"attacks": [attack]})


def test_a_sweep_is_spelled_out_and_likes_follow() -> None:
    config = parsed(
        sweep={
            "attacks.*.views": [2, 4],
            "encoders.target.epochs": [1, 3],
            "size": [{"label": "small", "data.roles.target-member.count": 40, "encoders.target.batch_size": 20}],
        }
    )
    assert [len(entries) for entries in config.sweep.values()] == [2, 2, 1]
    two = config.sweep["attacks.*.views"][0]
    assert two == {"label": "2", **{f"attacks.{number}.views": 2 for number in range(5)}}  # patches draw no views
    one = config.sweep["encoders.target.epochs"][0]
    assert one["encoders.shadow.epochs"] == 1  # like: target
    assert "encoders.other-data.epochs" in one or config.encoders["other-data"].kept_epochs == (1,)
    assert config.sweep["encoders.target.epochs"][1] == {"label": "3"}  # the run itself
    again = parse(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json", by_alias=True))), "again")
    assert again == config
    found = points(config, RunFolder("/runs/x"))
    assert [point.folder.path for point in found] == [
        "/runs/x/sweep/attacks.-.views/2",
        "/runs/x/sweep/attacks.-.views/4",
        "/runs/x/sweep/encoders.target.epochs/1",
        "/runs/x",
        "/runs/x/sweep/size/small",
    ]
    assert [point.value for point in found] == [2, 4, 1, 3, None]
    assert found[4].config.data.roles["target-member"].count == 40
    assert found[4].config.sweep == {}


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ({"encoders.target.epoch": [1]}, "point 1: unknown key encoders.target.epoch; did you mean epochs?"),
        ({"attacks.*.p": [1]}, "nothing in attacks has the field 'p'"),
        ({"attacks.19.views": [1]}, "'19' is no position in a list of 10"),
        ({"queries.views": []}, "a list of values is missing"),
        ({"queries.views": [3, 3]}, "two points are called alike: 3, 3"),
        ({"name.first": ["x"]}, "name is a value, not a section"),
        ({"queries.views": [1]}, "needs at least 2"),
    ],
)
def test_impossible_sweeps(sweep: dict[str, Any], expected: str) -> None:
    assert expected in refused(wide() | {"sweep": sweep})


def test_overrides_reach_every_attack(tmp_path: Any) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(wide()))
    config = load(str(path), ["attacks.*.views=3"])
    assert [attack.views for attack in config.attacks] == [3] * 5 + [None] * 5


def test_the_control_is_of_the_targets_kind() -> None:
    raw = wide()
    raw["encoders"] = {
        "first": {**copy.deepcopy(raw["encoders"]["target"]), "train_on": "other-member", "objective": "moco-v1"}
        | {"parameters": {"queue": 60}},
        "second": {"like": "target", "train_on": "other-member"},
        **raw["encoders"],
    }
    raw["data"]["roles"]["known-member"] = {"from": "target-member", "count": 12}
    raw["data"]["roles"]["known-nonmember"] = {"from": "target-nonmember", "count": 12}
    raw["attacks"] = [{"attack": "lpla", "reference": "known"}]
    config = parse(raw, "wide.yaml")
    assert ThreatModel(config).references_of(config.attacks[0]) == ("second",)


@pytest.mark.parametrize("reference", ["target", "twin"])
def test_nobody_is_judged_on_what_he_learned_from(reference: str) -> None:
    raw = wide()
    raw["encoders"]["twin"] = {"like": "target"}
    raw["attacks"] = [{"attack": "encodermi-t", "reference": reference}]
    assert f"reference = '{reference}' is fitted on 'target-member', on which the attack is judged" in refused(raw)


def test_anchors_are_no_judged_samples() -> None:
    raw = wide()
    raw["data"]["roles"]["anchor"] = {"from": "target-nonmember", "count": 10}
    raw["attacks"] = [{"attack": "sd-mi"}]
    assert "data.roles.anchor is a part of what attacks are judged on" in refused(raw)


def test_points_that_take_keys_away_are_what_they_say() -> None:
    raw = wide()
    raw["encoders"]["half"] = {"like": "target", "train_on": ["target-member", "target-nonmember"], "halves": 8}
    raw["attacks"] = [{"attack": "encodermi-v", "hidden": 32}, {"attack": "lira", "reference": "half"}]
    raw["sweep"] = {
        "encoders.half.halves": [4, 8],
        "attacks.0.attack": ["encodermi-v"],
        "method": [{"label": "t", "attacks.0": {"attack": "encodermi-t"}}],
        "algorithm": [
            {
                "label": "s",
                "encoders.other-views.objective": "supervised",
                "encoders.other-views.parameters": {"classes": 10},
            }
        ],
    }
    found = {(point.sweep, point.label): point.config for point in points(parse(raw, "wide.yaml"), RunFolder("x"))}
    four = found["encoders.half.halves", "4"]
    assert [name for name in four.encoders if name.startswith("half")] == ["half-0", "half-1", "half-2", "half-3"]
    assert len(found["encoders.half.halves", "8"].encoders) == len(four.encoders) + 4
    assert found["method", "t"].attacks[0].attack == "encodermi-t"
    assert found["algorithm", "s"].encoders["other-views"].objective == "supervised"


def test_images_are_left_out_of_the_judgement_only_where_an_attack_is_fitted_on_them() -> None:
    """With ``reference: audited`` every image is judged, and with a shadow too."""
    roles = wide()["data"] | {"roles": wide()["data"]["roles"] | {"known-member": {"from": "digits", "count": 9}}}
    roles["roles"]["known-nonmember"] = {"from": "digits", "count": 9}
    for reference, fits in (("shadow", False), ("audited", False), ("known", True)):
        config = parsed(data=roles, attacks=[{"attack": "combined", "reference": reference}])
        assert bool(ThreatModel(config).roles_fitted_on_target(config.attacks[0])) is fits
