"""The config and the run folder that the words of a command stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.errors import UserError

if TYPE_CHECKING:
    from pipelines.config.run_config import RunConfig


def check_stage(force: str | None) -> None:
    """Raise UserError if ``--force`` names no stage."""
    from pipelines.run.folder import STAGES

    if force is not None and force not in STAGES:
        raise UserError(f"--force {force}, allowed: {', '.join(STAGES)}")


def loaded_run(config_or_run: str, overrides: list[str] | None, out: str | None) -> tuple[RunConfig, str]:
    """A config, and the run folder that it stands for."""
    from pipelines.config.load import load
    from pipelines.files import storage

    source = config_or_run
    if storage.exists(f"{config_or_run}/config.yaml"):
        source, out = f"{config_or_run}/config.yaml", out or config_or_run
    loaded = load(source, overrides or ())
    return loaded, out or f"runs/{loaded.name}"
