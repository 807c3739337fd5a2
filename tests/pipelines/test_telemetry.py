"""What encoder actors do is visible on the metrics port of their node."""

from __future__ import annotations

import re
import time
from urllib.request import urlopen

import pytest

from pipelines.console import console, meter
from pipelines.telemetry import STEPS, Telemetry

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
            self.telemetry.committed("target", receipt)
            self.telemetry.committed("target", receipt | {"rejected": 0, "queries": 100})

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


def test_without_a_terminal_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 31.0, 40.0, 62.0, 100.0])
    monkeypatch.setattr("pipelines.console.monotonic", lambda: next(clock))
    with console.capture() as shown, meter("extract", "querying encoders", 1000, "images") as done:
        for images in (100, 310, 400, 620, 1000):
            done(images)
    lines = shown.get().splitlines()
    assert [line.split("encoders: ")[1] for line in lines] == [
        "310 of 1,000 images (31.0%), 10 images/s, about 1 min 09 s left",
        "620 of 1,000 images (62.0%), 10 images/s, about 0 min 38 s left",
    ]
