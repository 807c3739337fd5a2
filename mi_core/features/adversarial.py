"""What a classifier says of images crafted on another one: one per class, by targeted projected gradient descent."""

from __future__ import annotations

from mi_core.checks import ConfigError, check_range


def parse_adversarial(text: str) -> tuple[float, int, int]:
    """The largest change of a pixel, in (0, 1], the steps and the classes, written in a need.

    Raises:
        ConfigError: not three numbers, or out of range.

    Example:
        >>> parse_adversarial("0.0314/10/100")
        (0.0314, 10, 100)
    """
    try:
        size, steps, classes = text.split("/")
        epsilon, number, count = float(size), int(steps), int(classes)
    except ValueError as error:
        raise ConfigError(f"adversarial:{text}, allowed: change/steps/classes, as adversarial:0.0314/10/10") from error
    check_range("epsilon", epsilon, 0, 1, open_low=True)
    check_range("steps", number, 1)
    check_range("classes", count, 2)
    return epsilon, number, count
