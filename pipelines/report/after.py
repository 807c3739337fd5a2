"""Hand a finished report to a function or a command of the user."""

from __future__ import annotations

import json
import shlex
import subprocess

from mi_core.adoption.code import imported
from mi_core.checks import ConfigError
from pipelines.config.sections.attacks import PYTHON
from pipelines.config.sections.limits import ReportConfig
from pipelines.console import say
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.run.folder import RunFolder


def hand_over(config: ReportConfig, folder: RunFolder) -> None:
    """Call what ``report.after`` names.

    A function gets the content of report.json and the place of the run folder. A command gets the place of report.json
    as its last argument.

    Raises:
        UserError: there is no such function or command, or it fails; the report is written all the same.
    """
    if config.after is None:
        return
    say("report", f"handed over to {config.after}")
    try:
        if config.after.startswith(PYTHON):
            _, function = imported("report.after", config.after.removeprefix(PYTHON))
            function(json.loads(storage.read_bytes(f"{folder.path}/report.json")), folder.path)
        else:
            subprocess.run([*shlex.split(config.after), f"{folder.path}/report.json"], check=True)
    except (ConfigError, OSError, ValueError, subprocess.CalledProcessError) as error:
        fault = str(error)
    except Exception as error:  # noqa: BLE001 - whatever code of others raises
        fault = f"{type(error).__name__}: {error}"
    else:
        return
    raise UserError(
        f"report.after = {config.after!r} failed: {fault}; the report is written: {folder.path}/report.html"
    )
