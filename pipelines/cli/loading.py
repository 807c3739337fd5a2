"""The config and the run folder that the words of a command stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.errors import UserError

if TYPE_CHECKING:
    from pipelines.cli.flags import Flags
    from pipelines.config.run_config import RunConfig

COMMAND_LINE = "the command line"
"""Where settings stand that flags give, for messages."""


def check_stage(force: str | None) -> None:
    """Raise UserError if ``--force`` names no stage."""
    from pipelines.run.folder import STAGES

    if force is not None and force not in STAGES:
        raise UserError(f"--force {force}, allowed: {', '.join(STAGES)}")


def loaded_run(
    config_or_run: str | None, overrides: list[str] | None, out: str | None, flags: Flags | None = None
) -> tuple[RunConfig, str]:
    """A config, and the run folder that it stands for.

    Args:
        config_or_run: file or name of a config, or a run folder; beside flags that name an encoder, a field to change.
        overrides: fields to change.
        out: the run folder; None: that of the config.
        flags: of an audit without a config.

    Raises:
        UserError: there is no config and no flag names an encoder, or what they say is impossible.
    """
    from pipelines.files import storage

    settings = flags.settings() if flags is not None and flags.names_encoder else None
    if settings is None and config_or_run is None:
        raise UserError("nothing to audit; give a config, or --encoder, --weights, --candidates and --controls")

    from pipelines.plan.load import load, loaded_from  # after what can be seen at once: it takes seconds

    if settings is not None:
        changes = [*([] if config_or_run is None else [config_or_run]), *(overrides or ())]
        described = loaded_from(settings, COMMAND_LINE, changes)
        return described, out or f"runs/{described.name}"
    assert config_or_run is not None
    source = config_or_run
    if storage.exists(f"{config_or_run}/config.yaml"):
        source, out = f"{config_or_run}/config.yaml", out or config_or_run
    loaded = load(source, overrides or ())
    return loaded, out or f"runs/{loaded.name}"


def check_weights(config: RunConfig) -> None:
    """Raise UserError if a file of weights that a config names is not there."""
    from pipelines.files.storage import is_missing

    for name, encoder in config.encoders.items():
        weights = getattr(encoder, "weights", None)
        if weights is not None and is_missing(weights):
            raise UserError(f"encoders.{name}.weights = {weights} is no file; give that of the weights")
