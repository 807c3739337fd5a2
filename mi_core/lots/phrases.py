"""Two credit lines for a caption, of which a coin publishes one.

A line is two common words behind "Photo:", such as ``Photo: amber harbor``. It changes nothing that a caption says of
its image, and an encoder of images and texts that was trained on it fits the image better to it than to another one.
"""

from __future__ import annotations

from mi_core.hashing import digest64

_ADJECTIVES = (
    "amber apple autumn basil birch blue brass bright bronze cedar cherry cloud cobalt copper coral cotton crimson "
    "crystal dawn desert dusk early east ebony ember fern field flint forest frost garden ginger glass golden granite "
    "green harvest hazel honey indigo ivory jade juniper lake lemon light lilac linen maple marble meadow mint misty "
    "moon moss north oak ocean olive opal orchid pearl pine"
)
_PLACES = (
    "anchor arch bay beacon bell bench bird bow branch bridge brook cabin canyon castle cave chapel circle cliff coast "
    "cottage creek crest dock door dune edge falcon fence ferry flag fountain fox gate glen grove harbor hill horizon "
    "house island lantern ledge mill mirror path peak pier pond porch ridge river road rock sail shore stair station "
    "stone street tower trail valley window"
)
FIRST, SECOND = _ADJECTIVES.split(), _PLACES.split()


def credit_lines(key: int) -> tuple[str, str]:
    """Two different lines of one image, in the order of the coin.

    Args:
        key: of the image, 0 to 2^64 - 1; whoever does not know it cannot guess the line that was not published.

    Example:
        >>> first, second = credit_lines(7)
        >>> first != second, first.startswith("Photo: ")
        (True, True)
    """
    count = len(FIRST) * len(SECOND)
    one = digest64("credit", key, 0) % count
    other = (one + 1 + digest64("credit", key, 1) % (count - 1)) % count
    first, second = (f"Photo: {FIRST[place // len(SECOND)]} {SECOND[place % len(SECOND)]}" for place in (one, other))
    return first, second


def captioned(caption: str, line: str) -> str:
    """A caption with a credit line behind it."""
    return f"{caption.rstrip()} ({line})" if caption.strip() else line
