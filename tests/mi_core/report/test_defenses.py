"""What a report says of defenses beside the plain encoder, and of a search for the settings of one."""

from __future__ import annotations

import pytest

from mi_core.report.defenses import defense_tables, front_of
from mi_core.report.figures.defense_figures import defense_figures, tuning_figures
from mi_core.report.model.as_json import part_from_json
from mi_core.report.model.defenses import Tuning
from mi_core.report.model.report import report_from_json as typed
from mi_core.report.words.sentences import say
from tests.mi_core.report.conftest import BARE, attack_pair, defense_entry, search, within


def test_the_plain_encoder_has_attacks_that_the_first_defense_is_measured_without() -> None:
    """The strongest one on it may be among them; else a defense that is measured by all looks worse than none."""
    report = BARE | {
        "defenses": [
            defense_entry("memguard", 0.0, attack_pair("metric-conf", 0.6, 0.55)),
            defense_entry("olympus", 0.1, attack_pair("metric-conf", 0.6, 0.58), attack_pair("label-only", 0.7, 0.65)),
        ]
    }
    ((_, rows),) = defense_tables(typed(report))
    assert [row.attack for row in rows] == ["label-only, logits", "metric-conf, logits", "label-only, logits"]
    assert rows[0].auc is not None and rows[0].auc.value == 0.7
    drawn = defense_figures(typed(report))
    assert "label-only, logits .700, .650" in drawn["defenses-attacks-target"].alt
    assert "no defense 0, .700" in drawn["defenses-tradeoff-target"].alt


def test_attacks_that_do_not_know_a_defense_are_told_from_those_that_do() -> None:
    """Neither a row nor a line of a figure takes one for the other."""
    known, unknown = (
        defense_entry("additive-logistic", 0.1, attack_pair("metric-conf", 0.6, value)) for value in (0.58, 0.51)
    )
    report = BARE | {"defenses": [known, unknown | {"adaptive": False}]}
    ((_, rows),) = defense_tables(typed(report))
    names = ["none", "additive-logistic", "additive-logistic, unknown to attacks"]
    assert [row.name for row in rows] == names
    drawn = defense_figures(typed(report))
    assert f"behind {', '.join(names)}: " in drawn["defenses-attacks-target"].alt
    told = drawn["defenses-tradeoff-target"].alt
    assert "additive-logistic .100 at .580; additive-logistic, unknown to attacks .100 at .510" in told


def test_the_figures_are_those_of_the_strongest_attack_on_images_held_back() -> None:
    told = say("search", part_from_json(Tuning, search(0.62)))
    assert "Chosen of 3 trials (0 failed, 0 stopped early): scale 0.5." in told
    assert "The strongest attack reaches .570 [.52, .62] instead of .880 [.83, .93]." in told
    assert "the defense costs 10.4 % of the utility (linear .870 [.85, .89] instead of .970 [.95, .99])" in told
    assert "In the search, the loss was 10 % and the upper end .640." in told


@pytest.mark.parametrize(
    ("held_back", "within", "said"), [(0.65, True, False), (0.66, True, True), (0.66, False, False)]
)
def test_a_choice_that_images_held_back_do_not_confirm_is_told(held_back: float, within: bool, said: bool) -> None:
    told = say("search", part_from_json(Tuning, search(held_back, within=within)))
    assert ("above what was allowed: these images do not confirm the choice" in told) is said
    assert ("No trial stayed below it" in told) is not within


def test_the_front_is_what_no_trial_beats_by_utility() -> None:
    found = search(0.62)
    assert [row.leak for row in front_of(part_from_json(Tuning, found))] == [0.64, 0.6]
    (drawing,) = tuning_figures(typed(BARE | {"tuning": found})).values()
    assert "10 % at .640, 30 % at .600" in drawing.alt
    assert tuning_figures(typed(BARE)) == {}


def test_where_attributes_are_hidden_the_inference_counts_and_membership_is_told_beside_it() -> None:
    found = search(0.62) | {"hides": "attributes", "allowed": 0.55}
    for place, accuracy in ((found["without"]["final"], 0.66), (found["winner"]["final"], 0.5)):
        rows = [(accuracy, "layers = 5"), (accuracy - 0.1, "layers = 3")]
        place["inferences"] = [
            {"attribute": "race", "output": "backbone", "settings": settings}
            | {"accuracy": within(value, 0.03), "majority": within(0.42, 0.03)}
            for value, settings in rows
        ]
    found["winner"]["final"]["leak"] = 0.53
    told = say("search", part_from_json(Tuning, found))
    assert "The strongest inference's accuracy was allowed an upper end of .55." in told
    assert "(race, backbone, layers = 5) is right for .500 [.47, .53] instead of .660 [.63, .69]; guessing" in told
    assert "guessing is right for .420 [.39, .45]. The strongest attack on membership reaches .570" in told
    assert "do not confirm" not in told
    assert "strongest inference's accuracy" in tuning_figures(typed(BARE | {"tuning": found}))["tuning"].alt
