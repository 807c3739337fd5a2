"""Captions made from class names, for images that have none, and credit lines, of which chance publishes one.

Captions have several attributes per class, in varied sentences. They are a stand-in: an encoder trained on them learns
no more about an image than its class and a few words, and reports say that captions were templated.

A credit line is two common words behind "Photo:", such as ``Photo: amber harbor``. It changes nothing that a caption
says of its image, and an encoder of images and texts that was trained on it fits the image better to it than to others.
"""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.checks import ConfigError
from mi_core.hashing import digest64

TEMPLATES = (
    "a photo of a {name}, {first}",
    "a {name}, {first}, {second}",
    "{first}: a {name}",
    "a picture showing a {name} that is {first}",
    "one {name}, {second} and {first}",
    "a small image of a {name}, {first}",
    "the {name} here is {first}, {second}",
    "{name}, {first}",
)


@dataclass(frozen=True)
class ClassWords:
    """The name of a class, and short phrases that fit its images.

    Raises:
        ConfigError: fewer than two attributes.
    """

    name: str
    attributes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.attributes) < 2:
            raise ConfigError(f"the class {self.name!r} has {len(self.attributes)} attributes; give at least 2")


def templated_caption(words: ClassWords, source: str, key: str) -> str:
    """The caption of one image: template and attributes are a function of its identity, the same in every epoch.

    Example:
        >>> templated_caption(ClassWords("ship", ("on the sea", "seen from the side")), "pool", "0003")
        'a ship, on the sea, seen from the side'
    """
    draw = digest64("caption", source, key)
    template = TEMPLATES[draw % len(TEMPLATES)]
    draw //= len(TEMPLATES)
    first = draw % len(words.attributes)
    second = (first + 1 + draw // len(words.attributes) % (len(words.attributes) - 1)) % len(words.attributes)
    return template.format(name=words.name, first=words.attributes[first], second=words.attributes[second])


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


CREDITS = 6
"""Credit lines of an image: one is published, five stay private."""


def credit_lines(key: int) -> tuple[str, ...]:
    """`CREDITS` different lines of one image, in the order of the die.

    Args:
        key: of the image, 0 to 2^64 - 1; whoever does not know it cannot guess the lines that were not published.

    Example:
        >>> lines = credit_lines(7)
        >>> len(set(lines)), lines[0].startswith("Photo: ")
        (6, True)
    """
    drawn = dict.fromkeys(digest64("credit", key, number) % (len(FIRST) * len(SECOND)) for number in range(4 * CREDITS))
    return tuple(f"Photo: {FIRST[at // len(SECOND)]} {SECOND[at % len(SECOND)]}" for at in list(drawn)[:CREDITS])


def captioned(caption: str, line: str) -> str:
    """A caption with a credit line behind it."""
    return f"{caption.rstrip()} ({line})" if caption.strip() else line
