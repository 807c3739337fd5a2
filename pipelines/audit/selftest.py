"""The self-test: runs with a planted truth, whose verdicts have to come out as planted.

Runs of the whole pipeline on the data of one config (`pipelines.audit.planted`).

- An encoder that was trained on the members leaks. Two nulls do not: the shadow of the same run, which saw neither
  group, and an encoder with random weights.
- Non-members that were saved at a lower quality or shrunk differ from members by themselves, and that must never be
  called a leak.
- Whoever chooses the images that an encoder never saw cannot make a leak of them: not by names and pixels that have
  the best views, not by the taste of another encoder, not by bursts (`pipelines.audit.chosen`).
- Trained anew without the members, the encoder forgot them, but for a tenth at most. After one more epoch on other
  images it did not. Trained anew with a fifth of them, it must not be said to have forgotten them.
- A lot whose published images were used is used; of one album of ten it names that one; a lot that no encoder saw is
  never said to be used.
- Images that stand 16 times in training are memorised more than those that stand there once.
- A provider who promises an epsilon and adds no noise is refuted; one who adds it is not. These two cases need images
  with classes, and enough of them.

The audited images of the run that trains, in ten albums, are a lot. Encoders are trained on what it publishes; the
shadow of that run saw none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from mi_core.encoders.checkpoint import Encoder
from mi_core.lots.draw import SHARE
from mi_core.provenance import versions
from pipelines.audit import planted
from pipelines.audit import run as audit
from pipelines.audit.chosen import CASES, Chooser
from pipelines.audit.planted import Planter, decoding_of, plain_of, png_of, write_once
from pipelines.config.roles import KNOWN_ROLES, SHADOW_ROLES, TARGET_ROLES
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.sources import SourceConfig
from pipelines.console import say
from pipelines.data.draw.images import read_samples
from pipelines.data.draw.splits import Splits
from pipelines.data.scan.scan import scan
from pipelines.encoders.stored import describe
from pipelines.files import storage
from pipelines.lots.claim import Claim, claim
from pipelines.lots.commit import Wanted, commit
from pipelines.lots.publish import publish
from pipelines.lots.statement import STATEMENT
from pipelines.lots.vault import VAULT, Lot
from pipelines.plan.checks import build
from pipelines.plan.rules import ThreatModel
from pipelines.report.forget import forget
from pipelines.run.folder import SCAN, RunFolder, SeedFolder
from pipelines.run.machine import note, watched
from pipelines.run.parts import on_parts
from pipelines.run.points import points
from pipelines.run.ray_session import ray_cluster

RESULT = "selftest.json"
_Audited = Callable[[RunConfig, str], RunFolder]
"""Runs all stages of a config in a folder of that name."""
_NO_LEAK = ("no-evidence", "confounded")
_CASES = {
    "leak": ("an encoder trained on the members", ("leak",)),
    "other-data": ("an encoder trained on other images", ("no-evidence",)),
    "random-weights": ("an encoder with random weights", ("no-evidence",)),
    "compression": ("random weights; non-members saved at a lower quality", ("confounded",)),
    "size": ("random weights; non-members shrunk", ("confounded",)),
    "forged-names": ("unused images under the best of eight names", _NO_LEAK),
    "forged-pixels": ("unused images in the best of eight variants", _NO_LEAK),
    "taste": ("unused images by the taste of another encoder", _NO_LEAK),
    "bursts": ("unused images in bursts of twenty", _NO_LEAK),
    "forgotten": ("trained anew without the members, a tenth may be kept", ("forgotten",)),
    "not-forgotten": ("trained on, for one epoch on other images", ("not-forgotten",)),
    "kept": ("trained anew on a fifth of the members", ("not-forgotten", "cannot-tell")),
    "lot-used": ("all that a lot published, in training", ("used",)),
    "lot-album": ("one album of ten of a lot, in training", ("one-album",)),
    "lot-unused": ("a lot that no encoder saw", ("not-shown",)),
    "duplicates": ("images that stand once and 16 times in training", ("in-order",)),
    "honest-dp": ("a promise of epsilon 1, with its noise", ("not-refuted",)),
    "broken-dp": ("a promise of epsilon 1, without noise", ("refuted",)),
}
_FIGURES = {
    "attack_auc": "AUC",
    "blind_auc": "blind",
    "control_auc": "control",
    "before_auc": "AUC before",
    "after_auc": "after",
    "unseen_auc": "unseen",
    "epsilon": "epsilon at least",
    "lot_auc": "AUC",
    "p_value": "p",
    "memorised_1": "memorised once",
    "memorised_16": "16 times",
}


@dataclass(frozen=True)
class Outcome:
    """The verdict on one case.

    Args:
        name: of the case.
        verdict: as the run says it.
        figures: numbers that it rests on, as JSON values.
        folder: of the run, of the point of a sweep, or of the claim.
        page: that shows it, in the folder.
    """

    name: str
    verdict: str
    figures: Mapping[str, Any]
    folder: str
    page: str = "report.html"

    @property
    def expected(self) -> str:
        """The verdict that is right, or all that are."""
        return " or ".join(_CASES[self.name][1])

    @property
    def right(self) -> bool:
        """Tell whether the verdict is as planted."""
        return self.verdict in _CASES[self.name][1]

    def as_json(self) -> dict[str, Any]:
        """The entry of selftest.json."""
        told = {name: getattr(self, name) for name in ("expected", "verdict", "right")}
        plain = {"name": self.name, "planted": _CASES[self.name][0]} | told
        return plain | {"report": f"{self.folder}/{self.page}"} | dict(self.figures)


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
    planter = Planter(config)
    outcomes: list[Outcome] = []
    store = config.resources.object_store_mb
    with watched(place), ray_cluster(address, object_store_mb=store, verbose=verbose):
        note(place)

        def audited(planned: RunConfig, name: str) -> RunFolder:
            return audit.run(planned, f"{place}/{name}", command=command, verbose=verbose)

        for one in _judged(planter, place, audited):
            outcomes.append(one)
            say("selftest", f"{one.name}: {one.verdict}, expected {one.expected}")
    passed = all(one.right for one in outcomes)
    storage.write_json(
        f"{place}/{RESULT}", {"passed": passed, "versions": versions(), "cases": [one.as_json() for one in outcomes]}
    )
    return passed


def _judged(planter: Planter, place: str, audited: _Audited) -> Iterator[Outcome]:
    """The outcomes of all cases, each when its run is finished."""
    trained = planter.trained()
    folder = audited(trained, "trained")
    yield verdict_outcome("leak", folder)
    other, forgetting = (point.folder for point in points(trained, folder))
    yield verdict_outcome("other-data", other)
    primary = planter.threat.primary
    for name, after in (("forgotten", primary.reference), ("not-forgotten", planted.TUNED), ("kept", planted.KEEPING)):
        yield forgetting_outcome(name, forgetting, primary.target, after)
    yield verdict_outcome("random-weights", audited(planter.random({}), "random-weights"))
    first = folder.seed(trained.seeds[0])
    chooser = Chooser(trained, first)
    for name in CASES:
        yield verdict_outcome(name, audited(chooser.audit(name, f"{place}/images/{name}"), name))
    splits = Splits.load(first.path)
    yield from PublishedLot(trained, first, f"{place}/images/lot").outcomes(audited)
    for name in planted.ALTERED:
        sources = planter.altered(splits, f"{place}/images/{name}", name)
        yield verdict_outcome(name, audited(planter.random(sources), name))
    if splits.count(TARGET_ROLES[:1]) >= planted.COPIED:
        sources = planter.copies(splits, f"{place}/images/copies")
        yield copies_outcome(audited(planter.copied(sources), "copies"))
    else:
        say("selftest", f"no copies of images are planted: it takes {planted.COPIED} audited members")
    classes = classes_of(trained, folder)
    if classes > 1 and planter.canaries:
        promises = audited(planter.promising(classes), "promises")
        yield promise_outcome("honest-dp", promises, planted.HONEST)
        yield promise_outcome("broken-dp", promises, planted.BROKEN)
    else:
        say("selftest", "no promise of differential privacy is planted: it takes classes and 300 audited images")


def verdict_outcome(name: str, folder: RunFolder) -> Outcome:
    """The verdict on a case whose run is finished."""
    validity = storage.read_json(f"{folder.path}/report.json").get("validity", {})
    figures = {name: part for name, part in validity.items() if name.endswith("auc")}
    return Outcome(name, validity.get("verdict", "undecided"), figures, folder.path)


def forgetting_outcome(name: str, folder: RunFolder, before: str, after: str) -> Outcome:
    """Tell whether an encoder of a finished run forgot what another one knew, but for a tenth of the images at most.

    A few hundred images cannot rule out less.
    """
    found = forget(f"{folder.path}:{before}", f"{folder.path}:{after}", kept=planted.KEPT)["found"]
    figures = {name: found[name] for name in ("before_auc", "after_auc", "unseen_auc", "left_at_most")}
    return Outcome(name, found["verdict"], figures, folder.path)


def copies_outcome(folder: RunFolder) -> Outcome:
    """Tell whether images that stand in training more often are memorised more, and the mean is clearly above 0."""
    entries = storage.read_json(f"{folder.path}/report.json")["memorisation"]  # one per seed
    by_copies: dict[int, list[float]] = {copies: [] for copies in planted.COPIES}
    for entry in entries:
        table = storage.read_table(f"{folder.path}/{entry['file']}", ["id", "memorisation"])
        for sample, value in zip(table["id"].to_pylist(), table["memorisation"].to_pylist(), strict=True):
            by_copies[int(sample.rpartition("/")[2].split("-")[1])].append(value)  # of copies/NUMBER-COPIES-COPY
    means = [sum(values) / len(values) for values in by_copies.values()]
    right = means == sorted(means) and all(entry["mean"]["ci95"][0] > 0 for entry in entries)
    figures = {f"memorised_{copies}": mean for copies, mean in zip(by_copies, means, strict=True)}
    return Outcome("duplicates", "in-order" if right else "not-in-order", figures, folder.path)


def promise_outcome(name: str, folder: RunFolder, defense: str) -> Outcome:
    """The outcome of a defense's promise, by the canaries of a finished run."""
    entries = storage.read_json(f"{folder.path}/report.json")["dp_audit"]
    (entry,) = (entry for entry in entries if entry["target"] == f"target+{defense}")
    figures = {"promised": entry["promised"]["epsilon"]} | {name: entry[name] for name in ("epsilon", "p_value")}
    return Outcome(name, entry["verdict"], figures, folder.path)


