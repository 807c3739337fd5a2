"""The command ``check``: config, some of the data, weights and resources, without a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from pipelines.cli.completion import configs
from pipelines.cli.flags import Flags, with_flags
from pipelines.cli.loading import COMMAND_LINE, check_weights, loaded_run
from pipelines.cli.options import Overrides
from pipelines.console import output

_WARNING = "WARNING: "  # told first, and counted
Config = Annotated[
    str | None, typer.Argument(help="Config file or name of a config.", metavar="[CONFIG]", autocompletion=configs)
]


@with_flags
def check(flags: Flags, config: Config = None, overrides: Overrides = None) -> None:
    """Check config or flags, some of the data, weights and resources, without a run: what could the audit find?"""
    flags.check_files()

    from pipelines.console import count_of
    from pipelines.data.draw.draw import check_sizes
    from pipelines.data.look import Look
    from pipelines.data.run import counts_in_words, faults_of_lists
    from pipelines.encoders import adopt
    from pipelines.plan.attack_checks import check_drawn
    from pipelines.plan.prospects import prospects
    from pipelines.run.folder import RunFolder
    from pipelines.run.heartbeat import progress_lines
    from pipelines.run.machine import cpus
    from pipelines.run.points import points

    loaded, _ = loaded_run(config, overrides, None, flags)
    lines: list[str] = []
    loaded.resources.check({"CPU": float(cpus()), "GPU": _gpus()})
    check_weights(loaded)
    check_sizes(loaded.data)
    look = Look.at(loaded.data)
    if not look.whole:
        lines.append(f"data: {look}")
    lines.append(f"data: {look.scanned.tally}")
    for note in look.scanned.tally.notes():
        lines.append(f"data: {note}")
    for seed in loaded.seeds:
        drawn = look.draw_roles(seed)
        check_drawn(loaded, look.counts(drawn))
        lines.append(f"seed {seed}: {'' if look.whole else 'about '}{counts_in_words(look.counts(drawn), drawn)}")
        for line in faults_of_lists(drawn) if seed == loaded.seeds[0] else ():
            lines.append(f"data: {_WARNING}{line}")
        for line in prospects(loaded, look.counts(drawn)) if seed == loaded.seeds[0] else ():
            lines.append(f"verdict: {line}")
    first = loaded.seeds[0]
    with progress_lines("check"):
        for name, description in adopt.try_out(loaded, look.draw_roles(first), first):
            lines.append(f"encoder {name}: {description}")
    swept = points(loaded, RunFolder("."))
    for point in swept:
        for seed in point.config.seeds if point.config.data != loaded.data else ():
            of_point = replace(look, data=point.config.data)
            check_drawn(point.config, of_point.counts(of_point.draw_roles(seed)))
    if swept:
        lines.append(f"sweeps: {count_of(len(swept), 'point', 'points')}")
    parts = [line.partition(_WARNING) for line in lines]
    warnings = [f"{_WARNING}{head.partition(': ')[0]}: {text}" for head, mark, text in parts if mark]
    for line in (*warnings, *(head.rstrip("; ") for head, mark, _ in parts if not mark or "; " in head)):
        output.print(line)
    outcome = count_of(len(warnings), "warning", "warnings") if warnings else "fine"
    output.print(f"{COMMAND_LINE if flags.names_encoder else config}: {outcome}")


def _gpus() -> float:
    import torch

    return float(torch.cuda.device_count())
