"""How fast and for how much an API may be asked: a token bucket and a ledger that never counts too little.

Everything is charged before it is sent. What is charged is saved in blocks, ahead of its use: saving is rare, and a
process that is killed at any moment has at most the rest of a block counted that it did not send.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mi_core.checks import ConfigError, check_range

_BLOCK = 32  # requests saved ahead at least; of those already charged, at most a sixteenth
_EXACT = 1e-9  # relative: sums of prices are not exact


@dataclass(frozen=True)
class Limits:
    """What an API may be asked.

    Args:
        requests_per_second: of all workers together; None: as fast as it answers.
        price_per_request, price_per_image: in any currency.
        max_spend: in the same currency; None: no cap.

    Raises:
        ConfigError: a value out of range, or a cap without a price.
    """

    requests_per_second: float | None = None
    price_per_request: float = 0.0
    price_per_image: float = 0.0
    max_spend: float | None = None

    def __post_init__(self) -> None:
        if self.requests_per_second is not None:
            check_range("requests_per_second", self.requests_per_second, 0, open_low=True)
        check_range("price_per_request", self.price_per_request, 0)
        check_range("price_per_image", self.price_per_image, 0)
        if self.max_spend is None:
            return
        check_range("max_spend", self.max_spend, 0)
        if self.price_per_request == self.price_per_image == 0:
            raise ConfigError(
                f"max_spend = {self.max_spend} without a price; give price_per_request or price_per_image"
            )


@dataclass(frozen=True)
class Spent:
    """What was charged: requests, images in them, money at the prices of the time."""

    requests: int = 0
    images: int = 0
    money: float = 0.0

    def plus(self, requests: int, images: int, limits: Limits) -> Spent:
        """With some more requests that hold so many images together."""
        money = self.money + requests * limits.price_per_request + images * limits.price_per_image
        return Spent(self.requests + requests, self.images + images, money)

    def covers(self, other: Spent) -> bool:
        """Whether it is at least as much in all three."""
        enough = self.money * (1 + _EXACT) >= other.money
        return self.requests >= other.requests and self.images >= other.images and enough


class Permit(NamedTuple):
    """The answer to a wish to send a request: after how many seconds, or why not at all."""

    wait: float
    refusal: str = ""


Reserve = Callable[[int], Permit]
"""Charges a request with so many images, before it is sent."""


class Meter:
    """Grants requests to all who share it, from any thread.

    The bucket holds one token and is empty at the start, so that any stretch of T seconds begins at most 1 + T x rate
    requests, restarts included.

    Args:
        limits: rate, prices and cap.
        spent: what was charged before.
        save: called with what may be charged next, before any of it is granted; must not return until it is durable.
        clock: seconds; another one for tests.
    """

    def __init__(
        self,
        limits: Limits,
        spent: Spent = Spent(),
        save: Callable[[Spent], None] = lambda spent: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits, self.spent = limits, spent
        self._saved, self._save = spent, save
        self._clock = clock
        self._interval = 0.0 if limits.requests_per_second is None else 1 / limits.requests_per_second
        self._next = clock() + self._interval
        self._lock = threading.Lock()

    def reserve(self, images: int) -> Permit:
        """Charge one request. A refused one is not charged."""
        with self._lock:
            after = self.spent.plus(1, images, self.limits)
            if not self._bears(after):
                return Permit(0, self._refusal(after))
            if not self._saved.covers(after):
                self._save_block(images)
            self.spent = after
            now = self._clock()
            start = max(now, self._next)
            self._next = start + self._interval
            return Permit(start - now)

    def settle(self) -> None:
        """Save what was really charged: the end of the work, when nothing is going to be sent any more."""
        with self._lock:
            if self._saved != self.spent:
                self._save(self.spent)
                self._saved = self.spent

    def _bears(self, spent: Spent) -> bool:
        cap = self.limits.max_spend
        return cap is None or spent.money <= cap * (1 + _EXACT)

    def _save_block(self, images: int) -> None:
        count = max(_BLOCK, self.spent.requests // 16)
        while count > 1 and not self._bears(self.spent.plus(count, count * images, self.limits)):
            count //= 2
        block = self.spent.plus(count, count * images, self.limits)
        self._save(block)
        self._saved = block

    def _refusal(self, after: Spent) -> str:
        price = after.money - self.spent.money
        return (
            f"max_spend = {self.limits.max_spend:g}, of which {self.spent.money:.6g} is spent on "
            f"{self.spent.requests} requests with {self.spent.images} images, does not bear the next request "
            f"at {price:.6g}; raise it and run the same command again"
        )
