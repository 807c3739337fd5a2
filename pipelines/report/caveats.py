"""The warnings of a report, and the attacks and outputs that were not tested."""

from __future__ import annotations

from mi_core.adoption.soundness import Answers, noise_caveat
from mi_core.attacks import left_out
from mi_core.objectives import OBJECTIVES
from mi_core.querying.sanity import fault_in_words
from mi_core.report.model.report import Remark
from mi_core.report.words.sentences import sections
from pipelines.attack.results import result_of
from pipelines.config.sections.sources import NOISE
from pipelines.data.draw.splits import Splits
from pipelines.data.read.samples import IMAGES
from pipelines.data.run import drawing_faults
from pipelines.encoders.stored import describe
from pipelines.plan.rules import population_roles
from pipelines.report.finished import FinishedRun
from pipelines.report.verdict import shard_effect


def remarks(run: FinishedRun) -> tuple[Remark, ...]:
    """The changes of images on the way from file to pixels, and how many they are of, by source."""
    noted = [one for one in Splits.load(run.first.path).rejected if one.noted and one.key == IMAGES]
    return tuple(Remark(source=one.source, remark=one.reason, n=one.lost) for one in noted)


def caveats(run: FinishedRun) -> list[str]:
    """The warnings to a reader of the report, the most serious first, in the words of caveats.j2."""
    config, splits = run.config, Splits.load(run.first.path)
    shards = {} if splits.rules is None else splits.rules.shards
    results, noisy = [(task, result_of(task)) for task in run.tasks()], _noisy(run)
    told = sections(
        "pipelines/report/caveats.j2",
        config=config,
        records={name: describe(run.first, name).record for name in config.encoders},
        attacked={attack.target for attack in config.attacks},
        remarks=remarks(run),
        shards=shards,
        effect=shard_effect(run) if shards else None,
        drawn=[
            (judged, result.scored)
            for _, result in results
            if (metrics := result.metrics) is not None
            and (judged := metrics.n_member + metrics.n_nonmember) < result.scored
        ],
        drawing_faults=drawing_faults(splits),
        fitted_on_target=any(run.threat.roles_fitted_on_target(attack) for attack in config.attacks),
        fitted_on_noise=any(
            noisy & {*run.threat.reference_roles(attack), *population_roles(attack)} for attack in config.attacks
        ),
        uncontrolled=[
            f"{task.judge.attack.attack} on {task.target_output}: {result.control_not_applicable}"
            for task, result in results
            if result.control_not_applicable is not None
        ],
        passed_over=[
            (
                " ".join(filter(None, (attack.attack, run.settings(attack), "on", attack.target))),
                " ".join(passed),
                ", ".join(run.threat.references_of(attack)),
            )
            for attack in config.attacks
            if (passed := run.threat.passed_over(attack)) is not None
        ],
        asked=run.threat.is_membership_unknown,
        Answers=Answers,
        noise_caveat=noise_caveat,
        fault_in_words=fault_in_words,
    )
    return [text for _, text in told]


def _noisy(run: FinishedRun) -> set[str]:
    """The roles whose images are random pixels."""
    roles, sources = run.config.data.roles, run.config.data.sources
    return {
        name for name, role in roles.items() if sources[roles.get(role.source_name, role).source_name].kind == NOISE
    }


def left_untested(run: FinishedRun) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Attacks, outputs and defenses that the run left out; attacks that its target is not the kind of encoder for."""
    target = run.config.attacks[0].target
    outputs, captioned = describe(run.first, target).record.outputs, run.config.encoders[target].objective
    text = OBJECTIVES[captioned].target == "caption"
    missing, useless = left_out({attack.attack for attack in run.config.attacks}, outputs, text=text)
    unread = [f"the {output} output" for output in outputs if output not in run.config.queries.outputs]
    undefended = [] if run.config.defenses else ["what a defense would hide, and at what price"]
    return (*missing, *unread, *undefended), tuple(useless)
