"""Know an encoder behind an API again, by its answers to a few images, before an earlier run goes on with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import safetensors.torch
import torch

from mi_core.adoption.soundness import relative_differences
from mi_core.augmentations.views import clean
from mi_core.provenance import now
from mi_core.report.words.numbers import plain
from pipelines.data.plans import Planned
from pipelines.encoders import probe_ledger
from pipelines.encoders.access import Access
from pipelines.encoders.adopt import CHECKED, Adoption, adoptions
from pipelines.encoders.stored import ANSWERS, describe
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.run.folder import SeedFolder
from pipelines.run.points import Run
from pipelines.run.ray_session import mapped

CHANGED = 0.01  # relative difference above which other weights answer; more where answers are noisier


def check_unchanged(
    planned: Sequence[Planned], wanted: Collection[tuple[SeedFolder, str]], access: Access | None
) -> None:
    """Ask encoders behind an API, adopted by an earlier start, for a few answers that are known.

    Args:
        planned: the plans in hand.
        wanted: which of their encoders; see `to_check`.
        access: how they are asked.

    Raises:
        UserError: an answer differs from that at the adoption by more than noise.
    """
    jobs = [job for one in planned for job in adoptions(one) if (job.folder, job.name) in wanted]
    mapped(_check, [(job, access) for job in jobs], "encoders", "checking that they have not changed")


def to_check(runs: Sequence[Run], places: Collection[tuple[SeedFolder, str]]) -> list[tuple[SeedFolder, str]]:
    """The encoders behind an API among some, without those adopted since this start of the run."""
    started = runs[0][1].manifest["runs"][-1]["started"]
    records = [(folder, name, describe(folder, name).record) for folder, name in places]
    asked = [(folder, name, record) for folder, name, record in records if "widths" in record.answers]
    return [(folder, name) for folder, name, record in asked if record.adopted < started]


def record_checks(places: Collection[tuple[SeedFolder, str]]) -> None:
    """Write down that some encoders will be asked whether they are still the same."""
    for folder, name in places:
        images = min(CHECKED, describe(folder, name).record.answers["noise"]["n"])
        checks = [*probe_ledger.recorded_checks(folder, name), {"asked": now(), "queries": images}]
        storage.write_json(probe_ledger.checks_path(folder, name), checks)


def _check(job: Adoption, access: Access | None) -> None:
    stored = describe(job.folder, job.name)
    encoder = stored.load(0, None if access is None else access.client)
    known = safetensors.torch.load(storage.read_bytes(f"{stored.folder}/{ANSWERS}"))
    images = clean(torch.from_numpy(job.images(CHECKED).images))
    answers = encoder(images, cached=False)
    largest = max(float(relative_differences(known[output], answers[output]).max()) for output in known)
    allowed = max(CHANGED, 4 * stored.record.answers["noise"]["largest"])
    if not largest <= allowed:
        raise UserError(
            f"encoders.{job.name}.endpoint: its answers have changed since adoption, by {plain(largest, 2)} of the "
            f"embedding's length (noise: at most {plain(allowed, 2)}), so other weights answer now; serve the former "
            "ones, or redo with --force pretrain"
        )
