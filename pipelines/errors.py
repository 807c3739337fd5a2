"""The error that ends a command with exit code 2, and finding it behind what Ray wraps around it."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from mi_core.checks import AnswerError, ConfigError, NumericError, ShapeError

# what a user can mend: no space, over a quota or a limit, a folder that cannot be written
_OF_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}


class UserError(ValueError):
    """A fault in what the user gave; the message is one line that names the place and the remedy."""


class Unavailable(RuntimeError):
    """Something that a run needs does not start or answer, by no fault of the input: one line, exit code 1."""


def fault_of_user(error: BaseException) -> str | None:
    """The one line that tells users what they gave wrong, or None if the error is not of that kind.

    A worker's error arrives inside an error of Ray, as its ``cause``, ``__cause__`` or one of ``worker_failures``.
    """
    for inner in _chain(error, set()):
        if isinstance(inner, UserError) or type(inner) in (AnswerError, ConfigError, NumericError, ShapeError):
            return " ".join(str(inner).split())
        if isinstance(inner, OSError) and inner.errno in _OF_STORAGE:
            return storage_fault(inner)
    return None


class Unreachable(OSError):
    """A store is busy or does not answer."""


def unavailable_in(error: BaseException) -> str | None:
    """The one line on what did not start or answer, of this process or a worker; None: the error is another one."""
    found = next((inner for inner in _chain(error, set()) if isinstance(inner, Unavailable | Unreachable)), None)
    return None if found is None else " ".join(str(found).split())


def storage_fault(error: OSError) -> str:
    """One line for a disk or folder that refuses; what was committed is kept, so that the same command goes on."""
    what = " ".join(str(error.strerror or error).split())
    return f"{error.filename or 'storage'}: {what}; what was committed is kept: mend it and run the same command again"


def _chain(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    if id(error) in seen:
        return
    seen.add(id(error))
    if not isinstance(getattr(error, "cause", None), BaseException):  # else it is Ray's copy, with a traceback as text
        yield error
    failures = getattr(error, "worker_failures", None) or {}
    for inner in (getattr(error, "cause", None), error.__cause__, *failures.values()):
        if isinstance(inner, BaseException):
            yield from _chain(inner, seen)
