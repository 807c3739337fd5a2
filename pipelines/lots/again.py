"""Ask the encoder of a statement again, about images that chance picks, and compare the answers.

Whoever writes other answers into a statement, and all digests anew, is found only so. Chance prefers the answers that
speak for a use (`mi_core.lots.verdict.support_of`). It takes the lot with its vault, since held-back images are among
those asked about.
"""

from __future__ import annotations

import math
import secrets
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from mi_core.auditing.models import evaluating, is_address
from mi_core.checks import ConfigError
from mi_core.lots.drawn import counted_against
from mi_core.lots.verdict import support_of
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.lots.asking import Asking
from pipelines.lots.claim import ask
from pipelines.lots.question import describe, whole
from pipelines.lots.statement import Stated
from pipelines.lots.vault import Lot, contents_of
from pipelines.lots.verify import ENCODER
from pipelines.report.verify import FAILS, HOLDS, OPEN, Check
from pipelines.run.parts import on_parts

_LEAST, _TENTH = 50, 10  # images that are asked about again: a tenth, and at least so many
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
            return Check(ENCODER, FAILS, f"{text}, and the statement's {question.fingerprint}")
        plan = question.plan
        if other := [name for name in plan if described.plan.get(name) != plan[name]]:
            raise UserError(f"this would ask in another way: {', '.join(other)}; give the settings of the claim")
        rows = stated.rows
        count = min(len(rows), max(_LEAST, math.ceil(len(rows) / _TENTH)))
        scores = counted_against(*stated.answers(), stated.drawn, rows)
        chances = support_of(stated.drawn, rows, *scores)
        chosen = np.random.default_rng(secrets.randbits(64)).choice(len(rows), count, replace=False, p=chances)
        units = [unit.versions for release in releases for unit in contents_of(release.units)]
        versions = stated.opened["versions"].to_pylist()
        if any(units[rows[one]] != tuple(versions[one]) for one in chosen):
            return Check(ENCODER, FAILS, f"the images of {lot.path} are not those of the statement")
        with tempfile.TemporaryDirectory() as folder, on_parts(folder, None, "verify") as each:
            found = ask(releases, rows[chosen], folder, Asking(model, own, nonce), each)
    now, then = (np.concatenate(parts, axis=1) for parts in ([one[rows] for one in found], stated.answers()))
    return _compared(now[chosen], then[chosen], float(np.nanstd(then[:, :2])), is_noisy=is_address(model))


def _compared(now: npt.NDArray[np.float64], then: npt.NDArray[np.float64], spread: float, *, is_noisy: bool) -> Check:
    """Compare answers (M, 4) with those of a statement, by the standard deviation of the scores."""
    gone = int((np.isnan(now) & ~np.isnan(then)).any(axis=1).sum())
    if gone:
        return Check(ENCODER, OPEN, f"{gone} of {len(now)} images that chance picked are missing now; put them back")
    gaps = np.abs(now - then)[~np.isnan(now) & ~np.isnan(then)] / max(spread, 1e-6)
    if not len(gaps):
        return Check(ENCODER, OPEN, "all images that chance picked were missing at the claim, so there is no answer")
    apart = float(np.sqrt(np.mean(gaps**2)) if is_noisy else gaps.max())
    kind = "on average" if is_noisy else "at most"
    text = f"asked again about {len(now)} images that chance picked: answers differ by {apart:.2g} standard deviations"
    return Check(ENCODER, HOLDS if apart <= (_ALIKE if is_noisy else _SAME) else FAILS, f"{text} of the scores {kind}")
