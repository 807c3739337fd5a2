"""Memorisation per image, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mi_core.report.words.numbers import count, estimate, interval, percent, rate

MEANING = (
    "Memorisation is the difference that training on one image makes to how an encoder answers about this image. 0 is "
    "no difference. To measure it, further encoders were trained for this report, in pairs: each pair shares the "
    "audited images out by chance, half to one and half to the other. So of each pair one encoder saw an image and the "
    "other did not. The numbers describe these encoders and this way of training. They do not say which images the "
    "audited encoder was trained on, and they do not mean that an image could be restored from an encoder."
)


def mean_sentence(entry: Mapping[str, Any]) -> str:
    """What holds of all images together.

    Args:
        entry: of the part ``memorisation`` of report.json.

    Example:
        >>> mean_sentence({"mean": {"value": 0.021, "ci95": [0.012, 0.03], "n": 880}, "pairs": 4})
        'Mean memorisation of 880 images: .021 [.01, .03]. This training memorises images (4 pairs of encoders).'
    """
    low, high = entry["mean"]["ci95"]
    found = "This training memorises images" if low > 0 else "None is shown, since the interval contains 0"
    if high < 0:
        found = "It lies below 0, the opposite of memorisation"
    start = f"Mean memorisation of {count(entry['mean']['n'])} images: {estimate(entry['mean'])}"
    return f"{start}. {found} ({count(entry['pairs'])} pairs of encoders)."


def single_sentence(entry: Mapping[str, Any]) -> str:
    """What holds of single images.

    Example:
        >>> single_sentence({"memorised": 37, "fdr": 0.05, "mean": {"n": 880}})
        '37 of 880 images can be called memorised one by one; about 5 % of these 37 are expected to be errors.'
    """
    images = count(entry["mean"]["n"])
    if not entry["memorised"]:
        return (
            f"None of the {images} images can be called memorised by itself. That does not show that none is: with few "
            "pairs of encoders only strong memorisation of one image stands out."
        )
    number, share = count(entry["memorised"]), percent(entry["fdr"])
    return (
        f"{number} of {images} images can be called memorised one by one; about {share} of these {number} are expected "
        "to be errors."
    )


def place(entry: Mapping[str, Any]) -> str:
    """What was measured where.

    Example:
        >>> place({"attack": "sslmem", "shadow": "half", "output": "projection", "epoch": 200, "seed": 0})
        'sslmem, encoders “half”, projection output, epoch 200, seed 0'
    """
    settings = f" ({entry['settings']})" if "settings" in entry else ""
    told = f"{entry['attack']}{settings}, encoders “{entry['shadow']}”, {entry['output']} output"
    return f"{told}, epoch {entry['epoch']}, seed {entry['seed']}"


def number(row: Mapping[str, Any]) -> str:
    """The memorisation of one image with its interval.

    Example:
        >>> number({"value": 0.101, "ci95": [0.05, 0.15]})
        '.101 [.05, .15]'
    """
    return f"{rate(row['value'])} {interval(row['ci95'])}"