def table(out: str) -> Table:
    """The cases of a finished self-test for a rich console."""
    result = storage.read_json(f"{storage.target(out)}/{RESULT}")
    shown = Table("case", "expected", "verdict", "figures", "", title="Self-test")
    for case in result["cases"]:
        values = {
            words: case[name]["value"] if isinstance(case[name], Mapping) else case[name]
            for name, words in _FIGURES.items()
            if name in case
        }
        figures = ", ".join(f"{words} {value:.3f}" for words, value in values.items())
        right = "right" if case["right"] else "WRONG"
        shown.add_row(case["planted"], case["expected"], case["verdict"], figures, right)
    return shown


def classes_of(config: RunConfig, folder: RunFolder) -> int:
    """Number of classes of the audited images' source, as the run read it; 0 where an image has none."""
    source = config.data.roles[TARGET_ROLES[0]].source_name
    read = scan(config.data, f"{folder.path}/{SCAN}/{config.data.scan_digest[:12]}")
    shards = [storage.read_table(shard.path, ["label"]) for shard in read.shards if shard.source == source]
    labels = pa.concat_tables(shards)["label"]
    return 0 if labels.null_count else 1 + (pc.max(labels).as_py() or 0)


ALBUMS = 10
_ALBUM = "album-3"  # the one that is used
_OTHERS = "others"  # folder of the images that the shadow was trained on


