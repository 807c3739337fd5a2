"""The images of a run reach an encoder as its publisher does it, or it is said how they differ, and how far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mi_core.adoption.foreign import adopt
from mi_core.adoption.published import Preprocessing
from mi_core.querying.sanity import VIEWS, Agreement
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import LoadedConfig
from pipelines.data.draw.splits import Splits
from pipelines.encoders.adopt import Adoption, compare_preprocessing
from pipelines.encoders.probes import COMPARED, as_published, compared, in_words
from pipelines.errors import UserError
from pipelines.plan.load import parse
from pipelines.run.folder import RunFolder

pytestmark = pytest.mark.ray

OWN = Preprocessing(224, "bicubic", (0.5,), (0.25,), 256, "shortest")


def section(**fields: Any) -> dict[str, Any]:
    sources = {name: {"kind": "imagefolder", "path": name} for name in ("candidates", "controls")}
    roles = {"candidate": {"from": "candidates"}, "control": {"from": "controls"}}
    roles["known-nonmember"] = {"from": "control", "fraction": 0.3}
    return {"sources": sources, "roles": roles, **fields}


def config_of(load: str, *, encoder: dict[str, Any] | None = None, **data: Any) -> dict[str, Any]:
    return {
        "name": "own",
        "data": section(**data),
        "encoders": {
            "target": {"load": load, "weights": "w", **(encoder or {})},
            "fresh": {"like": "target", "fresh": True},
        },
        "queries": {"views": 4, "outputs": ["backbone"]},
        "attacks": [{"attack": "mean-cosine", "reference": "nonmembers"}],
        "validity": {"references": ["fresh"]},
    }


def decoding(config: dict[str, Any]) -> dict[str, Any]:
    return parse(config, "own.yaml").data.decoder().settings()


@pytest.mark.parametrize(
    ("load", "encoder", "data", "expected"),
    [
        ("torchvision:resnet50", {}, {}, (224, "bilinear", "shortest", 232)),
        ("torchvision:resnet50:IMAGENET1K_V1", {}, {}, (224, "bilinear", "shortest", 256)),
        ("torchvision:resnet50", {"size": 112}, {}, (112, "bilinear", "shortest", 116)),
        ("torchvision:resnet50", {"interpolation": "bicubic"}, {"resize": 240}, (224, "bicubic", "shortest", 240)),
        ("torchvision:resnet50", {}, {"image_size": 64}, (64, "bilinear", "centre", 64)),  # as in older run folders
    ],
)
def test_the_encoder_says_how_images_are_decoded_where_the_config_does_not(
    load: str, encoder: dict[str, Any], data: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    found = decoding(config_of(load, encoder=encoder, **data))
    assert (found["image_size"], found["interpolation"], found["fit"], found["resize"]) == expected


def test_no_image_size_and_no_encoder_that_publishes_one_is_one_line() -> None:
    with pytest.raises(UserError, match="own.yaml: data.image_size is missing"):
        parse(config_of("checkpoint:conv4"), "own.yaml")
    with pytest.raises(
        UserError,
        match="own.yaml: encoders.target: load = 'torchvision:resnet51': torchvision has no model 'resnet51'; did you",
    ):
        parse(config_of("torchvision:resnet51"), "own.yaml")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fit": "cut"}, "fit = 'cut', allowed: centre"),
        ({"interpolation": "nearest"}, "interpolation = 'nearest', allowed: bi"),
        ({"fit": "shortest", "resize": 16}, "resize = 16"),
        ({"resize": 64}, "resize = 64 is the side before a crop: set fit to shortest or squash"),
    ],
)
def test_decoding_that_cannot_be_is_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(config_of("checkpoint:conv4", image_size=32, **fields), "own.yaml")


def test_what_is_decoded_alike_is_said_and_what_is_not() -> None:
    same = DataConfig(**section(image_size=224, interpolation="bicubic", fit="shortest", resize=256))
    assert as_published(OWN, same) is None
    assert in_words(OWN, same, None).endswith("std 0.25, as its publisher does it")
    other = DataConfig(**section(image_size=224))
    theirs = as_published(OWN, other)
    assert theirs.decoder() == same.decoder()
    assert in_words(OWN, other, Agreement(0.99871, 0.987, 32)).endswith(
        "; NOTE: this run decodes images unlike the publisher (cosine 0.9987, centred 0.987, 32 images); "
        "to match, set data.image_size=224 data.interpolation=bicubic data.fit=shortest "
        "data.resize=256"
    )
    assert "NOTE: this run decodes images unlike the publisher; to match" in in_words(OWN, other, None)
    assert "up to rounding (cosine 1.0000" in in_words(OWN, other, Agreement(0.99995, 0.999, 32))
    unpublished = Preprocessing(None, "bilinear", (0.5,), (0.5,))
    assert as_published(unpublished, other) is None
    assert in_words(unpublished, other, None) == "any size, mean 0.5, std 0.5"


def test_how_far_it_differs_is_measured_on_images_of_the_run(trained_run: Path) -> None:
    load = "torchvision:shufflenet_v2_x0_5"
    found = adopt(load, None, channels=3, image_size=32, fresh=0)
    config = LoadedConfig(load=load, fresh=True)
    roles = {"target-member": {"from": "digits", "count": 60}}

    def measured(**decoding: Any) -> Agreement | None:
        data = DataConfig(sources={"digits": {"kind": "digits"}}, roles=roles, **decoding)
        job = Adoption("target", config, data, RunFolder(str(trained_run)).seed(0), "inputs", ("target-member",))
        assert job.queries == VIEWS * 60 + 2 * compared(config, data)
        return compare_preprocessing(found, data, Splits.load(job.folder.path), job.roles)

    assert measured(image_size=224, fit="shortest", resize=256) is None
    far = measured(image_size=32)
    assert far.images == COMPARED
    assert far.centred < far.cosine < 0.9999
