"""The result of an audit: verdict, evidence, answers for single images, and the report as a page."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mi_core.auditing.attacks import Scores
from mi_core.auditing.reading import CANDIDATES, AuditedImages
from mi_core.checks import check_choice, check_range
from mi_core.images import decode, thumbnail
from mi_core.report.contents import to_json
from mi_core.report.figures.drawing import AttackScores, FigureData, ViewGrid
from mi_core.report.figures.figures import draw_figures
from mi_core.report.model.as_json import part_as_json
from mi_core.report.model.judgement import CandidateTest
from mi_core.report.model.report import Report
from mi_core.report.page.html import render_html
from mi_core.report.words.sentences import PAGES, template
from mi_core.validity.candidates import NUMBERS, CandidateAnswers
from mi_core.validity.conformal import flagged_at, q_values
from mi_core.validity.verdict import Validity

_ROWS = 19  # of a terminal, for what stands between headline and numbers


@dataclass(frozen=True, repr=False)
class Found:
    """The result of `mi_core.audit`. It holds no encoder, and can be pickled where the images can.

    Args:
        answer: the verdict in a sentence.
        lines: how sure, and what it does not say.
        validity: AUCs of the attack and of its checks, and their differences, with intervals.
        fdr: at which candidates are flagged.
    """

    answer: str
    lines: tuple[str, ...]
    validity: Validity
    fdr: float
    _report: Report
    _config: str
    _answers: CandidateAnswers | None
    _samples: AuditedImages
    _scores: Scores
    _grid: tuple[np.ndarray, np.ndarray]

    @property
    def verdict(self) -> str:
        """``leak``, ``confounded``, ``no-evidence`` or ``undecided``; see `mi_core.validity.verdict`."""
        return self.validity.verdict

    @cached_property
    def report(self) -> dict[str, Any]:
        """The content of report.json."""
        return dict(part_as_json(self._report))

    @property
    def auc(self) -> float:
        """AUC of the attack: the chance that a candidate scores above a control, in [0, 1]; .5 is guessing."""
        return self.validity.attack_auc.value

    @property
    def auc_interval(self) -> tuple[float, float]:
        """Its 95 % interval."""
        return self.validity.attack_auc.low, self.validity.attack_auc.high

    @property
    def p_value(self) -> float | None:
        """The chance of scores as high if no candidate was used; None without the verdict leak."""
        return None if self._test is None else self._test.p

    @property
    def share_used(self) -> float | None:
        """The least share of the candidates that was used, at 95 % confidence; None as for ``p_value``."""
        return None if self._test is None else self._test.least_share or 0.0

    @property
    def _test(self) -> CandidateTest | None:
        return None if self._report.evidence is None else self._report.evidence.primary_test

    def flagged(self, fdr: float | None = None) -> list[str]:
        """Keys of the candidates that can be named, the highest score first.

        Args:
            fdr: expected share of wrongly named ones among them, in (0, 1); None: that of the audit.

        Returns:
            Nothing without the verdict leak: then no score proves anything.
        """
        if self._answers is None:
            return []
        level = self.fdr if fdr is None else check_range("fdr", fdr, 0, 1, open_low=True, open_high=True)
        chosen = flagged_at(q_values(self._answers.p_value), level)
        keys = self._keys
        return [keys[row] for row in self._answers.order.tolist() if chosen[row]]

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """A row for every candidate, the highest score first: ``key``, ``score``, ``p_value``, ``q_value``,
        ``posterior``; of candidates that are no evidence, key and score alone."""
        scores = self._scores.first.score[self._scores.first.member]
        keys, own = self._keys, self._answers
        if own is None:
            return [{"key": keys[row], "score": float(scores[row])} for row in np.argsort(-scores).tolist()]
        return [{"key": keys[row], **{name: float(getattr(own, name)[row]) for name in NUMBERS}} for row in own.order]

    @cached_property
    def html(self) -> str:
        """The report as one HTML page."""
        curves = tuple(
            AttackScores(
                *(row.attack, row.target, row.output, row.reference, row.seed),
                *(one.score, one.member, one.threshold, one.statistic),
            )
            for row, one in zip(self._report.attacks, self._scores.attacks, strict=True)
        )
        figures = draw_figures(self._report, FigureData(scores=curves, views=ViewGrid(*self._grid)))
        flagged = [f"{CANDIDATES}/{key}" for key in self.flagged()]
        return render_html(self._report, figures, self._thumbnails(), flagged)

    def save(self, path: str | Path) -> None:
        """Write the report: as a page to a file called ``.html``, as report.json to one called ``.json``.

        Raises:
            ConfigError: another suffix.
        """
        suffix = check_choice("suffix of the file", Path(path).suffix, (".html", ".json"))
        text = self.html if suffix == ".html" else to_json(self._report)
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")  # of names that are not UTF-8

    def config(self) -> str:
        """A YAML config that repeats the audit as a run of its own, also on a cluster.

        A folder, the file of weights and an address stand in it as they were given. Other images and models have no
        name that a config could hold; a remark on top says what to fill in.
        """
        return self._config

    def __repr__(self) -> str:
        low, high = self.auc_interval
        said, numbers = f"{self.verdict}: {self.answer}", f"AUC {self.auc:.3f} [{low:.3f}, {high:.3f}]"
        left, shown = _ROWS, list[str]()
        for line in self.lines:
            left -= -(-len(line) // 80)
            if left < 0:
                break
            shown.append(line)
        if len(shown) < len(self.lines):
            shown.append(f"(and {len(self.lines) - len(shown)} more in .lines and in the report)")
        if self.verdict in ("confounded", "undecided"):
            return "\n".join([said, *shown, numbers])
        return "\n".join([f"{said} {numbers}", *shown])

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, the AUCs, and the first flagged images."""
        aucs = {"attack_auc": self.validity.attack_auc, **self.validity.checks}
        return template(f"{PAGES}/notebook.html.j2").render(found=self, aucs=aucs)

    def _thumbnails(self) -> dict[str, bytes]:
        answers = () if self._report.evidence is None else self._report.evidence.samples
        shown = {row.id for of_seed in answers for row in of_seed.top + of_seed.lowest}
        decoder = replace(self._samples.decoder, image_size=48, fit=None, resize=None)
        items = dict(zip(self._samples.ids, self._samples.items, strict=True))
        return {name: thumbnail(decode(items[name].data(), decoder)) for name in items if name in shown}

    @property
    def _keys(self) -> list[str]:
        """Keys of all images, the candidates first, in the order of their scores."""
        return [item.key for item in self._samples.items]
