"""A command as a process of its own: it ends at once, without the teardown of the interpreter.

Native threads, such as DuckDB's, Arrow's and Ray's, may still live then, and one that lives while its library is torn
down aborts a process whose work is done.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

from pipelines.cli.app import main
from pipelines.console import LOGGER


def run(stage: str | None = None) -> NoReturn:
    """Run the command that the arguments name, and end the process with its code, after what asked for the end.

    Args:
        stage: as `main`.
    """
    code, LOGGER.propagate = 1, False  # a library that sets up the root logger would print every line again
    try:
        main(stage)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if not isinstance(ended.code, int | None):
            sys.stderr.write(f"{ended.code}\n")
    finally:
        kind, error, trace = sys.exc_info()
        if kind is not None and error is not None:
            sys.excepthook(kind, error, trace)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # closed, such as by head
                stream.flush()
        os._exit(code)
