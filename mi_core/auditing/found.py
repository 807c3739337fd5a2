"""The result of an audit: verdict, evidence, answers for single images, and the report as a page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mi_core.attacks.mean_cosine import MeanCosine
from mi_core.auditing.config_text import yaml_of
from mi_core.auditing.images import Item
from mi_core.auditing.reading import CANDIDATES, Samples
from mi_core.auditing.record import Measured, evidence_of, report_of, settings_of
from mi_core.checks import check_choice, check_range
from mi_core.images import decode, thumbnail
from mi_core.metrics.delong import auc
from mi_core.querying.sanity import fault_in_words
from mi_core.report.contents import AttackScores, FigureData, to_json
from mi_core.report.figures.figures import draw_figures
from mi_core.report.figures.images import ViewGrid
from mi_core.report.page.html import render_html
from mi_core.report.words import wording
from mi_core.validity.candidates import CandidateAnswers
from mi_core.validity.conformal import benjamini_hochberg
from mi_core.validity.verdict import Validity, judge


@dataclass(frozen=True, repr=False)
class Found:
    """The result of `mi_core.audit`. It holds no encoder, and can be pickled where the images can.

    Args:
        verdict: ``leak``, ``confounded``, ``no-evidence`` or ``undecided``; see `mi_core.validity.verdict`.
        answer: the verdict in a sentence.
        lines: how sure, and what it does not say.
        validity: AUCs of the attack and of its checks, and their differences, with intervals.
        report: the content of report.json.
        fdr: at which candidates are flagged.
    """

    verdict: str
    answer: str
    lines: tuple[str, ...]
    validity: Validity
    report: Mapping[str, Any]
    fdr: float
    _answers: CandidateAnswers | None
    _samples: Samples = field(repr=False)
    _scores: Mapping[str, Any] = field(repr=False)
    _settings: Mapping[str, Any] = field(repr=False)
    _grid: tuple[np.ndarray, np.ndarray] | None = field(repr=False, default=None)

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
        tests = self.report.get("evidence", {}).get("tests", [])
        return float(tests[0]["p"]) if tests else None

    @property
    def share_used(self) -> float | None:
        """The least share of the candidates that was used, at 95 % confidence; None as for ``p_value``."""
        tests = self.report.get("evidence", {}).get("tests", [])
        return float(tests[0].get("least_share", 0.0)) if tests else None

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
        chosen = benjamini_hochberg(self._answers.p_value, level)
        keys = self._keys
        return [keys[row] for row in self._answers.order.tolist() if chosen[row]]

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """A row for every candidate, the highest score first: ``key``, ``score``, ``p_value``, ``q_value``,
        ``posterior``; of candidates that are no evidence, key and score alone."""
        scores = self._scores["score"][self._scores["member"]]
        keys, own = self._keys, self._answers
        if own is None:
            return [{"key": keys[row], "score": float(scores[row])} for row in np.argsort(-scores).tolist()]
        columns = ("score", "p_value", "q_value", "posterior")
        return [{"key": keys[row], **{name: float(getattr(own, name)[row]) for name in columns}} for row in own.order]

    @cached_property
    def html(self) -> str:
        """The report as one HTML page."""
        return render_html(self.report, self._figures(), self._thumbnails(), self._flagged_ids())

    def save(self, path: str | Path) -> None:
        """Write the report: as a page to a file called ``.html``, as report.json to one called ``.json``.

        Raises:
            ConfigError: another suffix.
        """
        suffix = check_choice("suffix of the file", Path(path).suffix, (".html", ".json"))
        Path(path).write_text(self.html if suffix == ".html" else to_json(self.report), encoding="utf-8")

    def config(self) -> str:
        """A YAML config that repeats the audit as a run of its own, also on a cluster.

        A folder, the file of weights and an address stand in it as they were given. Other images and models have no
        name that a config could hold; a remark on top says what to fill in.
        """
        return yaml_of(self._settings["config"], tuple(self._settings["remarks"]))

    def __repr__(self) -> str:
        low, high = self.auc_interval
        whole = f"{self.verdict}: {self.answer} AUC {self.auc:.3f} [{low:.3f}, {high:.3f}]"
        return "\n".join([whole, *self.lines])

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, the AUCs, and the first flagged images."""
        names = {
            "blind_auc": "without the encoder",
            "semantic_auc": "on what references see",
            "control_auc": "on references that did not see the image",
        }
        rows = [("attack", self.validity.attack_auc)]
        rows += [(names[check], one) for check, one in self.validity.checks.items()]
        cells = "".join(
            f"<tr><td>{name}</td><td>{one.value:.3f}</td><td>{one.low:.3f} to {one.high:.3f}</td></tr>"
            for name, one in rows
        )
        said = "".join(f"<p>{html.escape(line)}</p>" for line in self.lines)
        named = self.flagged()
        listed = f"<p>{len(named)} named images, first {html.escape(', '.join(named[:5]))}</p>" if named else ""
        return (
            f"<div><h4>{self.verdict}: {html.escape(self.answer)}</h4>{said}"
            "<table><tr><th>check</th><th>AUC (.5 is guessing)</th><th>95 % interval</th></tr>"
            f"{cells}</table>{listed}</div>"
        )

    @property
    def _keys(self) -> list[str]:
        """Keys of the candidates, in the order of their scores."""
        samples = self._samples
        return [item.key for item, side in zip(samples.items, samples.sides, strict=True) if side == CANDIDATES]

    def _flagged_ids(self) -> list[str]:
        return [f"{CANDIDATES}/{key}" for key in self.flagged()]

    def _figures(self) -> Any:
        scores, seed = self._scores, self._settings["seed"]
        curve = AttackScores(
            MeanCosine.name,
            "target",
            self._settings["output"],
            "nonmembers",
            seed,
            scores["score"],
            scores["member"],
            scores["threshold"],
            scores["statistic"],
        )
        grid = None if self._grid is None else ViewGrid(*self._grid)
        return draw_figures(self.report, FigureData(scores=(curve,), views=grid))

    def _thumbnails(self) -> dict[str, bytes]:
        shown = {row["id"] for part in self.report.get("evidence", {}).get("samples", []) for row in part["top"]}
        samples = self._samples
        decoder = replace(samples.decoder, image_size=64, fit=None, resize=None)
        rows: list[tuple[str, Item]] = list(zip(samples.ids, samples.items, strict=True))
        return {name: thumbnail(decode(item.data(), decoder)) for name, item in rows if name in shown}

    @classmethod
    def of(
        cls,
        measured: Measured,
        *,
        objective: str,
        augmentation: Mapping[str, Any],
        output: str,
        views: int,
        data: Mapping[str, Any],
        fdr: float,
        factor: float,
        seed: int,
        grid: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Found:
        """Judge what was measured.

        Args:
            measured: by the audit.
            objective, augmentation, output, views, fdr, factor, seed: as `mi_core.audit`.
            data: as `config_text.audit_settings` takes it.
            grid: some images and their views, for the report.
        """
        scores = measured.scores
        member, seen = scores["member"], scores["seen"]
        fault = fault_in_words(measured.consistency)
        groups = scores["groups"][seen] if "groups" in scores else None
        semantic = auc(scores["semantic"][seen], member[seen], groups) if "semantic" in scores else None
        validity = judge(
            scores["score"][seen],
            scores["blind"][seen],
            scores["control"][seen] if "control" in scores else None,
            member[seen],
            groups,
            semantic_auc=semantic,
            trained=measured.trained,
            factor=factor,
            works=not fault,
        )
        proof, answers = evidence_of(scores, validity, output, fdr, seed, measured.samples)
        settings = settings_of(measured, (objective, augmentation), output, views, data, fdr, factor, seed)
        told = validity.as_json()
        told |= {"warning": f"The encoder target: {fault}"} if fault else {}
        report = report_of(measured, told, proof, settings, output, views, seed)
        said = wording.answer(report)
        context = {"config": settings["config"], "remarks": settings["remarks"], "output": output, "seed": seed}
        lines = (*said.lines, *measured.caveats)
        held = measured.samples, scores, context, grid
        return cls(validity.verdict, said.headline, lines, validity, report, fdr, answers, *held)
