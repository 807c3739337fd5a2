"""What a report says of a search: the choice, its figures on images held back, and whether those keep to the limit."""

from __future__ import annotations

import pytest

from mi_core.report.defenses import front_of, sentence
from mi_core.report.figures.defense_figures import tuning_figures
from mi_core.report.model.as_json import part_from_json
from mi_core.report.model.defenses import Tuning
from mi_core.report.model.report import report_from_json as typed
from tests.mi_core.report.conftest import BARE, search, within


def test_the_figures_are_those_of_the_strongest_attack_on_images_held_back() -> None:
    told = sentence(part_from_json(Tuning, search(0.62)))
    assert "Chosen of 3 trials (0 failed, 0 stopped early): scale 0.5." in told
    assert "The strongest attack reaches .570 [.52, .62] instead of .880 [.83, .93]." in told
    assert "the defense costs 10.4 % of the utility (linear .870 [.85, .89] instead of .970 [.95, .99])" in told
    assert "In the search, the loss was 10 % and the upper end .640." in told


@pytest.mark.parametrize(
    ("held_back", "within", "said"), [(0.65, True, False), (0.66, True, True), (0.66, False, False)]
)
def test_a_choice_that_images_held_back_do_not_confirm_is_told(held_back: float, within: bool, said: bool) -> None:
    told = sentence(part_from_json(Tuning, search(held_back, within=within)))
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
    told = sentence(part_from_json(Tuning, found))
    assert "The strongest inference's accuracy was allowed an upper end of .55." in told
    assert "(race, backbone, layers = 5) is right for .500 [.47, .53] instead of .660 [.63, .69]; guessing" in told
    assert "guessing is right for .420 [.39, .45]. The strongest attack on membership reaches .570" in told
    assert "do not confirm" not in told
    assert "strongest inference's accuracy" in tuning_figures(typed(BARE | {"tuning": found}))["tuning"].alt
