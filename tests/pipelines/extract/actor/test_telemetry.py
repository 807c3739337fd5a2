"""What encoder actors do is counted by run and encoder, and told while they do it."""

from __future__ import annotations

from collections import Counter

import pytest

from pipelines.console import meter, under_way
from pipelines.extract.actor.worker import PREFIX, STEPS, Telemetry

SUMS: Counter[tuple[str, ...]] = Counter()


class Metric:
    """Stands for a counter or gauge of Ray: adds up what it is given, by its name and the values of its tags."""

    def __init__(self, name: str, **_: object) -> None:
        self.name = name.removeprefix(PREFIX)

    def inc(self, amount: float, tags: dict[str, str]) -> None:
        SUMS[self.name, *tags.values()] += amount

    set = inc


def test_commits_are_counted_by_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("Counter", "Gauge"):
        monkeypatch.setattr(f"ray.util.metrics.{kind}", Metric)
    telemetry = Telemetry("a run")
    receipt = dict.fromkeys(STEPS, 0.25) | {"rows": 10, "rejected": 1, "queries": 90}
    telemetry.committed([("target", receipt)])
    telemetry.committed([("target", receipt | {"rejected": 0, "queries": 100}), ("control", receipt)])
    told = {name: amount for (name, run, *of), amount in SUMS.items() if run == "a run" and of == ["target"]}
    assert 0 <= told.pop("encoder_busy_share") <= 2
    assert told == {"images": 20, "rejected": 1, "queries": 190, "chunks": 2}
    steps = {of[1]: amount for (name, _, *of), amount in SUMS.items() if name == "step_seconds" and "target" in of}
    assert steps == dict.fromkeys(STEPS, 0.5)


def test_progress_is_told_with_the_rate_since_the_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("pipelines.console.monotonic", lambda: clock[0])
    with meter("querying encoders", 1000, "images", before=90) as done:
        lines = []
        for clock[0], images in ((0.0, 90), (31.0, 400), (62.0, 710)):
            done(images)
            lines += [piece.line() for piece in under_way()]
    assert lines == [
        "querying encoders: 90 of 1,000 images (9.0%)",
        "querying encoders: 400 of 1,000 images (40.0%), 10 images/s, about 1 min 00 s left",
        "querying encoders: 710 of 1,000 images (71.0%), 10 images/s, about 0 min 29 s left",
    ]
    assert under_way() == []
