"""What fitting and scoring each attack costs on one core (`mi_core.bench.attacks`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table

from pipelines.bench import chosen_of
from pipelines.console import say
from pipelines.run.folder import now, versions


def run(attacks: Iterable[str] = (), *, samples: int = 20_000, threads: int = 1) -> dict[str, Any]:
    """Measure attacks with their default settings and return ``{"attacks": {name: seconds}, ...}``.

    Args:
        attacks: names; none: all.
        samples: fitted on, and scored.
        threads: cores to use.

    Raises:
        UserError: no such attack.
    """
    import torch

    from mi_core.attacks import ATTACKS
    from mi_core.bench.attacks import attack_benchmark

    chosen = chosen_of(attacks, ATTACKS, "--attack")
    torch.set_num_threads(threads)
    results = {}
    for name in chosen:
        found = results[name] = attack_benchmark(name, samples)
        say("bench", f"{name}: fit {found['fit_seconds']:.1f} s, score {found['score_seconds']:.2f} s")
    return {"attacks": results, "samples": samples, "threads": threads, "created": now(), "versions": versions()}


def table(result: dict[str, Any]) -> Table:
    """The result for a terminal."""
    title = f"Fit on {result['samples']:,} samples, score as many; seconds on {result['threads']} core(s)"
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("attack")
    for name in ("fit", "epochs x s", "score"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("dominates")
    for name, found in result["attacks"].items():
        epochs = f"{found['epochs']} x {found['epoch_seconds']:.2f}" if "epochs" in found else ""
        shown.add_row(name, f"{found['fit_seconds']:,.3f}", epochs, f"{found['score_seconds']:.3f}", found["dominates"])
    return shown
