"""SIGTERM ends a run as Ctrl-C does: work is saved, Ray is stopped, one line says how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM during a command."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM during a run; the command line library would end with its own code and word."""


@contextmanager
def interruptible(advice: str = "run the same command again to continue") -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into `Interrupted` with one line."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        what = "ended by SIGTERM" if isinstance(interrupt, Terminated) else "interrupted"
        raise Interrupted(f"{what}; {advice}") from interrupt


def heed_sigterm() -> None:
    """Raise `Terminated` in the main thread at SIGTERM from now on."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)


@contextmanager
def own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM that is set now: Ray sets its own, one that exits and one that dumps a stack."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as ended:
        if ended.code == signal.SIGTERM:
            raise Terminated from ended
        raise
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: Any) -> None:
    raise Terminated
