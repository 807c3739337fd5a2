"""Make the reports of docs/gallery.md anew: ``python -m docs.studies.gallery [FOLDER]``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from mi_core import audit
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.lots.claim import claim
from pipelines.plan.load import load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "gallery"
TARGET = load("quickstart", ["encoders.target.epochs=200"]).encoders["target"]
"""The encoder of quickstart, trained for half as long."""
BY_LOT = ("queries.outputs=[projection]", "attacks=[{attack: encodermi-t, target: target, reference: shadow}]")


assert isinstance(TARGET, TrainedConfig)


def digits() -> list[np.ndarray[Any, Any]]:
    """Four times 440 images of digits, in no order."""
    images = np.round(load_digits().images * (255 / 16)).astype(np.uint8)
    return np.split(images[np.random.default_rng(0).permutation(len(images))[:1760]], 4)


def resampled(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The images, once made smaller and larger again, as by another camera."""
    return np.stack([np.asarray(Image.fromarray(one).resize((6, 6)).resize((8, 8))) for one in images])


def trained(images: np.ndarray[Any, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The projection of an encoder that saw these images."""
    keys = [("digits", str(row)) for row in range(len(images))]
    own = ResidentImages(torch.from_numpy(images)[:, None], keys, batch_size=TARGET.batch_size, seed=0)
    trainer = Pretrainer(own, TARGET.views(), TARGET.pretraining(), seed=0)
    for _ in range(TARGET.epochs):
        trainer.train_epoch()
    encoder = trainer.encoder().eval()

    def digits_encoder(images: torch.Tensor) -> torch.Tensor:
        """The projection of digits."""
        return encoder(images)["projection"]

    return digits_encoder


def claimed(place: Path) -> Path:
    """The page of a claim: an encoder was trained on what a lot published."""
    for row, pixels in enumerate(np.concatenate(digits()[:2])):
        (place / "photos").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(place / "photos" / f"{row:04d}.png")
    run("lot", "photos", "--out", "lot", place=place)
    published = sorted((place / "lot" / "published").rglob("*.png"))
    encoder = trained(np.stack([np.asarray(Image.open(path).convert("L")) for path in published]))

    def digits_encoder(images: torch.Tensor) -> torch.Tensor:
        """The projection of digits in colour."""
        return encoder(images.mean(dim=1, keepdim=True))

    found = claim(str(place / "lot"), digits_encoder, size=8, augmentation=TARGET.augmentation)
    return Path(found.statement) / "claim.html"


def run(*command: str, place: Path) -> None:
    """Run a command of the tool in a folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "pipelines.cli", *command], cwd=place, env=environment, check=True)


def picture(page: Path, to: Path) -> None:
    """The first screen of a page, where there is a browser."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is not None:
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1120,620", f"--screenshot={to}"]
        subprocess.run([browser, *flags, page.resolve().as_uri()], check=True, capture_output=True)
        Image.open(to).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(to, optimize=True)


def made(folder: Path) -> None:
    """Write the five reports, the page of a claim, and the picture of the first report."""
    folder.mkdir(exist_ok=True)
    seen, unseen, other, _ = digits()
    encoder = trained(seen)
    ask = partial(audit, encoder, size=8, channels=1, augmentation=TARGET.augmentation, nonce="gallery", progress=False)
    for name, found in (
        ("undecided", ask(seen, unseen, quick=True)),
        ("leak-by-choice", ask(seen, unseen)),
        ("no-evidence", ask(other, unseen)),
        ("confounded", ask(other, resampled(unseen))),
    ):
        found.save(folder / f"{name}.html")
    with tempfile.TemporaryDirectory() as place:
        run("quickstart", *BY_LOT, place=Path(place))
        (folder / "leak.html").write_bytes((Path(place) / "runs" / "quickstart" / "report.html").read_bytes())
        (folder / "claim.html").write_bytes(claimed(Path(place)).read_bytes())
    picture(folder / "leak.html", folder / "leak.png")


if __name__ == "__main__":
    made(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
