"""Memorisation per image, in words."""

from __future__ import annotations

from mi_core.report.model.promises import Memorisation, MemorisedSample
from mi_core.report.words.numbers import count, estimate, interval, percent, rate

MEANING = (
    "Memorisation is the difference that training on one image makes to how an encoder answers about this image. 0 is "
    "no difference. To measure it, further encoders were trained for this report, in pairs: each pair shares the "
    "audited images out by chance, half to one and half to the other. So of each pair one encoder saw an image and the "
    "other did not. The numbers describe these encoders and this way of training. They do not say which images the "
    "audited encoder was trained on, and they do not mean that an image could be restored from an encoder."
)


def mean_sentence(entry: Memorisation) -> str:
    """A sentence on all images together."""
    mean = entry.mean
    shown = "This training memorises images" if mean.low > 0 else "None is shown, since the interval contains 0"
    if mean.high < 0:
        shown = "It lies below 0, the opposite of memorisation"
    start = f"Mean memorisation of {count(mean.n)} images: {estimate(mean)}"
    return f"{start}. {shown} ({count(entry.pairs)} pairs of encoders)."


def single_sentence(entry: Memorisation) -> str:
    """A sentence on single images."""
    images = count(entry.mean.n)
    if not entry.memorised:
        return (
            f"None of the {images} images can be called memorised by itself. That does not show that none is: with few "
            "pairs of encoders only strong memorisation of one image stands out."
        )
    number, share = count(entry.memorised), percent(entry.fdr)
    return (
        f"{number} of {images} images can be called memorised one by one; about {share} of these {number} are expected "
        "to be errors."
    )


def measurement(entry: Memorisation) -> str:
    """The attack, the encoder and the output of a measurement."""
    settings = "" if entry.settings is None else f" ({entry.settings})"
    told = f"{entry.attack}{settings}, encoders “{entry.shadow}”, {entry.output} output"
    return f"{told}, epoch {entry.epoch}, seed {entry.seed}"


def number(row: MemorisedSample) -> str:
    """The memorisation of one image with its interval."""
    return f"{rate(row.value)} {interval(row.ci95)}"
