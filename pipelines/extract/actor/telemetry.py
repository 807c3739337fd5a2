"""Metrics of a running extraction for Ray's dashboard: all names, tags and units.

Ray exports them on every node's metrics port with the prefix ``ray_``, counters with ``_total`` at the end, for
Prometheus and Grafana.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

STEPS = ("decode", "augment", "forward", "features", "commit")
TAGS = ("run", "encoder")
PREFIX = "encoder_audit_"
COUNTERS = {
    "images": "images committed, rejected ones included",
    "rejected": "images that could not be queried",
    "queries": "queries answered by encoders",
    "chunks": "chunks of images committed",
}
SECONDS = "step_seconds"
BUSY = "encoder_busy_share"


class Telemetry:
    """An encoder actor's counters (see `COUNTERS`), seconds by step, and the share of time its encoder is busy.

    Args:
        run: name of the run, a tag of everything.
    """

    def __init__(self, run: str) -> None:
        from ray.util.metrics import Counter, Gauge

        self.run = run
        self.counters = {
            name: Counter(f"{PREFIX}{name}", description=words, tag_keys=TAGS) for name, words in COUNTERS.items()
        }
        self.seconds = Counter(
            f"{PREFIX}{SECONDS}", description="seconds of an encoder actor by step", tag_keys=(*TAGS, "step")
        )
        self.busy = Gauge(
            f"{PREFIX}{BUSY}",
            description="share of the time since the actor's last chunk that was the encoder's forward pass, 0 to 1",
            tag_keys=TAGS,
        )
        self.last = time.monotonic()

    def committed(self, receipts: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Count a committed chunk: encoders that were asked for it together, each with its receipt."""
        now = time.monotonic()
        for encoder, receipt in receipts:
            tags = {"run": self.run, "encoder": encoder}
            amounts = {name: receipt[name] for name in ("rejected", "queries")}
            for name, amount in (amounts | {"images": receipt["rows"], "chunks": 1}).items():
                if amount:  # a counter takes no 0
                    self.counters[name].inc(amount, tags)
            for step in STEPS:
                if receipt[step] > 0:
                    self.seconds.inc(receipt[step], {**tags, "step": step})
            self.busy.set(min(1.0, receipt["forward"] / max(1e-9, now - self.last)), tags)
        self.last = now
