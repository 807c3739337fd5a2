"""Ask the encoder of a statement again, about images that chance picks, and compare the answers.

Whoever writes other answers into a statement, and all digests anew, is found only so. Chance prefers the answers that
speak for a use (`mi_core.lots.verdict.support_of`). It takes the lot with its vault, since held-back images are among
those asked about.
"""

from __future__ import annotations

import math
import secrets
import tempfile
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.auditing.models import evaluating, is_address
from mi_core.checks import ConfigError
from mi_core.lots.draw import counted_against
from mi_core.lots.verdict import support_of
from mi_core.records import BoolArray
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.claim import Asking, ask
from pipelines.lots.question import describe, differing, whole
from pipelines.lots.statement import Stated
from pipelines.lots.vault import Lot, contents_of
from pipelines.lots.verify import ENCODER
from pipelines.report.statement import FAILS, HOLDS, OPEN, Check
from pipelines.run.parts import on_parts

_LEAST, _TENTH = 50, 10  # images that are asked about again: a tenth, and at least so many
_DRIFT, _SIGMAS = 1e-4, 4.0  # standard deviations by which answers may lean towards a use, and errors of that mean
_fails = partial(Check, ENCODER, FAILS)
_SAME, _ALIKE = 0.01, 0.1  # standard deviations of the scores by which answers may differ: at most; an API's, rms


def ask_again(file: str, place: str | None, model: Any, **settings: Any) -> Check:
    """Ask the encoder again about a tenth of the images, which chance picks, and compare the answers.

    Args:
        file: statement.json.
        place: folder of the lot, with its vault; None: the one around the statement.
        model: the encoder, as the reader of the statement has it.
        settings: as those of `pipelines.lots.claim.claim`.

    Raises:
        UserError: the lot is another one, or the encoder is asked in another way than the question says.
    """
    stated = Stated.read(file)
    try:
        question, headers, nonce = stated.question, stated.headers, stated.nonce
    except (ConfigError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}), so that there is nothing to ask again") from error
    lot = Lot.at(place or storage.absolute(file).rsplit("/", 3)[0])
    releases = lot.releases()[: len(headers)]
    if [release.header.commitment for release in releases] != [header.commitment for header in headers]:
        raise UserError(f"{lot.path} is not the lot of {file}; its commitments are others")
    own = whole(settings)
    with evaluating(model):
        described = describe(model, own, releases)
        if described.fingerprint != question.fingerprint:
            text = f"the encoder given is another one: its fingerprint is {described.fingerprint}"
            return _fails(f"{text}, and the statement's {question.fingerprint}")
        if described.encoder != question.encoder:
            return _fails(f"the encoder given is {described.encoder}, the statement's {question.encoder}")
        if other := differing(described.plan, question.plan):
            raise UserError(f"this would ask in another way: {', '.join(other)}; give the settings of the claim")
        if hidden := sorted(set(described.given) - set(question.given)):
            return _fails(f"the owner chose {', '.join(hidden)}, and the registration does not say so")
        if any(release.root() != header.root for release, header in zip(releases, headers, strict=True)):
            return _fails(f"the images of {lot.path} are not those that were committed")
        rows = stated.rows
        count = min(len(rows), max(_LEAST, math.ceil(len(rows) / _TENTH)))
        chances = support_of(stated.drawn, rows, *counted_against(stated.answers, stated.drawn, rows))
        chosen = np.random.default_rng(secrets.randbits(64)).choice(len(rows), count, replace=False, p=chances)
        units = [unit.sha256 for release in releases for unit in contents_of(release.units)]
        opened = stated.opened["sha256"].to_pylist()
        if any(units[rows[one]] != opened[one] for one in chosen):
            return _fails(f"the images of {lot.path} are not those of the statement")
        with tempfile.TemporaryDirectory() as folder, on_parts(folder, None, "verify") as each:
            found = ask(releases, rows[chosen], folder, Asking(model, own, nonce), each)
    held = stated.drawn.held_back[rows[chosen]]
    return _compare(found[rows[chosen]], stated.answers[chosen], held, is_noisy=is_address(model))


def _compare(
    now: npt.NDArray[np.float64], then: npt.NDArray[np.float64], held_back: BoolArray, *, is_noisy: bool
) -> Check:
    """Compare answers (M, 1 + K) with those of a statement, by the standard deviation of the scores."""
    gone, came = ((np.isnan(one) & ~np.isnan(other)).any(axis=1).sum() for one, other in ((now, then), (then, now)))
    if gone:
        return Check(ENCODER, OPEN, f"{gone} of {len(now)} images that chance picked are missing now; put them back")
    if came:
        return _fails(f"{came} of {len(now)} images that chance picked have an answer now, and had none")
    moved = (then - now) / max(float(np.nanstd(now[:, 0])), 1e-6)
    gaps = np.abs(moved[~np.isnan(moved)])
    if not len(gaps):
        return Check(ENCODER, OPEN, "all images that chance picked were missing at the claim, so there is no answer")
    towards = moved[:, 0] * np.where(held_back, -1, 1)  # a use
    error = float(np.nanstd(towards)) / math.sqrt(len(towards))
    drift, apart = float(np.nanmean(towards)), float(np.sqrt(np.mean(gaps**2)) if is_noisy else gaps.max())
    most = _ALIKE if is_noisy else _SAME
    asked = f"asked again about {len(now)} images that chance picked"
    if apart > most:
        kind = "the answers differ by" if is_noisy else "the largest difference is"
        return _fails(f"{asked}: {kind} {apart:.2g} standard deviations of the scores; {most:g} may be")
    if drift > max(_DRIFT, _SIGMAS * error):
        return _fails(f"{asked}: the answers stated lean towards a use by {drift:.2g} standard deviations")
    return Check(ENCODER, HOLDS, f"{asked}: the same answers, to {apart:.2g} standard deviations of the scores")
