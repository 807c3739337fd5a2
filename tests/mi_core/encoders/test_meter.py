"""The meter: never faster than its rate, never above its cap, never less saved than granted."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mi_core.encoders.meter import Limits, Meter, Spent


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@settings(deadline=None)
@given(
    rate=st.floats(0.1, 1000),
    steps=st.lists(st.floats(0, 5), min_size=1, max_size=60),
)
def test_no_stretch_of_time_holds_more_requests_than_the_rate(rate: float, steps: list[float]) -> None:
    """Oracle: T seconds, from any request on, hold at most 1 + T x rate of them; and no token is wasted."""
    clock = Clock()
    meter = Meter(Limits(requests_per_second=rate), clock=clock)
    starts: list[float] = []
    for step in steps:
        clock.now += step
        permit = meter.reserve(1)
        earliest = (starts[-1] if starts else 0.0) + 1 / rate
        starts.append(clock.now + permit.wait)
        assert starts[-1] == pytest.approx(max(clock.now, earliest))
    for first, begin in enumerate(starts):
        for count, end in enumerate(starts[first:]):
            assert count <= (end - begin) * rate + 1e-6
    assert starts[0] >= 1 / rate  # a restart gains nothing


def test_without_a_rate_nothing_waits() -> None:
    meter = Meter(Limits())
    assert [meter.reserve(5).wait for _ in range(3)] == [0, 0, 0]
    assert meter.spent == Spent(3, 15, 0.0)


@settings(deadline=None)
@given(
    images=st.lists(st.integers(1, 64), max_size=200),
    per_request=st.sampled_from([0.0, 0.01, 0.3]),
    per_image=st.sampled_from([0.0, 0.0002, 0.1]),
    cap=st.one_of(st.none(), st.floats(0, 50)),
)
def test_whenever_it_is_killed_no_less_is_saved_than_was_granted(
    images: list[int], per_request: float, per_image: float, cap: float | None
) -> None:
    saved = [Spent()]
    limits = Limits(None, per_request, per_image, cap if per_request or per_image else None)
    meter = Meter(limits, save=saved.append)
    requests = sent = 0
    for count in images:
        permit = meter.reserve(count)
        if permit.refusal:
            assert cap is not None
            assert requests * per_request + sent * per_image + per_request + count * per_image > cap
            continue
        requests, sent = requests + 1, sent + count
        spent = requests * per_request + sent * per_image
        assert saved[-1].requests >= requests
        assert saved[-1].images >= sent
        assert saved[-1].money >= spent - 1e-6
        if limits.max_spend is not None:
            assert saved[-1].money <= limits.max_spend + 1e-6  # nor would a crash alone exceed the cap
    again = Meter(limits, saved[-1])
    assert again.spent.requests >= requests
    meter.settle()
    assert (saved[-1].requests, saved[-1].images) == (requests, sent)


def test_saving_is_rare_and_a_crash_costs_little() -> None:
    saved: list[Spent] = []
    meter = Meter(Limits(price_per_image=1), save=saved.append)
    for _ in range(10_000):
        meter.reserve(10)
        assert saved[-1].requests - meter.spent.requests <= max(32, meter.spent.requests / 16)
    assert len(saved) < 110


def test_a_failed_save_grants_nothing() -> None:
    def full(spent: Spent) -> None:
        raise OSError("no space left on device")

    meter = Meter(Limits(), save=full)
    with pytest.raises(OSError, match="no space left"):
        meter.reserve(1)
    assert meter.spent == Spent()


def test_many_threads_share_it() -> None:
    clock = Clock()
    meter = Meter(Limits(requests_per_second=10, price_per_request=0.1, max_spend=20), clock=clock)
    waits: list[float] = []

    def work() -> None:
        while not (permit := meter.reserve(2)).refusal:
            waits.append(permit.wait)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(waits) == pytest.approx([k / 10 for k in range(1, 201)])
    assert (meter.spent.requests, meter.spent.images) == (200, 400)
