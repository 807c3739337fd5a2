"""Did an encoder forget its images? Two finished audits of the same images, before and after, beside a third one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mi_core.report.contents import fault_of
from mi_core.report.model.as_json import given_values, part_from_json
from mi_core.report.pooling import grouped
from mi_core.report.words.numbers import estimate, percent
from mi_core.report.words.sentences import say
from mi_core.validity.sets.forgetting import KEPT, TOLERANCE, Forgetting, forgetting
from mi_core.validity.sets.kept import Scored
from pipelines.attack.results import Task, result_of, settings_of
from pipelines.config.sections.attacks import AttackConfig
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.damage import reading
from pipelines.plan.load import load
from pipelines.report.bindings import CONFIG, REPORT, run_folder
from pipelines.report.finished import FinishedRun
from pipelines.report.verdict import paired_scores

_TITLES = {
    "forgotten": "Forgotten, as far as these attacks can see",
    "not-forgotten": "Not forgotten",
    "cannot-tell": "Cannot tell",
}
_STYLES = {"forgotten": "bold cyan", "not-forgotten": "bold red", "cannot-tell": "bold"}
_ROWS = {
    "before_auc": "AUC on the encoder before",
    "after_auc": "AUC on the encoder after",
    "unseen_auc": "AUC on an encoder that never saw the images",
    "blind_auc": "AUC of the blind classifier",
    "known": "known before: before minus unseen",
    "left": "left: after minus unseen",
    "left_blind": "after minus blind classifier",
    "removed": "removed: before minus after",
}


def forget(
    before: str, after: str, retrained: str | None = None, *, tolerance: float = TOLERANCE, kept: float = KEPT
) -> dict[str, Any]:
    """Judge whether the encoder of one audit forgot what that of another one knew.

    Args:
        before, after: folders of finished runs that audited the same images by the same attack; ``RUN:ENCODER`` names
            another encoder of the run than the one that its verdict is about.
        retrained: the same of an encoder that never saw the images; None: the reference encoders of ``after``.
        tolerance, kept: as `mi_core.validity.sets.forgetting.forgetting`.

    Returns:
        JSON values: ``found`` as `mi_core.validity.sets.forgetting.Forgetting.as_json`, and what it rests on.

    Raises:
        UserError: a folder holds no finished run; the runs differ in images, attack, queries or seeds; two of the
            encoders are the same; or there is no encoder that never saw the images.
        ConfigError: tolerance or kept is out of range.
    """
    words = [before, after, *([] if retrained is None else [retrained])]
    sides = [_Side.read(one) for one in words]
    first, second, third = sides[0], sides[1], sides[2] if retrained is not None else None
    with reading(f"{REPORT} of {' or '.join(words)}"):
        for other in sides[1:]:
            for name, value in first.conditions.items():
                if other.conditions[name] != value:
                    raise UserError(f"{other.run} has other {name} than {first.run}; audit both in the same way")
        seen: dict[str, str] = {}  # encoders by the fingerprints of all seeds
        for word, side in zip(words, sides, strict=True):
            own = {of_seed["fingerprint"] for of_seed in side.encoder_entry.get("per_seed", [side.encoder_entry])}
            for fingerprint in own & seen.keys():
                raise UserError(
                    f"{seen[fingerprint]} and {word} are the same weights; give another encoder for one of them"
                )
            seen |= dict.fromkeys(own, word)
        if third is not None:
            _check_unseen(third)
    return _judge(first, second, third, tolerance, kept)


def _judge(first: _Side, second: _Side, third: _Side | None, tolerance: float, kept: float) -> dict[str, Any]:
    unseen = third or second

    def scored(*attacks: Sequence[Task]) -> list[Scored]:
        return [_scored(first, second, third, of_seed) for of_seed in zip(*attacks, strict=True)]

    found = scored(first.tasks, second.tasks, unseen.tasks)
    others = {
        name: scored(mine, second.others[name], unseen.others[name])
        for name, mine in first.others.items()
        if name in second.others and name in unseen.others and (third or second.others[name][0].judge.references)
    }
    judged = forgetting(found, others, name=first.name, overlap=first.finished.overlap, tolerance=tolerance, kept=kept)
    judge, member = first.tasks[0].judge, found[0].member
    never = third.encoder if third else " and ".join(second.tasks[0].judge.references)
    return {
        "found": judged.as_json(),
        "attack": judge.attack.attack,
        "output": judge.output,
        "seeds": list(first.finished.config.seeds),
        "images": int(member.sum()),
        "controls": int((~member).sum()),
        "before": first.identity,
        "after": second.identity,
        "unseen": {"run": unseen.run, "encoder": never},
        "utility": {
            name: side.encoder_entry["utility"]["knn"]
            for name, side in (("before", first), ("after", second))
            if "utility" in side.encoder_entry
        },
    }


def table(report: Mapping[str, Any]) -> RenderableType:
    """The result of `forget` for ``rich.console.Console.print``."""
    found = part_from_json(Forgetting, given_values(report["found"]))
    style, title = _STYLES[found.verdict], _TITLES[found.verdict]
    if found.verdict == "forgotten" and found.left.low > 0:
        title = f"Mostly {title[0].lower()}{title[1:]}"
    head = Group(
        Text(title, style=style),
        Text(say("forgetting", found)),
        Text(f"What it rests on: {say('forgetting_basis', report, found)}"),
        Text(f"What it does not say: {say('forgetting_limits')}"),
    )
    panel = Panel(head, title=Text("forgotten?"), title_align="left", border_style=style, padding=(0, 1))
    rows = Table("measured", "value [95 % interval]", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, words in _ROWS.items():
        rows.add_row(words, estimate(getattr(found, name)))
    for name, own in found.tails.items():
        shares = " and ".join(percent(round(share, 3)) for share in own.above)
        rows.add_row(f"{name}: images above the 95th and 99th percentile", f"{shares}, unseen 5 % and 1 %")
    if (kept := found.tails[found.chosen].kept_at_most) is not None:
        rows.add_row("images kept in full, at most", percent(kept))
    utility = [
        f"{side} {percent(report['utility'][side])}" for side in ("before", "after") if side in report["utility"]
    ]
    told = [Text(f"kNN accuracy of the encoder {', '.join(utility)}.")] if utility else []
    return Group(panel, Padding(rows, (0, 0, 0, 1)), *told)


@dataclass(frozen=True)
class _Side:
    """One audit: its run, and the results on one of its encoders, one for each seed: of the primary attack, and by name
    of every other attack and output that applies.
    """

    run: str
    encoder: str
    finished: FinishedRun
    report: dict[str, Any]
    tasks: tuple[Task, ...]
    others: dict[str, tuple[Task, ...]]

    @classmethod
    def read(cls, words: str) -> _Side:
        """The audit that ``RUN`` or ``RUN:ENCODER`` stands for."""
        run, colon, encoder = words.rpartition(":")
        if not colon or "/" in encoder or storage.exists(f"{words}/{CONFIG}"):
            run, encoder = words, ""
        with reading(run):
            return cls._read(words, run, encoder)

    @classmethod
    def _read(cls, words: str, run: str, encoder: str) -> _Side:
        folder = run_folder(run)
        report = storage.read_json_or(f"{folder.path}/{REPORT}", {})
        if fault := fault_of(report) if report else "is missing":
            raise UserError(f"{run}/{REPORT} {fault}; write it with encoder-audit report {run}")
        config = load(f"{folder.path}/{CONFIG}")
        finished = FinishedRun.at(config, folder)
        threat, primary = finished.threat, finished.threat.primary
        encoder = encoder or primary.target
        same = primary.model_copy(update={"target": encoder})
        if same not in config.attacks:
            known = [one.target for one in config.attacks if one == primary.model_copy(update={"target": one.target})]
            raise UserError(f"{run} has no {primary.attack} on {encoder!r}; it has it on {', '.join(known)}")
        last = threat.attacked_epochs(encoder)[-1]
        here = [task for task in finished.tasks() if task.judge.attack.target == encoder and task.judge.epoch == last]
        by_name = grouped(here, lambda task: _name(task, config.attacks))
        primary_is = config.attacks.index(same), threat.primary_output
        chosen = next(mine for mine in by_name.values() if (mine[0].judge.position, mine[0].judge.output) == primary_is)
        for task in chosen:
            if (reason := result_of(task).not_applicable) is not None:
                raise UserError(f"{words}: {reason}")
        others = {
            name: tuple(mine)
            for name, mine in by_name.items()
            if mine is not chosen and all(result_of(task).not_applicable is None for task in mine)
        }
        return cls(run, encoder, finished, report, tuple(chosen), others)

    @property
    def name(self) -> str:
        """Of the primary attack, as others are named."""
        return _name(self.tasks[0], self.finished.config.attacks)

    @property
    def encoder_entry(self) -> Any:
        """The encoder's entry in the report."""
        return self.report["encoders"][self.encoder]

    @property
    def identity(self) -> dict[str, Any]:
        """Run, name and fingerprint of the encoder."""
        return {"run": self.run, "encoder": self.encoder, "fingerprint": self.encoder_entry["fingerprint"]}

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions that scores depend on besides the encoder, by the words for them."""
        return {
            "seeds": self.finished.config.seeds,
            "attack": self.tasks[0].judge.attack.model_copy(update={"target": "", "reference": ""}),
            "queries": self.finished.config.queries,
            "output": self.finished.threat.primary_output,
            "images": [self.report["data"]["roles"][role] for role in self.finished.audited],
        }


def _name(task: Task, attacks: Sequence[AttackConfig]) -> str:
    """An attack and its output, apart from the others on the same encoder."""
    attack = task.judge.attack
    others = [one.reference for one in attacks if (one.attack, one.target) == (attack.attack, attack.target)]
    reference = f"against {attack.reference}" if set(others) - {attack.reference} else ""
    return " ".join(filter(None, (attack.attack, settings_of(attack, attacks), reference, "on", task.judge.output)))


def _check_unseen(third: _Side) -> None:
    """Refuse an encoder as one that never saw the images where its run trained it on them."""
    threat, roles = third.finished.threat, third.finished.threat.roles

    def with_above(role: str) -> set[str]:
        return {role} | (with_above(roles[role].source_name) if roles[role].source_name in roles else set())

    trained = threat.members_of(third.encoder)
    seen = [
        role
        for role in third.finished.audited
        if any(role in with_above(one) or one in with_above(role) for one in trained)
    ]
    if seen:
        raise UserError(
            f"{third.run} trained {third.encoder} on {seen[0]}, whose images are judged; give an encoder that never "
            "saw them"
        )


def _scored(first: _Side, second: _Side, third: _Side | None, of_seed: Sequence[Task]) -> Scored:
    """The scores of one seed on the same samples."""
    with reading(" or ".join(dict.fromkeys(side.run for side in (first, second, third) if side is not None))):
        before, after, unseen = (paired_scores(task) for task in of_seed)
    for side, table in ((second, after), (third or second, unseen)):
        if not np.array_equal(before["id"], table["id"]):
            raise UserError(
                f"{side.run} has scores of other samples than {first.run}; some were rejected in one of them"
            )
    if third is None and "control" not in after:
        raise UserError(f"{second.run} has no reference; give --retrained, an encoder that never saw the images")
    never = unseen["score"] if third is not None else after["control"]
    return Scored(before["score"], after["score"], never, after["blind"], before["member"], before.get("group"))
