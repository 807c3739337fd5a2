"""What encoder actors do is visible on the metrics port of their node."""

from __future__ import annotations

import re
import time
from urllib.request import urlopen

import pytest

from pipelines.console import meter, under_way
from pipelines.extract.actor.worker import STEPS, Telemetry

WAIT_SECONDS = 90  # until the node's agent has taken the numbers over


def scraped() -> str:
    import ray

    (node,) = ray.nodes()
    with urlopen(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def values(text: str, name: str, **tags: str) -> list[float]:
    found = []
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if re.match(rf"ray_{name}(_total)?\{{", head) and all(f'{tag}="{of}"' in head for tag, of in tags.items()):
            found.append(float(value))
    return found


@pytest.mark.slow
def test_metrics_reach_the_port_of_the_node(local_ray: None) -> None:
    import ray

    @ray.remote(num_cpus=0)
    class Actor:
        def __init__(self) -> None:
            self.telemetry = Telemetry("a run")

        def commit(self) -> None:
            receipt = dict.fromkeys(STEPS, 0.25) | {"rows": 10, "rejected": 1, "queries": 90}
            self.telemetry.committed([("target", receipt)])
            self.telemetry.committed([("target", receipt | {"rejected": 0, "queries": 100}), ("control", receipt)])

    actor = Actor.remote()  # type: ignore[attr-defined]
    ray.get(actor.commit.remote())
    end = time.monotonic() + WAIT_SECONDS
    while not values(text := scraped(), "encoder_audit_chunks", run="a run"):
        assert time.monotonic() < end, "the metrics never came"
        time.sleep(1)
    tags = {"run": "a run", "encoder": "target"}
    assert values(text, "encoder_audit_images", **tags) == [20]
    assert values(text, "encoder_audit_rejected", **tags) == [1]
    assert values(text, "encoder_audit_queries", **tags) == [190]
    assert values(text, "encoder_audit_chunks", **tags) == [2]
    assert [values(text, "encoder_audit_step_seconds", step=step, **tags) for step in STEPS] == [[0.5]] * len(STEPS)
    (busy,) = values(text, "encoder_audit_encoder_busy_share", **tags)
    assert 0 <= busy <= 1


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
