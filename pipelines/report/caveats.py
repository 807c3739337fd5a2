"""The warnings of a report, and the attacks and outputs that were not tested."""

from __future__ import annotations

from mi_core.adoption.soundness import Answers, noise_caveat
from mi_core.attacks import left_out
from mi_core.objectives import OBJECTIVES
from mi_core.querying.sanity import fault_in_words
from mi_core.report.build import SAME_SOURCE, conditions_in_words
from mi_core.report.model.report import Remark
from mi_core.report.words.numbers import plain
from pipelines.attack.results import result_of, settings_of
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.sources import NOISE
from pipelines.data.draw.splits import Splits
from pipelines.data.read.samples import IMAGES
from pipelines.data.run import faults_of_lists
from pipelines.encoders.stored import describe
from pipelines.plan.rules import ThreatModel, population_roles
from pipelines.report.finished import FinishedRun
from pipelines.report.verdict import shard_effect


def remarks(run: FinishedRun) -> tuple[Remark, ...]:
    """The changes of images on the way from file to pixels, and how many they are of, by source."""
    noted = [one for one in Splits.load(run.first.path).rejected if one.noted and one.key == IMAGES]
    return tuple(Remark(source=one.source, remark=one.reason, n=one.lost) for one in noted)


def caveats(run: FinishedRun) -> list[str]:
    """The warnings to a reader of the report; the most serious first."""
    told = [
        "Intervals cover the choice of audited images. Only the spread over seeds shows how much another training run "
        "of the same encoder would differ."
    ]
    if run.config.data.near_duplicates is None:
        told.append(
            "Only images with identical pixels count as duplicates; near-duplicates across roles may remain "
            "(data.near_duplicates={} looks for them)."
        )
    told += conditions_in_words(remarks(run))
    told += _shard_caveats(run)
    told += _drawing_caveats(run)
    told += [f"{line[0].upper()}{line[1:]}." for line in faults_of_lists(Splits.load(run.first.path))]
    if len(run.config.seeds) == 1:
        told.append("One seed: the spread over splits and training runs is not known.")
    told += fit_caveats(run.config)
    data = run.config.data
    noisy = {
        name
        for name, role in data.roles.items()
        if data.sources[data.roles.get(role.source_name, role).source_name].kind == NOISE
    }
    if any(
        noisy & {*ThreatModel(run.config).reference_roles(attack), *population_roles(attack)}
        for attack in run.config.attacks
    ):
        told.append(
            "Some attacks learned what a non-member is from images of random pixels. Encoders treat noise unlike any "
            "image, trained on or not, so their thresholds and accuracies may be far off, even below guessing."
        )
    for name in run.config.encoders:
        record = describe(run.first, name).record
        templated = record.templated_captions
        if templated is None:
            told.append(f"Where images had no caption, {name} was trained on captions made from class names.")
        elif templated:
            told.append(
                f"{templated} of the {record.images} captions that {name} was trained on were made "
                "from class names and attributes, not written by people."
            )
        attacked = any(attack.target == name for attack in run.config.attacks)
        if attacked and record.consistency and not record.consistency["works"]:
            told.insert(0, f"The encoder {name}: {fault_in_words(record.consistency)}")
        noise = record.answers.get("noise", {})
        if Answers(noise).noisy:
            told.append(noise_caveat(name, noise))
    uncontrolled = {
        f"{task.judge.attack.attack} on {task.target_output}: {result_of(task)['control_not_applicable']}"
        for task in run.tasks()
        if "control_not_applicable" in result_of(task)
    }
    told += [f"No reference for {one}." for one in sorted(uncontrolled)]
    told += reference_caveats(run.config)
    if ThreatModel(run.config).is_membership_unknown:
        told.append(SAME_SOURCE)
    if len(run.config.attacks) * len(run.config.queries.outputs) > 1:
        told.append(
            "A leak rests only on the attack marked “primary”, “no evidence” on all that were planned. The AUCs of the "
            "other rows are not corrected for multiple testing."
        )
    return told


def fit_caveats(config: RunConfig) -> list[str]:
    """That images which an attack is fitted on are not judged, where there are such."""
    if any(ThreatModel(config).roles_fitted_on_target(attack) for attack in config.attacks):
        return ["Some attacks learned from images whose use is known. They were judged on the other images only."]
    return []


def reference_caveats(config: RunConfig) -> list[str]:
    """Attacks whose reference is another encoder than for other attacks, or none, because of what that one lacks."""
    told = []
    for attack in config.attacks:
        if (passed := ThreatModel(config).passed_over(attack)) is not None:
            chosen = ", ".join(ThreatModel(config).references_of(attack))
            words = " ".join(filter(None, (attack.attack, settings_of(attack, config.attacks), "on", attack.target)))
            start = f"The reference of {words} is {chosen}" if chosen else f"No reference for {words}"
            told.append(f"{start}: {' '.join(passed)}.")
    return list(dict.fromkeys(told))


def _drawing_caveats(run: FinishedRun) -> list[str]:
    """That metrics are of some of the scored samples, where these are very many."""
    for result in map(result_of, run.tasks()):
        metrics, scored = result.get("metrics", {}), result.get("scored", 0)
        judged = metrics.get("n_member", 0) + metrics.get("n_nonmember", 0)
        if metrics and judged < scored:
            return [
                f"Metrics are of {judged:,} of {scored:,} scored samples, which a hash of their ids draws; that "
                "moves an AUC far less than its interval. Scores and single answers are of all."
            ]
    return []


def _shard_caveats(run: FinishedRun) -> list[str]:
    """That only some shards were read, and what this means."""
    place = run.first
    rules = Splits.load(place.path).rules
    if rules is None or not rules.shards:
        return []
    read = ", ".join(f"{few:,} of {every:,} of {name}" for name, (few, every) in rules.shards.items())
    effect = shard_effect(run)
    if effect is None:
        means = "The config says that samples stand in shards at random (data.shuffled)."
    else:
        means = (
            "Samples of a shard may be alike, so intervals count shards, not samples. The variance of the primary AUC "
            f"is {plain(effect, 2)} times that of independent samples (Kish's design effect). Few shards widen "
            "intervals further."
        )
    return [f"Some shards were read, drawn by a hash of their names: {read}. Intervals hold for all shards. {means}"]


def left_untested(run: FinishedRun) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Attacks, outputs and defenses that the run left out; attacks that its target is not the kind of encoder for."""
    target = run.config.attacks[0].target
    outputs, captioned = describe(run.first, target).record.outputs, run.config.encoders[target].objective
    text = OBJECTIVES[captioned].target == "caption"
    missing, useless = left_out({attack.attack for attack in run.config.attacks}, outputs, text=text)
    unread = [f"the {output} output" for output in outputs if output not in run.config.queries.outputs]
    undefended = [] if run.config.defenses else ["what a defense would hide, and at what price"]
    return (*missing, *unread, *undefended), tuple(useless)
