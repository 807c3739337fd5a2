"""The section dp_audit: which attacks guess coins, and every config whose guesses would say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mi_core.defenses.convex_head import sensitivity_bound
from mi_core.defenses.privacy import guarantee
from pipelines.config.roles import COINS
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import DefendedConfig
from pipelines.errors import UserError
from pipelines.plan.load import load, parse
from pipelines.plan.rules import ThreatModel
from pipelines.report.attacks import family_of
from tests.conftest import small_config
from tests.pipelines.undrawn import asked_in, plan_in
from tests.raising import refused

SHIPPED = Path(__file__).parents[3] / "configs" / "dp-audit.yaml"
CONVEX = {"head": "convex", "epsilon": 1.0}


def raw(**changes: Any) -> dict[str, Any]:
    """A head on a frozen backbone, with canaries, behind one defense; dotted names replace fields."""
    config = small_config()
    config["data"]["roles"] |= {"canary": {"from": "digits", "count": 80}}
    like = {"objective": "supervised", "start": "backbone", "parameters": {"freeze_backbone": True}}
    head = {**config["encoders"]["target"], **like, "batch_size": 20, "augmentation": {}, "checkpoints": []}
    config["encoders"] = {
        "backbone": config["encoders"]["target"] | {"train_on": "shadow-member"},
        "target": head | {"train_on": ["target-member", "canary-in"]},
        "shadow": head | {"train_on": "shadow-member"},
    }
    config["queries"] |= {"outputs": ["logits"]}
    config["attacks"] = [{"attack": "metric-loss", "reference": "known"}, {"attack": "metric-corr"}]
    config["defenses"] = [{"defense": "additive-gaussian", "settings": CONVEX}]
    config["dp_audit"] = {}
    for name, value in changes.items():
        place: Any = config
        *parents, last = name.split("__")
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place[parent.replace("_", "-")]
        place[int(last) if isinstance(place, list) else last] = value
    return config


def parsed(**changes: Any) -> RunConfig:
    return parse(raw(**changes), "run.yaml")


def message(**changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        parsed(**changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_same_attack_guesses_the_coins_of_each_encoder_with_canaries() -> None:
    config = parsed()
    audited = [config.attacks[position] for position in ThreatModel(config).guessing_attacks]
    assert [(one.attack, one.target) for one in audited] == [
        ("metric-loss", "target"),
        ("metric-loss", "target+additive-gaussian"),
    ]
    assert ThreatModel(config).promising_encoders == {"target+additive-gaussian"}
    assert ThreatModel(parsed(defenses=[])).promising_encoders == {"target"}
    assert (
        ThreatModel(parse(config.plain(), "run.yaml")).guessing_attacks == ThreatModel(config).guessing_attacks
    )  # spelled out before
    chosen = parsed(dp_audit={"attack": 1})
    assert {chosen.attacks[position].attack for position in ThreatModel(chosen).guessing_attacks} == {"metric-corr"}
    assert canaries_sent(config) == {("target", "logits"), ("target+additive-gaussian", "logits")}


def test_the_gaussian_bound_is_taken_of_gaussian_noise_alone() -> None:
    """Of a kept promise of Laplace noise it would say more than the promise allows."""
    fixed = {"head": "convex", "scale": 1.0}
    defenses = [{"defense": f"additive-{noise}", "settings": fixed} for noise in ("gaussian", "laplace")]
    wanted = {"epsilon": 1, "delta": 1e-5, "family": "gaussian"}
    config = parsed(defenses=defenses, dp_audit=wanted)
    assert family_of(ThreatModel(config), "target+additive-gaussian") == "gaussian"
    assert (
        family_of(ThreatModel(config), "target+additive-laplace")
        == family_of(ThreatModel(config), "target")
        == "approximate"
    )
    assert (
        family_of(ThreatModel(parsed(defenses=[], dp_audit=wanted)), "target") == "gaussian"
    )  # whose promise the config tells
    assert family_of(ThreatModel(parsed()), "target+additive-gaussian") == "approximate"
    scaled = parsed(dp_audit={"family": "gaussian"})  # its scale depends on the number of images
    assert family_of(ThreatModel(scaled), "target+additive-gaussian") == "approximate"


def canaries_sent(config: RunConfig) -> set[tuple[str, str]]:
    """Encoders and outputs that canaries are sent to."""
    asked = {sent: set(roles) for sent, roles in asked_in(plan_in(config)).items() if set(COINS) & set(roles)}
    assert all(set(COINS) <= roles for roles in asked.values())
    return set(asked)


def test_without_the_section_no_canary_is_queried() -> None:
    config = raw()
    del config["dp_audit"]
    assert canaries_sent(parse(config, "run.yaml")) == set()


def test_canaries_are_no_utility_data_and_hide_no_knowledge() -> None:
    """They may have a wrong class, and half of them are in the training set."""
    config = parsed()
    bank, test = ThreatModel(config).utility_roles("target")
    assert bank == ("target-member",)
    assert not {"canary", "canary-in", "canary-out"} & {*bank, *test}
    assert ThreatModel(config).member_roles("target") == ("target-member",)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dp_audit": {"attack": 9}}, "dp_audit.attack = 9, but there are 4 attacks"),
        ({"dp_audit": {"output": "backbone"}}, "dp_audit.output = 'backbone', allowed: logits"),
        ({"dp_audit": {"guesses": 81}}, "dp_audit.guesses = 81 exceeds the 80 canaries; lower it"),
        ({"dp_audit": {"guesses": [4, 4]}}, "guesses = [4, 4], allowed: numbers from 1, each once"),
        ({"dp_audit": {"guesses": 0}}, "guesses = [0], allowed"),
        ({"dp_audit": {"family": "gaussian", "epsilon": 1}}, "family = 'gaussian' has no epsilon at delta = 0"),
        ({"dp_audit": {"epsilon": 0}}, "dp_audit.epsilon"),
        (
            {"dp_audit": {"delta": 1e-5}},
            "dp_audit.delta = 1e-05 without epsilon, but target+additive-gaussian promises",
        ),
        ({"encoders__target__train_on": "target-member"}, "dp_audit: target was not trained on canary-in; add it to"),
        ({"encoders__target__train_on": ["target-member", "canary"]}, "holds canaries whose coin says out"),
        ({"encoders__shadow__train_on": "canary-out"}, "encoders.shadow.train_on holds canaries whose coin says out"),
        ({"attacks__0__count": 20}, "queries count = 20 of each role; every canary is scored"),
        (
            {"defenses__0__defense": "additive-laplace"},
            "dp_audit: target+additive-laplace promises an epsilon of a replaced image, but a coin leaves an image "
            "out; give it settings.scale in place of settings.epsilon = 1",
        ),
        (
            {"defenses__0__settings": {"pairs": 5, "scale": 1.0}},
            "give it settings.adjacency = 'leave-one-out' in place of 'replace-one'",
        ),
        (
            {"dp_audit": {"epsilon": 1, "delta": 1e-5}},
            "dp_audit.epsilon = 1 is what target+additive-gaussian promises of a replaced image, but a coin leaves an",
        ),
        ({"encoders__target__parameters": {}}, "the backbone of target was trained on canary-in too"),
        ({"encoders__backbone__train_on": "canary-in"}, "the backbone of target was trained on canary-in too"),
    ],
)
def test_guesses_that_would_say_nothing(changes: dict[str, Any], expected: str) -> None:
    assert expected in message(**changes)


def test_a_role_of_canaries_is_needed() -> None:
    config = raw(encoders__target__train_on="target-member")
    del config["data"]["roles"]["canary"]
    refused(UserError, "dp_audit needs the role 'canary'", parse, config, "run.yaml")


def test_an_attacker_must_not_know_the_coins() -> None:
    """Fitted on a shadow that starts from a network with canaries, an attack would have learned from the coins."""
    config = raw(dp_audit={"attack": 1, "epsilon": 2})
    config["encoders"]["backbone"]["train_on"] = ["shadow-member", "canary-in"]
    refused(UserError, "is fitted on canary-in, so it knows the coins", parse, config, "run.yaml")


def test_an_attack_that_is_fitted_by_sample_scores_no_canaries() -> None:
    config = raw(defenses=[])
    config["encoders"]["other"] = config["encoders"]["backbone"] | {"train_on": ["target-member", "canary-in"]}
    config["queries"]["outputs"] = ["backbone"]
    config["attacks"] = [{"attack": "combined", "target": "other", "reference": "audited"}]
    refused(UserError, "does not score canaries by themselves", parse, config, "run.yaml")


def test_a_promise_for_the_whole_classifier_may_be_given() -> None:
    """Then the backbone may have seen canaries: the promise is about it too."""
    config = parsed(encoders__target__parameters={}, dp_audit={"epsilon": 3, "delta": 1e-5})
    assert len(ThreatModel(config).guessing_attacks) == 2


def test_a_promise_of_an_image_that_is_there_or_not_is_taken() -> None:
    sampled = {"pairs": 5, "scale": 1.0, "adjacency": "leave-one-out"}
    for changes in (
        {"dp_audit": {"epsilon": 1.3, "delta": 1e-5}},
        {"defenses__0__settings": sampled},
        {"defenses__0__settings": sampled | {"epsilon": 1.0}, "dp_audit": {"epsilon": 1.0, "delta": 1e-5}},
        {"defenses__0__settings": {"head": "convex", "scale": 1.0}},
        {"defenses": [{"defense": "dp-sgd", "settings": {"batch_size": 5}}]},
    ):
        assert ThreatModel(parsed(**changes)).guessing_attacks


def test_the_shipped_config_promises_the_same_of_both() -> None:
    config = load(str(SHIPPED))
    assert ThreatModel(config).promising_encoders == {"target+honest", "target+noise-forgotten"}
    assert len(ThreatModel(config).guessing_attacks) == 3
    honest = config.encoders["target+honest"]
    assert isinstance(honest, DefendedConfig)
    distance = sensitivity_bound(honest.settings["penalty"], 200)  # 300 coins say in less often once in 10^8 runs
    assert config.dp_audit is not None
    assert config.dp_audit.epsilon is not None
    found = guarantee("gaussian", honest.settings["scale"], distance, delta=1e-5)
    assert 0.99 < found.epsilon <= config.dp_audit.epsilon
    assert "leave-one-out" in honest.method(0).adjacencies
