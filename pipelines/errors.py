"""The error that ends a command with exit code 2, and finding it behind what Ray wraps around it."""

from __future__ import annotations

from collections.abc import Iterator

from mi_core.checks import AnswerError, ConfigError, NumericError, ShapeError


class UserError(ValueError):
    """What the user gave is wrong; the message is one line that names the place and the remedy."""


def fault_of_user(error: BaseException) -> str | None:
    """The one line that tells users what they gave wrong, or None if the error is not of that kind.

    A worker's error arrives inside an error of Ray, as its ``cause``, ``__cause__`` or one of ``worker_failures``.
    """
    for inner in _chain(error, set()):
        if type(inner) in (UserError, AnswerError, ConfigError, NumericError, ShapeError):
            return " ".join(str(inner).split())
    return None


def _chain(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    if id(error) in seen:
        return
    seen.add(id(error))
    yield error
    failures = getattr(error, "worker_failures", None) or {}
    for inner in (getattr(error, "cause", None), error.__cause__, *failures.values()):
        if isinstance(inner, BaseException):
            yield from _chain(inner, seen)
