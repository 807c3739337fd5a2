"""What a report says of defenses beside the plain encoder."""

from __future__ import annotations

from mi_core.report.defenses import defense_tables
from mi_core.report.figures.defense_figures import defense_figures
from mi_core.report.model.report import report_from_json as typed
from tests.mi_core.report.conftest import BARE, attack_pair, defense_entry


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
