"""A block for a model card: the verdict in plain words, its numbers and digests, and what they do not say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mi_core.records import Estimate
from mi_core.report.model.report import Report
from mi_core.report.runs import plain
from mi_core.report.statement import ANSWERS, CODE, WEIGHTS
from mi_core.report.words.numbers import count, estimate
from mi_core.report.words.sides import sides_of
from mi_core.report.words.wording import answer

_MEASURED = {
    "attack_auc": "AUC of the attack",
    "blind_auc": "AUC of a classifier that never queries the encoder",
    "semantic_auc": "AUC of a classifier on what reference encoders see",
    "control_auc": "AUC of the attack on reference encoders that did not see the image",
    "delta_auc": "attack minus that classifier",
    "delta_control_auc": "this encoder minus those encoders",
}
_FOUND_NOTHING = (
    "It does not say that no image can be recognised: a better attack may exist, and single images may be recognised "
    "where the groups do not differ."
)
_KINDS = {
    WEIGHTS: "weights",
    ANSWERS: "answers kept of an API, whose weights are not known",
    CODE: "name, code and weights of a function",
}
_NOT_SAID = (
    "It does not say whether the use of any image was lawful, nor that the encoder is anonymous.",
    "It speaks of the weights with these digests. It says nothing about fine-tuned, quantised or retrained copies.",
    "Intervals cover the choice of images, not another training run.",
    "Digests show that nothing was changed since. They do not show who made the audit; only a signature does.",
)
_LONGEST = 400  # characters of a text from a report


def card(report: Report, statement: Mapping[str, Any], sha256: str) -> str:
    """The block, in Markdown.

    Args:
        report: of a run.
        statement: the statement of the same run.
        sha256: of the statement's file.
    """
    found = answer(report)
    said = " ".join(filter(None, (found.question, found.headline)))
    lines = ["## Membership inference audit", "", f"**{found.title}.** {_text(said)}", ""]
    lines += [f"{_text(line)}\n" for line in (*found.lines, found.warning) if line]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in _rows(report, statement))]
    lines += [f"| statement, SHA-256 | {_code(sha256)} |", "", "What this does not say:", ""]
    unsaid = () if found.verdict == "leak" else (_FOUND_NOTHING,)
    lines += [f"- {sentence}" for sentence in (*unsaid, *_NOT_SAID)]
    lines += ["", "To check it: `encoder-audit verify STATEMENT RUN`, with the statement's file and the run folder."]
    return "\n".join(lines) + "\n"


def _rows(report: Report, statement: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The rows of measurements, and of identities to know them again by."""
    predicate = statement["predicate"]
    primary, sides = predicate["primary"], sides_of(report)
    sizes = dict.fromkeys(
        f"{count(one['n_member'])} {sides.inside}, {count(one['n_nonmember'])} {sides.outside}"
        for one in primary["per_seed"]
    )
    seeds = len(primary["per_seed"])
    yield "images", "; ".join(sizes) + (f", {seeds} seeds" if seeds > 1 else "")
    registered = "registered in advance" if predicate["verdict"].get("registered") else "chosen after looking"
    yield f"attack, {registered}", f"{_code(primary['attack'])} on the {_code(primary['output'])} output"
    for name, words in _MEASURED.items():
        if name in predicate["verdict"]:
            entry = Estimate.from_json(predicate["verdict"][name])
            yield f"{words}, 95 % interval", f"{estimate(entry)}, n = {count(entry.n)}"
    yield "date", _text(predicate["run"]["created"][:10])
    yield "made with", f"encoder-audit {_text(predicate['versions'].get('encoder-audit', 'of unknown version'))}"
    for line in predicate["registrations"]:
        if line["event"] in ("roles", "plan"):
            yield f"{line['event']} registered {_text(line['time'][:10])}, SHA-256", _code(line["sha256"])
    yield "report.json, SHA-256", _code(predicate["report"]["digest"]["sha256"])
    for one in statement["subject"]:
        words = _KINDS[one["annotations"]["kind"]]
        yield f"{words}, SHA-256", f"{_code(one['name'])}: {_code(one['digest']['sha256'])}"


def _text(text: str) -> str:
    """A text of unknown origin on one line, with nothing that Markdown or HTML reads as more than letters.

    Example:
        >>> _text("a|b <i> *c*")
        'a\\\\|b \\\\<i\\\\> \\\\*c\\\\*'
    """
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", plain(text, _LONGEST))


def _code(text: str) -> str:
    """A name of unknown origin as code."""
    return f"`{plain(text).replace('`', chr(39)).replace('|', '/')}`"
