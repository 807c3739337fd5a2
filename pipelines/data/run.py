"""The data stage: scan the sources once, and draw the roles of every seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from mi_core.validity.near_duplicates import doubt
from pipelines.console import say
from pipelines.data.draw.draw import draw
from pipelines.data.draw.splits import Splits, are_drawn
from pipelines.data.scan.scan import Scan, scan
from pipelines.plan.attack_checks import check_drawn
from pipelines.plan.prospects import prospects
from pipelines.run.folder import SCAN
from pipelines.run.points import Run
from pipelines.run.ray_session import mapped

_as_ray_tasks = partial(mapped, unit="shards")
"""Maps over shards as Ray tasks, in order, with a bar."""


def draw_roles(runs: Sequence[Run]) -> None:
    """Draw and write the missing splits; sources are scanned once for all seeds and runs."""
    scans: dict[str, Scan] = {}
    for config, folder in runs:
        todo = [seed for seed in config.seeds if not are_drawn(folder.seed(seed).path)]
        first = (config, folder) == runs[0]
        if len(todo) < len(config.seeds) and first:
            say("data", f"roles already drawn for {len(config.seeds) - len(todo)} of {len(config.seeds)} seeds")
        if not todo:
            continue
        read = config.data.scan_digest
        if read not in scans:
            scanned = scans[read] = scan(config.data, f"{runs[0].folder.path}/{SCAN}/{read[:12]}", _as_ray_tasks)
            lost = f"; {scanned.tally} and listed in splits/rejected.parquet" if scanned.tally.unusable else ""
            say("data", f"{scanned.tally.used} usable samples{lost}")
            for note in scanned.tally.notes():
                say("data", note)
        check = partial(check_drawn, config)
        for seed in todo:
            drawn = draw(config.data, scans[read], seed, folder.seed(seed).path, _as_ray_tasks, check)
            if first:
                say("data", f"seed {seed}: {counts_in_words(drawn.counts(), drawn)}")
            for line in drawing_faults(drawn) if seed == todo[0] else ():
                say("data", f"WARNING: {line}")
            for line in prospects(config, drawn.counts()) if first and seed == todo[0] else ():
                say("data", line)


def drawing_faults(drawn: Splits) -> list[str]:
    """One line for each list of keys that does not fit its source, and one for doubtful near-copies."""
    lists = drawn.rules.lists if drawn.rules is not None else {}
    lines = [keys.line(role) for role, keys in lists.items()]
    return [line for line in (*lines, doubt(drawn.near_removed or 0, drawn.near_among, _near_pairs(drawn))) if line]


def _near_pairs(drawn: Splits) -> Iterator[tuple[str, str]]:
    """Near-copies and what they are copies of; read when somebody looks at the first."""
    if (near := drawn.near_copies) is not None:
        yield from zip(near["id"].to_pylist(), near["copy_of"].to_pylist(), strict=True)


def counts_in_words(counts: Mapping[str, int], drawn: Splits) -> str:
    """One line with the sizes of the roles and the number of copies dropped."""
    sizes = ", ".join(f"{count} {role}" for role, count in counts.items())
    dropped = [f"{drawn.duplicates_removed} duplicates"] if drawn.duplicates_removed else []
    dropped += [f"{drawn.near_removed} near-copies"] if drawn.near_removed else []
    return sizes + (f"; {' and '.join(dropped)} dropped" if dropped else "")
