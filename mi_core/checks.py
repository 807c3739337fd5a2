"""Errors that name the value, what is allowed and the remedy; and the checks that raise them."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

VARIANTS = ("paper", "released")  # whether a method follows its paper, or its authors' scripts where they differ


class ConfigError(ValueError):
    """A parameter the user chose is impossible; the message names it, its value and what is allowed."""


class ShapeError(ValueError):
    """An array has another shape than the one documented."""


class NumericError(ValueError):
    """An array holds NaN or infinity; the message names the first samples concerned."""


class AnswerError(ValueError):
    """The answer of an encoder behind an API to one of its images is no embedding.

    Args:
        message: the API and what is wrong.
        row: position of the image among those that the encoder was given.
    """

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message, row)
        self.message, self.row = message, row

    def __str__(self) -> str:
        return f"{self.message} (image {self.row} of those sent)"


def check_shape(name: str, array: Any, expected: str, **sizes: int) -> tuple[int, ...]:
    """Check the shape of an array against letters, and return the shape.

    Args:
        name: what the array is called in the message.
        array: anything with a ``shape``.
        expected: one word per axis, for example ``"N V D"``; a number fixes the size.
        sizes: fixed sizes of letters, for example ``D=128``.

    Raises:
        ShapeError: the number of axes or a size differs, or one letter stands for two sizes.

    Example:
        >>> check_shape("views", np.zeros((4, 10, 8)), "N V D", D=8)
        (4, 10, 8)
    """
    shape = tuple(int(size) for size in array.shape)
    letters = expected.split()
    known: dict[str, int] = dict(sizes)
    matches = len(shape) == len(letters)
    for letter, size in zip(letters, shape, strict=False):
        wanted = int(letter) if letter.isdigit() else known.setdefault(letter, size)
        matches = matches and wanted == size
    if not matches:
        fixed = ", ".join(f"{letter}={size}" for letter, size in sizes.items())
        raise ShapeError(f"{name} has shape {shape}, expected ({expected})" + (f" with {fixed}" if fixed else ""))
    return shape


def check_choice(name: str, value: str, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``allowed``; otherwise raise `ConfigError` listing them."""
    choices = sorted(allowed)
    if value not in choices:
        raise ConfigError(f"{name} = {value!r}, allowed: {', '.join(choices)}")
    return value


