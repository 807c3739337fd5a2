"""The meter: never faster than its rate, never above its cap, never less saved than granted."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mi_core.encoders.remote.meter import Limits, Meter, Spent


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(rate=st.floats(0.1, 1000), steps=st.lists(st.floats(0, 5), min_size=1, max_size=60))
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
    assert starts[0] >= 1 / rate - 1e-9  # a restart gains nothing


def test_without_a_rate_nothing_waits() -> None:
    meter = Meter(Limits())
    permits = [meter.reserve(5) for _ in range(3)]
    assert [permit.wait for permit in permits] == [0, 0, 0]
    assert len({permit.ticket for permit in permits}) == 3
    assert meter.spent == Spent(3, 15, 0.0)


@given(
    images=st.lists(st.integers(1, 64), max_size=200),
    per_request=st.sampled_from([0.0, 0.01, 0.3]),
    per_image=st.sampled_from([0.0, 0.0002, 0.1]),
    cap=st.one_of(st.none(), st.floats(0, 50)),
    block=st.sampled_from([1, 32]),
    unsent=st.sets(st.integers(0, 200)),
)
def test_whenever_it_is_killed_no_less_is_saved_than_was_granted(
    images: list[int], per_request: float, per_image: float, cap: float | None, block: int, unsent: set[int]
) -> None:
    """Some of it is never sent, and charged back."""
    saved, sure = [Spent()], [Spent()]

    def save(spent: Spent, certain: Spent) -> None:
        saved.append(spent)
        sure.append(certain)

    limits = Limits(None, per_request, per_image, cap if per_request or per_image else None)
    meter = Meter(limits, save=save, block=block)
    requests = sent = 0
    for number, count in enumerate(images):
        permit = meter.reserve(count)
        if permit.refusal:
            assert cap is not None
            assert requests * per_request + sent * per_image + per_request + count * per_image > cap
            continue
        if number in unsent:
            meter.close(permit.ticket, sent=False)
            meter.close(permit.ticket, sent=False)  # said twice
            continue
        requests, sent = requests + 1, sent + count
        assert block > 1 or saved[-1].requests <= requests + len(unsent)
        assert sure[-1].requests <= requests
        meter.close(permit.ticket, sent=True)
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
    assert sure[-1].requests == requests


@pytest.mark.parametrize("block", [1, 32])
def test_a_run_that_sent_nothing_leaves_nothing_charged(block: int) -> None:
    saved: list[Spent] = []
    meter = Meter(Limits(price_per_image=1), save=lambda spent, certain: saved.append(spent), block=block)
    meter.close(meter.reserve(5).ticket, sent=False)
    meter.settle()
    assert saved[-1] == Spent()


def test_each_request_is_saved_by_itself_where_that_is_fast() -> None:
    saved: list[Spent] = []
    meter = Meter(Limits(price_per_image=1), save=lambda spent, certain: saved.append(spent), block=1)
    for count in range(1, 100):
        meter.reserve(10)
        assert saved[-1] == meter.spent == Spent(count, 10 * count, 10.0 * count)


def test_what_is_in_flight_is_not_certain_and_nothing_is_granted_after_a_stop() -> None:
    saved: list[tuple[Spent, Spent]] = []
    meter = Meter(Limits(), save=lambda spent, certain: saved.append((spent, certain)), block=1)
    first, second = meter.reserve(10), meter.reserve(5)
    assert (meter.in_flight, saved[-1]) == (2, (Spent(2, 15), Spent()))
    meter.close(first.ticket, sent=True)
    meter.close("of another meter", sent=False)
    meter.stop()
    assert "the run is stopping" in meter.reserve(1).refusal
    meter.settle()
    assert (meter.in_flight, saved[-1]) == (1, (Spent(2, 15), Spent(1, 10)))
    meter.close(second.ticket, sent=True)
    meter.settle()
    assert (meter.in_flight, saved[-1]) == (0, (Spent(2, 15), Spent(2, 15)))


def test_saving_is_rare_and_a_crash_costs_little() -> None:
    saved: list[Spent] = []
    meter = Meter(Limits(price_per_image=1), save=lambda spent, certain: saved.append(spent))
    for _ in range(10_000):
        meter.reserve(10)
        assert saved[-1].requests - meter.spent.requests <= max(32, meter.spent.requests / 16)
    assert len(saved) < 110


def test_a_failed_save_grants_nothing() -> None:
    def full(spent: Spent, certain: Spent) -> None:
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
