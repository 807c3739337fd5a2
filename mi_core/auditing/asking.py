"""How the encoders of an audit are asked: the views of every image, trials, references trained here; the registration.

An audit in Python is registered in a file beside it, with the chain of `mi_core.registration`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mi_core import registration
from mi_core.auditing.attacks import Asked, AuditAttack, needs_of
from mi_core.auditing.config_text import FAMILY, reference_settings
from mi_core.auditing.models import Model, Reference, make_references
from mi_core.auditing.questions import Question
from mi_core.auditing.reading import AuditedImages
from mi_core.augmentations.views import make_views
from mi_core.checks import ConfigError
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.checkpoint import Encoder
from mi_core.features import Measure
from mi_core.features.embedding import Embedding
from mi_core.images import Decoder
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.querying.precision import precision_on
from mi_core.querying.precision_trial import tried_precision
from mi_core.querying.sanity import PROBED, view_consistency
from mi_core.records import BoolArray, Features
from mi_core.report.model.as_json import part_from_json
from mi_core.report.model.report import NonceOrigin, Registration
from mi_core.streams import pixel_streams
from mi_core.validity.file_features import shrunken
from mi_core.validity.verdict import CHOICE

EMBEDDING = Embedding()  # what the classifier on embeddings reads
COMMAND = "mi_core.audit(...)"
UNRECORDED = "Nothing recorded how often these images were looked at."
_RECORDED = "The file {} records this; it shows no look that was made without it, and no change in code."


@dataclass(frozen=True)
class Setup:
    """The settings of an audit, as `mi_core.audit` takes them, but for these.

    Args:
        attacks: the first is that of the verdict.
        question: how the target is asked.
        origin: of the nonce.
        device: where the encoders are.
        bar: shows how far the audit is.
    """

    attacks: tuple[AuditAttack, ...]
    question: Question
    views: int
    fdr: float
    factor: float
    seed: int
    nonce: str
    origin: str
    device: torch.device
    bar: Bar

    def ask(self, target: Model, beside: Sequence[Reference], samples: AuditedImages, seen: BoolArray) -> Asked:
        """Ask all encoders about all images.

        Args:
            target, beside: the encoders.
            samples: the N images.
            seen: (N,) which images the classifiers see. Of the others neither pixels (up to 12 kB an image) nor
                embeddings are kept.
        """
        read = needs_of(self.attacks)
        more = tuple(dict.fromkeys((*read, EMBEDDING)))
        asked = {"target": (target.encoder, self.question.output, read)}
        asked |= {one.name: (one.model.encoder, one.output, more) for one in beside}
        parts: dict[tuple[str, str], list[np.ndarray]] = {}
        small = _Rows(int(seen.sum()))
        embeddings = _Rows(int(seen.sum()))
        together: dict[tuple[str, int | None, tuple[Measure, ...]], dict[str, Encoder]] = {}
        for name, (encoder, output, needs) in asked.items():
            ready = for_queries(encoder, self.device)
            together.setdefault((output, ready.size, needs), {})[name] = ready
        extractors = [
            Extractor(
                some,
                QueryPlan(needs, (output,), self.views, precision=self._precision(some, samples.decoder)),
                self.question.recipe,
                self.device,
            )
            for (output, _, needs), some in together.items()
        ]
        ids = samples.ids
        tick = self.bar.begin("asking the encoders", len(ids))
        for rows, pixels in samples.chunks():
            names, images, shown = ids[rows], torch.from_numpy(pixels), seen[rows]
            streams = pixel_streams(self.nonce, self.seed, "query", images)
            found = {}
            for extractor in extractors:
                for name, columns in extractor(images, streams, names).items():
                    found[name] = {column.partition(".")[2]: values for column, values in columns.items()}
                    for measure in read:
                        parts.setdefault((name, measure.name), []).append(found[name][measure.name])
            small.add([shrunken(one) for one in pixels[shown]])
            nothing = np.empty((len(names), 0), dtype=np.float32)
            embeddings.add(np.hstack([nothing, *(found[one.name][EMBEDDING.name] for one in beside)])[shown])
            tick(len(names))
        each = np.array(ids)
        features = {
            name: Features(each, {measure.name: np.concatenate(parts.pop((name, measure.name))) for measure in read})
            for name in asked
        }
        return Asked(features, small.array, embeddings.array)

    def _precision(self, encoders: Mapping[str, Encoder], decoder: Decoder) -> str:
        """Of encoders that are asked together."""
        if self.device.type == "cpu":
            return tried_precision(encoders.values(), decoder.channels, decoder.image_size)
        return precision_on(self.device.type, "auto")

    @torch.inference_mode()
    def consistency(self, model: Model, samples: AuditedImages, rows: Sequence[int] = ()) -> dict[str, Any]:
        """Whether an encoder recognises images in two different views; without rows the first by their ids."""
        ids = samples.ids
        images = torch.from_numpy(samples.pixels(rows or sorted(range(len(ids)), key=ids.__getitem__)[:PROBED]))
        return view_consistency(
            model.encoder.to(self.device),
            None if model.reference is None else model.reference.to(self.device),
            images,
            pixel_streams("", self.seed, "probe", images),
            self.question.recipe,
            device=self.device,
            half=self._precision({"": model.encoder}, samples.decoder) == "bfloat16",
        )

    def references(self, given: Sequence[Model] | None, samples: AuditedImages) -> list[Reference]:
        """The references that the user gave; None: those trained here on halves of the images."""
        if given is None:
            planned = reference_settings()
            tick = self.bar.begin("training references", planned["halves"] * planned["epochs"])
            images = _Rows(len(samples.items))
            for _, pixels in samples.chunks():
                images.add(pixels)
            how: dict[str, Any] = {"seed": self.seed, "nonce": self.nonce, "device": self.device, "progress": tick}
            named = make_references(images.array, samples.hashes, **how)
        else:
            nothing = np.zeros(len(samples.items), dtype=bool)
            named = [Reference(f"{FAMILY}-{number}", model, nothing, given=True) for number, model in enumerate(given)]
        tried, rows, wanted = [], samples.first(PROBED, self.seed), self.question.output
        for one in named:
            unseen, outputs = rows[~one.seen[rows]][:PROBED].tolist(), one.model.encoder.outputs
            works = self.consistency(one.model, samples, () if one.given else unseen)
            tried.append(replace(one, output=wanted if wanted in outputs else outputs[0], consistency=works))
        return tried

    def grid(self, samples: AuditedImages) -> tuple[np.ndarray, np.ndarray]:
        """The first candidates (N, C, S, S) and their views (N, V, C, S, S), uint8."""
        rows = sorted(np.flatnonzero(samples.candidate).tolist(), key=samples.ids.__getitem__)[:4]
        images = samples.pixels(rows)
        shown = torch.from_numpy(images)
        streams = pixel_streams(self.nonce, self.seed, "query", shown)
        drawn = make_views(shown, streams, self.question.recipe, views=self.views)
        return images, (drawn * 255).round().to(torch.uint8).numpy()

    def plan(self, target: Model, references: Sequence[Model] | None) -> dict[str, Any]:
        """The plan of an audit: all that its scores hang on in every attack; without references some are trained."""
        question, nonce = self.question, {"from": self.origin, "value": self.nonce}
        asked = {
            "output": question.output,
            "encoder": target.part.fingerprint,
            "normalisation": question.how.normalisation,
            "pixels": question.decoder.settings(),
            "views": self.views,
            "objective": question.objective,
            "augmentation": asdict(question.recipe),
            "seed": self.seed,
        }
        attacks = [one.settings() | asked for one in self.attacks]
        beside = [reference_settings()] if references is None else [one.part.fingerprint for one in references]
        settled = {"output": question.output, "nonce": nonce, "by": CHOICE, "factor": self.factor, "references": beside}
        return {"primary_attack": attacks[0], "attacks": attacks, **settled}


@dataclass(frozen=True)
class RegistrationFile:
    """The file of one question: the same images and encoder, asked in the same way, however often.

    Args:
        place: of the file, which need not be there yet; None: nothing is registered.

    Raises:
        ConfigError: the file cannot be read or written, or its chain is broken. So do the methods.
    """

    place: str | os.PathLike[str] | None

    def __post_init__(self) -> None:
        self.lines()

    def lines(self) -> list[dict[str, Any]]:
        """The lines so far."""
        if self.place is None or not Path(self.place).exists():
            return []
        try:
            lines = registration.lines_in(Path(self.place).read_bytes())
        except (OSError, TypeError, ValueError) as error:
            raise self._fault(f"cannot be read: {error}") from error
        if faults := registration.faults_of(lines):
            raise self._fault(f"is damaged: {faults[0]}")
        return lines

    def add(self, event: str, content: Mapping[str, Any]) -> None:
        """Append the line of an event."""
        if self.place is None or (line := registration.next_line(self.lines(), event, content)) is None:
            return
        try:
            with Path(self.place).open("ab") as file:
                file.write(registration.file_of([line]))
        except OSError as error:
            raise self._fault(f"cannot be written: {error}") from error

    def nonce(self, given: str | None) -> tuple[str, str]:
        """The nonce of an audit, the given one, else that of the first plan, else a new one; and who drew it."""
        planned = registration.planned_nonce(self.lines())
        if "value" in planned and given in (None, planned["value"]):
            return planned["value"], planned["from"]
        return (registration.new_nonce(), registration.SYSTEM) if given is None else (given, registration.GIVEN)

    def part(self, setup: Setup) -> Registration:
        """The part of a report on an audit with these settings."""
        if self.place is None:
            return Registration(nonce=NonceOrigin(origin=setup.origin, value=setup.nonce), note=UNRECORDED)
        note = _RECORDED.format(Path(self.place).name)
        return part_from_json(Registration, registration.registration_as_json(self.lines()) | {"note": note})

    def _fault(self, reason: str) -> ConfigError:
        return ConfigError(f"registration = {str(self.place)!r} {reason}; name another file")


class _Rows:
    """An array of so many rows that is filled part by part, so that the parts are never held beside it."""

    def __init__(self, count: int) -> None:
        self.array: np.ndarray = np.empty((count, 0))
        self.filled = 0

    def add(self, rows: Sequence[np.ndarray] | np.ndarray) -> None:
        """The next rows, all of one shape and dtype."""
        if not self.filled and len(rows):
            self.array = np.empty((len(self.array), *rows[0].shape), dtype=rows[0].dtype)
        self.array[self.filled : self.filled + len(rows)] = rows
        self.filled += len(rows)


class Bar(Progress):
    """A progress bar, where it is wanted and can be shown: in a terminal, or in a notebook with ipywidgets."""

    def __init__(self, wanted: bool) -> None:
        console = Console(stderr=True)
        able = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
        columns = TextColumn("{task.description:>20}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        super().__init__(*columns, console=console, transient=True, disable=not (wanted and able))

    def stop(self) -> None:
        """End the bar; one that is not shown prints no line of its own, as older versions of rich do."""
        if not self.disable:
            super().stop()

    def begin(self, title: str, total: int) -> Callable[..., None]:
        """Begin a task; returns a function that counts."""
        task = self.add_task(title, total=total)
        return lambda count=1: self.advance(task, count)