def check_range(
    name: str,
    value: float,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return ``value`` if ``low <= value <= high``; else raise `ConfigError`. An ``open`` end itself is outside."""
    inside = (low < value if open_low else low <= value) and (value < high if open_high else value <= high)
    if not inside:  # also catches NaN
        left, right = "(" if open_low else "[", ")" if open_high else "]"
        raise ConfigError(f"{name} = {value}, allowed: {left}{low}, {high}{right}")
    return value


def check_fields(record: object, *names: str, low: float, high: float = math.inf, open_low: bool = False) -> None:
    """Raise `ConfigError`, as `check_range` does, if a field of a record is out of range; None stands for no number."""
    for name in names:
        if (value := getattr(record, name)) is not None:
            check_range(name, value, low, high, open_low=open_low)


def check_finite(name: str, array: np.ndarray | torch.Tensor, ids: Sequence[str] | np.ndarray | None = None) -> None:
    """Raise `NumericError` naming the first samples (rows) of ``array`` (N, ...) that hold NaN or infinity."""
    shape = len(array), math.prod(array.shape[1:])  # -1 cannot stand for the second where there is no row
    if isinstance(array, np.ndarray):
        finite = np.isfinite(array).reshape(shape).all(axis=1)
    else:
        finite = array.isfinite().reshape(shape).all(dim=1).cpu().numpy()
    if not finite.all():
        rows = np.flatnonzero(~finite)
        named = [str(ids[row]) if ids is not None else f"row {row}" for row in rows[:5]]
        raise NumericError(f"{name} is not finite for {len(rows)} of {len(finite)} samples: {', '.join(named)}")


def import_extra(package: str, asked: str, extra: str, *parts: str) -> Any:
    """An optional package, and some modules of it, for what asks. Raises ConfigError, with its extra: it is missing."""
    try:
        for name in (package, *(f"{package}.{part}" for part in parts)):
            import_module(name)
    except ImportError as error:
        raise ConfigError(f"{asked} needs {package}: pip install 'encoder-audit[{extra}]'") from error
    return sys.modules[package]


_LOOKS = {
    "a private key": rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File-\d|AGE-SECRET-KEY-1"
    rb"|client-key-data:\s*[\w+/=]{40}",
    "a key of AWS": rb"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"
    rb"|(?i:aws_secret_access_key|aws_session_token)[\"']?\s*[=:]\s*[\"']?[A-Za-z0-9/+]{40}",
    "a key of Google": rb"(?<![\w-])(?:AIza[\w-]{35}(?![\w-])|GOCSPX-[\w-]{28}|1//0[\w-]{30})",
    "a token of GitHub": rb"(?<!\w)(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{50})",
    "a token of Hugging Face": rb"(?<!\w)hf_[A-Za-z0-9]{30}",
    "a token of Slack": rb"(?<!\w)xox[abeoprs]-[\w-]{10}|hooks\.slack\.com/services/\w+/\w+/\w{20}",
    "a key of an API": rb"(?<![\w-])sk-(?:(?:admin|ant|or|proj|svcacct)-[\w-]{20}|(?=\w*\d)\w{20})"
    rb"|(?<!\w)[rs]k_(?:live|test)_[A-Za-z0-9]{20}"
    rb"|(?<!\w)(?:AC|SK)[0-9a-f]{32}(?!\w)|(?<!\w)dapi[0-9a-f]{32}|(?<!\w)SG\.[\w-]{22}\.[\w-]{40}"
    rb"|(?i:wandb)[^\n]{0,40}[\s\"'=][0-9a-f]{40}(?!\w)",
    "a token of GitLab": rb"(?<!\w)gl(?:agent|cbt|dt|ft|imt|oas|pat|ptt|rt|soat)-[\w-]{20}",
    "a token": rb"(?<!\w)[a-z][a-z0-9]{1,7}_(?=[A-Za-z]*\d)(?=[a-z0-9]*[A-Z])[A-Za-z0-9]{32}|(?<!\w)hvs\.[\w-]{24}",
    "a token of a package registry": rb"(?<!\w)pypi-AgE[\w-]{50}"
    rb"|_auth(?:Token)?\s*=\s*[\"']?[\w+/=-]{16}|\"auth\"\s*:\s*\"[\w+/=]{16}",
    "a key of Azure": rb"(?i:Account_?Key|SharedAccessKey|SharedAccessSignature)[\"']?\s*[=:]\s*[\"']?[\w+/%&=-]{20}"
    rb"|[?&;]sig=[\w%+/-]{30}",
    "a password in an address": rb"\w://[^/\s:@]*:[^/\s:@]+@",
    "a password": rb"(?im)^\W*(?:export\s+)?(?:\w*_)?(?:password|passwd|pwd|secret|token|api_?key)[\"']?\s*[=:]\s*"
    rb"[\"']?[^\s\"'(){}\[\].,$<>]{6,}[\"']?\s*,?$"
    rb"|(?<![a-z])(?:password|passwd|pwd|secret(?:_key)?|token|api[_-]?key)[\"']?\s*[=:]\s*"
    rb"([\"'])(?=[^\s\"']*\d)[^\s\"'(){}\[\],$<>]{8,}\1"
    rb"|\bmachine\s+\S+\s+login\s+\S+\s+password\s+\S",
    "a signed token": rb"(?<!\w)eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10}|(?i:bearer)\s+(?=[\w.~+/-]*\d)[\w.~+/-]{25}",
}


def secret_in(text: bytes) -> str:
    """The kind of secret that a text seems to hold, such as ``a private key``; empty: none."""
    return next((kind for kind, pattern in _LOOKS.items() if re.search(pattern, text)), "")
