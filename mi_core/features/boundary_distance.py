"""How far an image is from what a classifier takes for another class; see `mi_core.querying.hop_skip_jump`."""

from __future__ import annotations

from mi_core.checks import ConfigError, check_range

LEAST_QUERIES = 150  # for the search of a first image of another class, and one look at the boundary


def parse_boundary(text: str) -> tuple[int, int]:
    """The iterations, and the most queries per image, written in a need.

    Raises:
        ConfigError: not two numbers, or out of range.

    Example:
        >>> parse_boundary("7/2000")
        (7, 2000)
    """
    iterations, _, queries = text.partition("/")
    if not (iterations.isdigit() and queries.isdigit()):
        raise ConfigError(f"boundary:{text}, allowed: iterations/queries, as boundary:7/2000")
    check_range("iterations", int(iterations), 1)
    check_range("queries", int(queries), LEAST_QUERIES)
    return int(iterations), int(queries)