class PublishedLot:
    """A lot of the audited images, drawn and written below a folder, with the images that the shadow was trained on.

    Args:
        config: of the run that trained (`pipelines.audit.planted.Planter.trained`).
        folder: of its first seed.
        place: of the images; a lot that is there stays.
    """

    def __init__(self, config: RunConfig, folder: SeedFolder, place: str) -> None:
        self.config, self.folder, self.place, self.threat = config, folder, place, ThreatModel(config)
        splits = Splits.load(folder.path)

        def files(roles: Sequence[str], albums: int) -> Iterator[tuple[str, bytes]]:
            for number, (_, _, pixels) in enumerate(read_samples(config.data, splits, roles, splits.ids(roles))):
                yield f"album-{number % albums}/{number:06d}.png", png_of(pixels)

        write_once(f"{place}/images", files(TARGET_ROLES, ALBUMS))
        write_once(f"{place}/{_OTHERS}", files(SHADOW_ROLES[:1], 1))
        self.lot = Lot(f"{place}/lot")
        if any(release.is_written for release in self.lot.releases()):
            return
        source = SourceConfig(kind="imagefolder", path=f"{place}/images")
        with on_parts(f"{self.lot.path}/{VAULT}", None) as each:
            release = commit(source, self.lot, Wanted(SHARE), beacon="", albums=None, each=each)
            if release is not None:
                publish(source, release, "", each)

    def outcomes(self, audited: _Audited) -> Iterator[Outcome]:
        """The outcomes of the claims on encoders that used all of it, one album, and nothing."""
        for name, whole in (("lot-used", True), ("lot-album", False)):
            yield self._outcome(name, audited(self.training(whole=whole), name).seed(self.folder.seed), "target")
        yield self._outcome("lot-unused", self.folder, self.threat.primary.reference)

    def _outcome(self, name: str, folder: SeedFolder, encoder: str) -> Outcome:
        """The verdict of the claim on an encoder, or that the one album shows it and no other does."""
        found = self.claim_on(folder, encoder)
        figures = {"p_value": found.result.p_value, "lot_auc": found.result.designs[0].auc.as_json()}
        albums = [album.album for album in found.result.albums if album.is_used]
        verdict = "one-album" if albums == [_ALBUM] else found.result.verdict.replace(" ", "-")
        return Outcome(name, verdict, figures, found.statement, STATEMENT)

    def training(self, *, whole: bool) -> RunConfig:
        """The target of a config, trained on what a lot published; without ``whole`` on one album and other images."""
        plain = plain_of(self.config)
        target = self.config.encoders[self.threat.primary.target].model_dump(mode="json")
        used = self.lot.published if whole else f"{self.lot.published}/{_ALBUM}"
        back = self.lot.releases()[0].held_back
        sources = {"used": {"kind": "imagefolder", "path": used}, "back": {"kind": "imagefolder", "path": back}}
        roles: dict[str, dict[str, object]] = {
            TARGET_ROLES[0]: {"from": "used"},
            TARGET_ROLES[1]: {"from": "back"},
            KNOWN_ROLES[1]: {"from": TARGET_ROLES[1], "fraction": 0.3},
        }
        if not whole:
            sources["others"] = {"kind": "imagefolder", "path": f"{self.place}/{_OTHERS}"}
            roles[SHADOW_ROLES[0]] = {"from": "others"}
        plain["data"] = decoding_of(plain) | {"sources": sources, "roles": roles, "near_duplicates": None}
        return build(
            plain
            | {
                "name": "selftest-lot",
                "encoders": {
                    "target": target | {"train_on": [TARGET_ROLES[0], *(() if whole else SHADOW_ROLES[:1])]},
                    "fresh": {
                        "load": f"checkpoint:{target['backbone']}",
                        "fresh": True,
                        "objective": target["objective"],
                    },
                },
                "attacks": [{"attack": "mean-cosine", "target": "target", "reference": "nonmembers"}],
                "validity": {"references": ["fresh"]},
                "utility": {},
            }
        )

    def claim_on(self, folder: SeedFolder, name: str) -> Claim:
        """The claim on an encoder of a run, asked as the config's attack asks."""
        stored = describe(folder, name)
        encoder: Encoder = stored.load(stored.epochs[-1]).eval()
        decoding = {part: value for part, value in decoding_of(plain_of(self.config)).items() if value is not None}
        recipe = self.threat.recipe_of(self.threat.primary)
        return claim(
            self.lot.path,
            encoder,
            views=self.config.queries.views,
            decoding=decoding,
            objective=recipe.name,
            augmentation=recipe.settings,
            output=self.threat.primary_output,
        )
