"""Limits the rate and the cost of an API: a token bucket and a ledger that never counts too little.

A request is charged before it is sent, and saved before it is charged. Where saving is slow, blocks of requests are
saved ahead: a process that is killed has the unsent rest of its block counted too.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mi_core.checks import ConfigError, check_fields

BLOCK = 32  # requests saved ahead where saving is slow; of those already charged, at least a sixteenth
_EXACT = 1e-9  # relative: sums of prices are not exact


@dataclass(frozen=True)
class Limits:
    """Rate, prices and cap of the requests to an API.

    Args:
        requests_per_second: of all workers together; None: as fast as it answers.
        price_per_request, price_per_image: in any currency.
        max_spend: in the same currency; None: no cap.

    Raises ConfigError: a value out of range, or a cap without a price.
    """

    requests_per_second: float | None = None
    price_per_request: float = 0.0
    price_per_image: float = 0.0
    max_spend: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, "requests_per_second", low=0, open_low=True)
        check_fields(self, "price_per_request", "price_per_image", "max_spend", low=0)
        if self.max_spend is not None and self.price_per_request == self.price_per_image == 0:
            raise ConfigError(
                f"max_spend = {self.max_spend} without a price; give price_per_request or price_per_image"
            )


@dataclass(frozen=True)
class Spent:
    """Charges so far: requests, images in them, money at the prices of the time."""

    requests: int = 0
    images: int = 0
    money: float = 0.0

    def plus(self, requests: int, images: int, limits: Limits) -> Spent:
        """With some more requests that hold so many images together."""
        money = self.money + requests * limits.price_per_request + images * limits.price_per_image
        return Spent(self.requests + requests, self.images + images, money)

    def minus(self, other: Spent) -> Spent:
        """The charges without a part of them; never below 0."""
        requests, images = self.requests - other.requests, self.images - other.images
        return Spent(max(0, requests), max(0, images), max(0.0, self.money - other.money))

    def covers(self, other: Spent) -> bool:
        """True if it is at least as much in all three."""
        enough = self.money * (1 + _EXACT) >= other.money
        return self.requests >= other.requests and self.images >= other.images and enough


class Permit(NamedTuple):
    """The answer to a wish to send a request: after how many seconds, or why not at all."""

    wait: float
    refusal: str = ""
    ticket: str = ""


class Account(Protocol):
    """An account that requests are charged to."""

    def reserve(self, images: int) -> Permit:
        """Charge a request with so many images, before it is sent."""

    def close(self, ticket: str, *, sent: bool) -> None:
        """A request is over: its answer is kept, or none will come; one that was never sent is charged back."""


class Meter:
    """Grants requests to all who share it, from any thread.

    The bucket holds one token and is empty at the start, so that any stretch of T seconds begins at most 1 + T x rate
    requests, restarts included.

    Args:
        limits: rate, prices and cap.
        spent: what was charged before.
        save: called with what may be charged next, before any of it is granted, and with what of it is certain: sent
            and over. Must not return until it is durable.
        block: requests saved ahead. 1: each is saved by itself, and a kill counts none that was not granted.
        clock: seconds; another one for tests.
    """

    def __init__(
        self,
        limits: Limits,
        spent: Spent = Spent(),
        save: Callable[[Spent, Spent], None] = lambda spent, certain: None,
        block: int = BLOCK,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits, self.spent = limits, spent
        self._saved, self._save = spent, save
        self._block, self._clock = block, clock
        self._open: dict[str, Spent] = {}
        self._stopped = False
        self._interval = 0.0 if limits.requests_per_second is None else 1 / limits.requests_per_second
        self._next = clock() + self._interval
        self._lock = threading.Lock()

    @property
    def in_flight(self) -> int:
        """Requests that were granted and are not closed."""
        return len(self._open)

    def reserve(self, images: int) -> Permit:
        """Charge one request. A refused one is not charged."""
        with self._lock:
            if self._stopped:
                return Permit(0, "the run is stopping; run the same command again to go on")
            after = self.spent.plus(1, images, self.limits)
            if not self._bears(after):
                return Permit(0, self._refusal(after))
            if not self._saved.covers(after):
                self._save_block(images)
            ticket = uuid.uuid4().hex
            self._open[ticket] = after.minus(self.spent)
            self.spent = after
            now = self._clock()
            start = max(now, self._next)
            self._next = start + self._interval
            return Permit(start - now, "", ticket)

    def close(self, ticket: str, *, sent: bool) -> None:
        """A granted request is over; one that was never sent is charged back. Unknown tickets are left alone."""
        with self._lock:
            charged = self._open.pop(ticket, Spent())
            if not sent:
                self.spent = self.spent.minus(charged)

    def stop(self) -> None:
        """Grant nothing any more."""
        with self._lock:
            self._stopped = True

    def settle(self) -> None:
        """Save what was really charged: the end of the work, when nothing is going to be sent any more."""
        with self._lock:
            if self._saved != Spent():
                self._save(self.spent, self._certain())
                self._saved = self.spent

    def _certain(self) -> Spent:
        certain = self.spent
        for charged in self._open.values():
            certain = certain.minus(charged)
        return certain

    def _bears(self, spent: Spent) -> bool:
        cap = self.limits.max_spend
        return cap is None or spent.money <= cap * (1 + _EXACT)

    def _save_block(self, images: int) -> None:
        count = self._block if self._block == 1 else max(self._block, self.spent.requests // 16)
        while count > 1 and not self._bears(self.spent.plus(count, count * images, self.limits)):
            count //= 2
        block = self.spent.plus(count, count * images, self.limits)
        self._save(block, self._certain())
        self._saved = block

    def _refusal(self, after: Spent) -> str:
        price = after.money - self.spent.money
        return (
            f"max_spend = {self.limits.max_spend:g}, of which {self.spent.money:.6g} is spent on "
            f"{self.spent.requests} requests with {self.spent.images} images, does not bear the next request "
            f"at {price:.6g}; raise it and run the same command again"
        )
