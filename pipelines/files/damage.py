"""Faults of reading a damaged file of a run, and one line in their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import safetensors
import yaml

from pipelines.errors import UserError

DAMAGED = "is damaged"  # follows the name of a file in the message of an error
DAMAGE = (
    *(ArithmeticError, AttributeError, LookupError, OSError, RecursionError, RuntimeError, TypeError, ValueError),
    *(pa.ArrowException, safetensors.SafetensorError, yaml.YAMLError),
)
"""Faults of reading a file that is empty, cut, too deep or of other content."""


@contextmanager
def reading(place: str) -> Iterator[None]:
    """Let what a damaged file raises in the block be one line that names it.

    Args:
        place: the file, or the folder of the run, that is read in the block.

    Raises:
        UserError: it is damaged.
    """
    try:
        yield
    except UserError:
        raise
    except DAMAGE as error:
        named = f" {DAMAGED}: " in str(error)
        raise UserError(" ".join(str(error).split()) if named else f"{place} {DAMAGED}: {in_a_line(error)}") from error


def in_a_line(error: BaseException) -> str:
    """An error in a line."""
    line = " ".join(str(error).split())
    return f"{type(error).__name__}: {line[:300]}"
