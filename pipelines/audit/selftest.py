"""The self-test: runs with a planted truth, whose verdicts have to come out as planted.

Four runs of the whole pipeline on the data of one config. An encoder that was trained on the members leaks. The shadow
of the same run saw neither group and does not leak; nor does an encoder with random weights. Non-members that were
saved at a lower quality or shrunk differ from members by themselves, and that must never be called a leak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from mi_core.images import Pixels, encode_jpeg, encode_png, shrunk
from pipelines.audit import run as audit
from pipelines.config.attacks import NONMEMBERS
from pipelines.config.checks import build
from pipelines.config.encoders import TrainedConfig
from pipelines.config.roles import KNOWN_ROLES, TARGET_ROLES
from pipelines.config.run_config import RunConfig
from pipelines.console import say
from pipelines.data.draw import draw
from pipelines.data.images import read_samples
from pipelines.data.scan import scan
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.run.folder import RunFolder, versions
from pipelines.run.leftovers import note, watched
from pipelines.run.points import points
from pipelines.run.ray_session import ray_cluster

RESULT = "selftest.json"
_FINE, _COARSE = 95, 50  # JPEG qualities of members and of altered non-members
_SMALLER = 0.75  # side of altered non-members, as a share
_RATES = ("attack_auc", "blind_auc", "control_auc")
_SHADOW_FREE = {"attack": "mean-cosine", "target": "target", "reference": NONMEMBERS}
_CASES = {
    "leak": ("an encoder trained on the members", "leak"),
    "other-data": ("an encoder trained on other images", "no-evidence"),
    "random-weights": ("an encoder with random weights", "no-evidence"),
    "compression": ("random weights; non-members saved at a lower quality", "confounded"),
    "size": ("random weights; non-members shrunk", "confounded"),
}


@dataclass(frozen=True)
class Outcome:
    """The verdict on one case."""

    name: str
    planted: str
    expected: str
    verdict: str
    validity: Mapping[str, Any]
    folder: str

    @property
    def right(self) -> bool:
        """Whether the verdict is as planted."""
        return self.verdict == self.expected

    def as_json(self) -> dict[str, Any]:
        """The entry of selftest.json."""
        numbers = {name: part for name, part in self.validity.items() if name.endswith("auc")}
        plain = {name: getattr(self, name) for name in ("name", "planted", "expected", "verdict", "right")}
        return plain | {"report": f"{self.folder}/report.html"} | numbers


def run(config: RunConfig, out: str, *, address: str | None = None, command: str = "", verbose: bool = False) -> bool:
    """Plant every case in runs below ``out``, judge them, and write selftest.json.

    Args:
        config: its data, its primary attack, and the encoders of that; everything else is left out.
        out: folder for the runs, a path or URI; what stands there is resumed.
        address, command, verbose: as `audit.run`.

    Returns:
        Whether every verdict is as planted.

    Raises:
        UserError: the config cannot be planted in, or the user's input is wrong otherwise.
    """
    place = storage.target(out)
    _check(config)
    outcomes: list[Outcome] = []
    store = config.resources.object_store_mb
    with watched(place), ray_cluster(address, object_store_mb=store, verbose=verbose):
        note(place)

        def judge(name: str, folder: RunFolder) -> None:
            outcomes.append(outcome(name, folder))
            say("selftest", f"{name}: {outcomes[-1].verdict}, expected {outcomes[-1].expected}")

        trained = _trained(config)
        folder = audit.run(trained, f"{place}/trained", command=command, verbose=verbose)
        judge("leak", folder)
        judge("other-data", points(trained, folder)[0].folder)
        for name, alter in (("random-weights", None), *_ALTERED.items()):
            sources = {} if alter is None else _altered(config, f"{place}/images/{name}", alter)
            judge(name, audit.run(_random(config, sources), f"{place}/{name}", command=command, verbose=verbose))
    passed = all(one.right for one in outcomes)
    storage.write_json(
        f"{place}/{RESULT}", {"passed": passed, "versions": versions(), "cases": [one.as_json() for one in outcomes]}
    )
    return passed


def outcome(name: str, folder: RunFolder) -> Outcome:
    """The verdict on a case whose run is finished."""
    validity = storage.read_json(f"{folder.path}/report.json").get("validity", {})
    return Outcome(name, *_CASES[name], validity.get("verdict", "undecided"), validity, folder.path)


def table(out: str) -> Table:
    """The cases of a finished self-test for a rich console."""
    result = storage.read_json(f"{storage.target(out)}/{RESULT}")
    shown = Table("case", "expected", "verdict", "AUC", "blind", "control", "", title="Self-test")
    for case in result["cases"]:
        rates = [f"{case[name]['value']:.3f}" if name in case else "" for name in _RATES]
        shown.add_row(case["planted"], case["expected"], case["verdict"], *rates, "right" if case["right"] else "WRONG")
    return shown


def _check(config: RunConfig) -> None:
    primary = config.attacks[config.validity.attack]
    missing = [role for role in (*TARGET_ROLES, KNOWN_ROLES[1]) if role not in config.data.roles]
    if (
        missing
        or primary.reference not in config.encoders
        or not isinstance(config.encoders[primary.target], TrainedConfig)
    ):
        need = f"the role {missing[0]}" if missing else "a primary attack on an encoder trained here, with one shadow"
        raise UserError(f"a self-test needs {need}; take configs/quickstart.yaml or configs/cifar10.yaml")


def _plain(config: RunConfig) -> dict[str, Any]:
    """The config's data, seeds, views and resources, as plain values."""
    whole = config.model_dump(mode="json", by_alias=True)
    parts = ("seeds", "data", "queries", "utility", "resources")
    return {name: whole[name] for name in parts} | {"checkpoints": "last"}


