"""The runs of the self-test: configs and images in which a truth is planted, made from the user's config."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mi_core.defenses.convex_head import sensitivity_bound
from mi_core.defenses.privacy import calibrated
from mi_core.images import Pixels, encode_jpeg, encode_png, shrunk
from pipelines.config.roles import CANARY_IN, CANARY_ROLE, KNOWN_ROLES, SHADOW_ROLES, TARGET_ROLES
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.attacks import GAUSSIAN, NONMEMBERS
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.data.draw.images import read_samples
from pipelines.data.draw.splits import Splits
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.plan.checks import build
from pipelines.plan.rules import ThreatModel

TUNED, NEVER = "selftest-tuned", "selftest-never"  # encoders: the target trained on, and one that saw neither group
KEEPING = "selftest-keeping"  # an encoder that was trained anew on a fifth of the members
HONEST, BROKEN = "honest", "broken"  # defenses, by their labels
_EPSILON, _DELTA = 1.0, 1e-5  # what both providers promise
_CANARIES, _FEWEST, _OTHERS = 400, 200, 50  # most and fewest canaries; samples of each other role beside them
_FINE, _COARSE = 95, 50  # JPEG qualities of members and of altered non-members
_SMALLER = 0.75  # side of altered non-members, as a share
_SHADOW_FREE = {"attack": "mean-cosine", "target": "target", "reference": NONMEMBERS}
_WHOLE = "whole.json"
KEPT = 0.1  # share of the members that may be kept; `KEEPING` saw twice as many, so that the truth is no close call
COPIES = (1, 16)  # how often images stand in training
COPIED = 48  # images that are copied, as many of each number
_HALVES = 8  # shadow encoders that tell what is memorised


class Planter:
    """Plants truths in the data of a config.

    Args:
        config: of the user.

    Raises:
        UserError: truths cannot be planted in it.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config, self.threat, self.roles = config, ThreatModel(config), config.data.roles
        primary = self.threat.primary
        missing = [role for role in (*TARGET_ROLES, KNOWN_ROLES[1], SHADOW_ROLES[1]) if role not in self.roles]
        target = config.encoders[primary.target]
        if missing or primary.reference not in config.encoders or not isinstance(target, TrainedConfig):
            need = f"the role {missing[0]}" if missing else "a primary attack on what is trained here, with one shadow"
            raise UserError(f"a self-test needs {need}; take configs/quickstart.yaml or configs/cifar10.yaml")
        self.target = target

    def trained(self) -> RunConfig:
        """The primary attack on its target; as points of a sweep, its shadow, and the target around an unlearning.

        The shadow never saw the audited images: it is the target trained anew without them. `TUNED` is the target
        trained for one more epoch on the images of the shadow, `KEEPING` the shadow with some of the members too.
        """
        primary = self.threat.primary
        whole = self.config.model_dump(mode="json", by_alias=True)
        kin = {*self.threat.training_chain(primary.target), *self.threat.training_chain(primary.reference)}
        encoders = {name: whole["encoders"][name] for name in self.config.encoders if name in kin}
        shadow = encoders[primary.reference]
        more = {"start": primary.target, "train_on": shadow["train_on"], "epochs": 1, "checkpoints": []}
        encoders[TUNED] = encoders[primary.target] | more
        encoders["fresh"] = self.fresh  # the control of the shadow: the first encoder that saw neither group
        encoders[NEVER] = shadow | {"train_on": [SHADOW_ROLES[1]]}
        encoders[KEEPING] = shadow | {"train_on": [SHADOW_ROLES[0], KNOWN_ROLES[0]]}
        output = self.threat.primary_output
        found = _SHADOW_FREE | {"target": [primary.target, primary.reference, TUNED, KEEPING], "outputs": [output]}
        plain = plain_of(self.config)
        plain["data"]["roles"][KNOWN_ROLES[0]] = {"from": TARGET_ROLES[0], "fraction": 2 * KEPT}
        plain |= {
            "name": "selftest-trained",
            "encoders": encoders,
            "attacks": [
                primary.model_dump(mode="json"),
                _SHADOW_FREE | {"target": primary.reference, "outputs": ["backbone"]},
                found,
            ],
            "validity": {"attack": 0, "output": output},
        }
        other = {"label": "other-data", "validity.attack": 1, "validity.output": "backbone"}
        forgetting = {"label": "forgetting", "validity.attack": 2, "validity.references": [NEVER]}
        return build(plain).model_copy(update={"sweep": {"audited": (other, forgetting)}})

    def random(self, sources: Mapping[str, Any]) -> RunConfig:
        """An attack without shadows on random weights; on other images where ``sources`` gives some."""
        plain = plain_of(self.config)
        if sources:
            roles = {
                TARGET_ROLES[0]: {"from": "members"},
                TARGET_ROLES[1]: {"from": "nonmembers"},
                KNOWN_ROLES[1]: {"from": TARGET_ROLES[1], "fraction": 0.3},
            }
            plain["data"] = decoding_of(plain) | {"sources": dict(sources), "roles": roles}
            plain["utility"] = {}
        plain["queries"] |= {"outputs": ["backbone"]}
        return build(
            plain
            | {
                "name": "selftest-random",
                "encoders": {"target": self.fresh, "fresh": self.fresh},
                "attacks": [_SHADOW_FREE],
                "validity": {"references": ["fresh"]},
            }
        )

    @property
    def canaries(self) -> int:
        """How many samples of the audited ones' source may be canaries; 0: too few to refute a promise."""
        members, nonmembers = (self.roles[role] for role in TARGET_ROLES)
        if self.config.data.group_by is not None or members.source_name != nonmembers.source_name:
            return 0
        left = (members.count or 0) + (nonmembers.count or 0) - 2 * _OTHERS
        return min(left, _CANARIES) if left >= _FEWEST else 0

    def promising(self, classes: int) -> RunConfig:
        """Two providers of a classifier on random features promise an epsilon; one adds the noise, one adds none."""
        target = self.target
        source = self.roles[TARGET_ROLES[0]].source_name
        roles = {
            **{role: {"from": source, "count": _OTHERS} for role in TARGET_ROLES},
            **{
                known: {"from": role, "count": _OTHERS // 2}
                for known, role in zip(KNOWN_ROLES, TARGET_ROLES, strict=True)
            },
            CANARY_ROLE: {"from": source, "count": self.canaries, "kind": "mislabelled"},
        }
        head = {
            "objective": "supervised",
            "backbone": target.backbone,
            "start": "fresh",
            "train_on": [TARGET_ROLES[0], CANARY_IN],
            "epochs": 1,
            "batch_size": 2 * _OTHERS,
            "parameters": {"classes": classes, "freeze_backbone": True},
            "augmentation": {"crop_scale": [1.0, 1.0], "flip": 0},
        }
        settings = {"head": "convex", "penalty": 1e-4, "delta": _DELTA}
        fewest = _OTHERS + self.canaries // 3  # with fewer coins that say in than one in a million times
        scale = calibrated("gaussian", _EPSILON, sensitivity_bound(1e-4, fewest), delta=_DELTA).scale
        labelled = {HONEST: settings | {"scale": scale}, BROKEN: settings | {"scale": 0.0}}
        plain = plain_of(self.config)
        return build(
            plain
            | {
                "name": "selftest-promising",
                "data": plain["data"] | {"roles": roles},
                "encoders": {"fresh": self.fresh, "target": head},
                "queries": {"outputs": ["logits"]},
                "attacks": [{"attack": "metric-loss", "target": "target", "reference": "known", "per_class": False}],
                "defenses": [
                    {"defense": "additive-gaussian", "label": label, "settings": chosen}
                    for label, chosen in labelled.items()
                ],
                "dp_audit": {"attack": 0, "epsilon": _EPSILON, "delta": _DELTA, "family": GAUSSIAN},
                "utility": {},
                "resources": plain["resources"] | {"train_workers": 1},
            }
        )

    def copies(self, splits: Splits, place: str) -> dict[str, Any]:
        """A source with audited members as files below ``place``, which stand there once and 16 times by turns.

        A copy differs from its image in the lowest bit of one value, since exact copies are dropped. Existing files are
        kept.
        """

        def files() -> Iterator[tuple[str, bytes]]:
            ids = splits.first(TARGET_ROLES[:1], COPIED, self.config.seeds[0])
            numbers = {name: COPIES[number % len(COPIES)] for number, name in enumerate(ids)}
            for number, (name, _, pixels) in enumerate(read_samples(self.config.data, splits, TARGET_ROLES[:1], ids)):
                for copy in range(numbers[name]):
                    changed = pixels.copy()
                    changed.flat[copy] ^= copy > 0
                    yield f"images/{number:03d}-{numbers[name]:02d}-{copy:02d}.png", png_of(changed)

        write_once(place, files())
        return {"copies": {"kind": "imagefolder", "path": f"{place}/images"}}

    def copied(self, sources: Mapping[str, Any]) -> RunConfig:
        """A run on the images of `copies`, for what training memorises; all copies of an image are drawn together."""
        plain, target = plain_of(self.config), self.target.model_dump(mode="json")
        trained = {
            **{name: target[name] for name in ("backbone", "augmentation", "mean", "std", "precision")},
            "objective": "vicreg",
            "epochs": 10,
            "batch_size": 64,
            "parameters": {"projection_hidden": 256, "projection_width": 128},
            "optimizer": {"name": "adamw", "learning_rate": 0.005, "weight_decay": 1e-4, "schedule": "constant"},
        }
        drawn = {
            "sources": dict(sources),
            "group_by": {"from": "key", "pattern": r"^(\d+-\d+)-"},
            "roles": {role: {"from": "copies", "fraction": 0.5} for role in TARGET_ROLES},
        }
        return build(
            plain
            | {
                "name": "selftest-copied",
                "data": decoding_of(plain) | drawn,
                "encoders": {
                    "target": trained | {"train_on": TARGET_ROLES[:1]},
                    "half": trained | {"train_on": TARGET_ROLES, "halves": _HALVES},
                    "fresh": self.fresh,
                },
                "queries": plain["queries"] | {"outputs": ["projection"]},
                "attacks": [{"attack": "sslmem", "target": "target", "reference": "half"}],
                "utility": {},
            }
        )

    def altered(self, splits: Splits, place: str, case: str) -> dict[str, Any]:
        """Sources of a config: the audited images as files below ``place``, members as they are, non-members altered.

        Existing files are kept: the images are a function of config and splits.
        """
        folders = {"members": TARGET_ROLES[0], "nonmembers": TARGET_ROLES[1]}

        def files() -> Iterator[tuple[str, bytes]]:
            for name, role in folders.items():
                for number, (_, _, pixels) in enumerate(
                    read_samples(self.config.data, splits, [role], splits.ids([role]))
                ):
                    data, suffix = ALTERED[case](pixels, name == "members")
                    yield f"{name}/{number:06d}.{suffix}", data

        write_once(place, files())
        return {name: {"kind": "imagefolder", "path": f"{place}/{name}"} for name in folders}

    @property
    def fresh(self) -> dict[str, Any]:
        """An encoder with random weights, of the architecture that the config trains."""
        target = self.target
        return {
            "load": f"checkpoint:{target.backbone}",
            "fresh": True,
            "objective": target.objective,
            "augmentation": target.model_dump(mode="json")["augmentation"],
        }


def write_once(place: str, files: Iterator[tuple[str, bytes]]) -> None:
    """Write files below ``place`` by their paths there, unless all of them stand there already."""
    if not storage.exists(f"{place}/{_WHOLE}"):
        for path, data in files:
            storage.write_atomic(f"{place}/{path}", data)
        storage.write_json(f"{place}/{_WHOLE}", {"whole": True})


def png_of(pixels: Pixels, share: float = 1.0) -> bytes:
    """A PNG file of an image (C, H, W), or of a smaller one: a share of its side."""
    return encode_png(shrunk(pixels, max(1, round(pixels.shape[-1] * share))))


def plain_of(config: RunConfig) -> dict[str, Any]:
    """The config's data, seeds, views and resources, as plain values."""
    whole = config.model_dump(mode="json", by_alias=True)
    parts = ("seeds", "data", "queries", "utility", "resources")
    return {name: whole[name] for name in parts} | {"checkpoints": "last"}


def decoding_of(plain: Mapping[str, Any]) -> dict[str, Any]:
    """How the images of a config, as plain values, are decoded."""
    return {name: plain["data"][name] for name in ("image_size", "channels", "interpolation", "fit", "resize")}


ALTERED: dict[str, Callable[[Pixels, bool], tuple[bytes, str]]] = {
    "compression": lambda pixels, member: (encode_jpeg(pixels, _FINE if member else _COARSE), "jpg"),
    "size": lambda pixels, member: (png_of(pixels, 1.0 if member else _SMALLER), "png"),
}
"""Cases in which the files of the two groups differ, and how."""
