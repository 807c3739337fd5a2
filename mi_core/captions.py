"""Captions made from class names, for images that have none: several attributes per class, in varied sentences.

They are a stand-in: an encoder trained on them learns no more about an image than its class and a few words, and
reports say that captions were templated.
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
