"""Text towers: what an audited CLIP says of a caption is what its training drew images to, before and after saving."""

from __future__ import annotations

from typing import Any

import torch

from mi_core.augmentations import AUGMENTATIONS
from mi_core.encoders.checkpoint import fingerprint, load_weights, weights_bytes
from mi_core.objectives import OBJECTIVES
from mi_core.objectives.clip import CLIPParameters
from mi_core.training.data import ResidentImages
from mi_core.training.loop import Pretrainer, PretrainingParameters, audited_encoder

CAPTIONS = ["a photo of a cat", "dogs", "the sea, seen from above", "a red car"]
SMALL = CLIPParameters(projection_width=16, text_width=16, text_layers=1, text_heads=2, text_length=24)


def parameters(**changes: Any) -> PretrainingParameters:
    settings: dict[str, Any] = {"backbone": "conv4", "objective": "clip", "objective_parameters": SMALL, "epochs": 30}
    return PretrainingParameters(**(settings | {"batch_size": 4} | changes))


def trained() -> tuple[Pretrainer, torch.Tensor]:
    images = torch.randint(0, 256, (4, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    targets = OBJECTIVES["clip"].encode_targets(SMALL, [None] * 4, CAPTIONS)
    names = [("pool", str(row)) for row in range(4)]
    data = ResidentImages(images, names, targets, batch_size=4, seed=0, device="cpu")
    trainer = Pretrainer(data, AUGMENTATIONS["clip"](), parameters(), seed=0, device=torch.device("cpu"))
    while trainer.epoch < 30:
        trainer.train_epoch()
    return trainer, images


def test_the_audited_encoder_matches_captions_to_images() -> None:
    trainer, images = trained()
    encoder = trainer.encoder().eval()
    assert encoder.text is not None
    with torch.inference_mode():
        texts = encoder.text(CAPTIONS)
        images_embedded = encoder(images.float() / 255)["projection"]
    cosines = torch.nn.functional.normalize(images_embedded, dim=1) @ torch.nn.functional.normalize(texts, dim=1).T
    assert cosines.argmax(dim=1).tolist() == [0, 1, 2, 3]
    again = audited_encoder(parameters(), 3, 12).eval()
    assert again.text is not None
    load_weights(again, weights_bytes(encoder))
    assert fingerprint(again) == fingerprint(encoder)
    with torch.inference_mode():
        torch.testing.assert_close(again.text(CAPTIONS), texts)


def test_others_have_none() -> None:
    simclr = PretrainingParameters(backbone="conv4", objective="simclr", epochs=1, batch_size=2)
    assert audited_encoder(simclr, 3, 12).text is None