def _fresh(config: RunConfig) -> dict[str, Any]:
    """An encoder with random weights, of the architecture that the config trains."""
    target = config.encoders[config.attacks[config.validity.attack].target]
    assert isinstance(target, TrainedConfig)
    return {
        "load": f"checkpoint:{target.backbone}",
        "fresh": True,
        "objective": target.objective,
        "augmentation": target.model_dump(mode="json")["augmentation"],
    }


def _trained(config: RunConfig) -> RunConfig:
    """The primary attack on its target; as a point of a sweep, its shadow, which never saw the audited images."""
    primary = config.attacks[config.validity.attack]
    whole = config.model_dump(mode="json", by_alias=True)
    kin = {*config.chain(primary.target), *config.chain(primary.reference)}
    encoders = {name: whole["encoders"][name] for name in config.encoders if name in kin}
    attacks = [primary.model_dump(mode="json"), _SHADOW_FREE | {"target": primary.reference, "outputs": ["backbone"]}]
    plain = _plain(config) | {
        "name": "selftest-trained",
        "encoders": {**encoders, "fresh": _fresh(config)},
        "attacks": attacks,
        "validity": {"attack": 0, "output": config.primary_output},
    }
    other = {"label": "other-data", "validity.attack": 1, "validity.output": "backbone"}
    return build(plain).model_copy(update={"sweep": {"audited": (other,)}})


def _random(config: RunConfig, sources: Mapping[str, Any]) -> RunConfig:
    """An attack without shadows on random weights; on other images where ``sources`` gives some."""
    plain = _plain(config)
    if sources:
        roles = {
            TARGET_ROLES[0]: {"from": "members"},
            TARGET_ROLES[1]: {"from": "nonmembers"},
            KNOWN_ROLES[1]: {"from": TARGET_ROLES[1], "fraction": 0.3},
        }
        kept = {name: plain["data"][name] for name in ("image_size", "channels", "interpolation", "fit", "resize")}
        plain["data"] = kept | {"sources": dict(sources), "roles": roles}
        plain["utility"] = {}
    plain["queries"] |= {"outputs": ["backbone"]}
    return build(
        plain
        | {
            "name": "selftest-random",
            "encoders": {"target": _fresh(config), "fresh": _fresh(config)},
            "attacks": [_SHADOW_FREE],
            "validity": {"control": "fresh"},
        }
    )


def _compressed(pixels: Pixels, *, member: bool) -> tuple[bytes, str]:
    return encode_jpeg(pixels, _FINE if member else _COARSE), "jpg"


def _shrunken(pixels: Pixels, *, member: bool) -> tuple[bytes, str]:
    side = pixels.shape[-1] if member else max(1, round(pixels.shape[-1] * _SMALLER))
    return encode_png(shrunk(pixels, side)), "png"


_ALTERED: dict[str, Callable[..., tuple[bytes, str]]] = {"compression": _compressed, "size": _shrunken}


def _altered(config: RunConfig, place: str, alter: Callable[..., tuple[bytes, str]]) -> dict[str, Any]:
    """Sources of a config: the audited images of the first seed as files, members as they are, non-members altered.

    Existing files are kept: the images are a function of the config.
    """
    folders = {"members": TARGET_ROLES[0], "nonmembers": TARGET_ROLES[1]}
    if not storage.exists(f"{place}/{RESULT}"):
        splits = draw(config.data, scan(config.data), config.seeds[0])
        for name, role in folders.items():
            for number, (_, _, pixels) in enumerate(read_samples(config.data, splits, [role], splits.ids([role]))):
                data, suffix = alter(pixels, member=name == "members")
                storage.write_atomic(f"{place}/{name}/{number:06d}.{suffix}", data)
        storage.write_json(f"{place}/{RESULT}", {"whole": True})
    return {name: {"kind": "imagefolder", "path": f"{place}/{name}"} for name in folders}
