"""Lots of the self-test: what was published is used in full, in one album of ten, or not at all.

The audited images of the run that trains, in ten albums, are a lot. Encoders are trained on what it publishes; the
shadow of that run saw none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mi_core.encoders.checkpoint import Encoder
from mi_core.lots.draw import SHARE
from pipelines.audit.planted import decoding_of, plain_of, png_of, write_once
from pipelines.config.roles import KNOWN_ROLES, SHADOW_ROLES, TARGET_ROLES
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.draw.images import read_samples
from pipelines.data.draw.splits import Splits
from pipelines.encoders.stored import describe
from pipelines.lots.claim import Claim, claim
from pipelines.lots.commit import Wanted, commit
from pipelines.lots.publish import publish
from pipelines.lots.vault import VAULT, Lot
from pipelines.plan.checks import build
from pipelines.plan.rules.views import primary_output, recipe_of
from pipelines.run.folder import SeedFolder
from pipelines.run.parts import on_parts

ALBUMS = 10
_ALBUM = "album-3"  # the one that is used
_OTHERS = "others"  # folder of the images that the shadow was trained on


def lot_of(config: RunConfig, splits: Splits, place: str) -> Lot:
    """A lot of the audited images in the folder of that name, drawn and written; one that is there stays.

    The images that the shadow was trained on stand beside it.
    """

    def files(roles: Sequence[str], albums: int) -> Iterator[tuple[str, bytes]]:
        for number, (_, _, pixels) in enumerate(read_samples(config.data, splits, roles, splits.ids(roles))):
            yield f"album-{number % albums}/{number:06d}.png", png_of(pixels)

    write_once(f"{place}/images", files(TARGET_ROLES, ALBUMS))
    write_once(f"{place}/{_OTHERS}", files(SHADOW_ROLES[:1], 1))
    lot = Lot(f"{place}/lot")
    if any(release.is_written for release in lot.releases()):
        return lot
    source = SourceConfig(kind="imagefolder", path=f"{place}/images")
    with on_parts(f"{lot.path}/{VAULT}", None) as each:
        release = commit(source, lot, Wanted(SHARE), beacon="", albums=None, each=each)
        if release is not None:
            publish(source, release, "", each)
    return lot


def training(config: RunConfig, lot: Lot, *, whole: bool) -> RunConfig:
    """The target of a config, trained on what a lot published; without ``whole`` on one album and other images."""
    plain = plain_of(config)
    primary = config.attacks[config.validity.attack]
    target = config.encoders[primary.target].model_dump(mode="json")
    used = lot.published if whole else f"{lot.published}/{_ALBUM}"
    back = lot.releases()[0].held_back
    sources = {name: {"kind": "imagefolder", "path": path} for name, path in (("used", used), ("back", back))}
    roles: dict[str, dict[str, object]] = {
        TARGET_ROLES[0]: {"from": "used"},
        TARGET_ROLES[1]: {"from": "back"},
        KNOWN_ROLES[1]: {"from": TARGET_ROLES[1], "fraction": 0.3},
    }
    if not whole:
        sources["others"] = {"kind": "imagefolder", "path": f"{lot.path.removesuffix('/lot')}/{_OTHERS}"}
        roles[SHADOW_ROLES[0]] = {"from": "others"}
    plain["data"] = decoding_of(plain) | {"sources": sources, "roles": roles, "near_duplicates": None}
    return build(
        plain
        | {
            "name": "selftest-lot",
            "encoders": {
                "target": target | {"train_on": [TARGET_ROLES[0], *(() if whole else SHADOW_ROLES[:1])]},
                "fresh": {"load": f"checkpoint:{target['backbone']}", "fresh": True, "objective": target["objective"]},
            },
            "attacks": [{"attack": "mean-cosine", "target": "target", "reference": "nonmembers"}],
            "validity": {"references": ["fresh"]},
            "utility": {},
        }
    )


def claim_on(config: RunConfig, lot: Lot, folder: SeedFolder, name: str) -> Claim:
    """The claim on an encoder of a run, asked as the config's attack asks."""
    stored = describe(folder, name)
    encoder: Encoder = stored.load(stored.epochs[-1]).eval()
    primary = config.attacks[config.validity.attack]
    decoding = {part: value for part, value in decoding_of(plain_of(config)).items() if value is not None}
    recipe = recipe_of(config, primary)
    return claim(
        lot.path,
        encoder,
        views=config.queries.views,
        decoding=decoding,
        objective=recipe.name,
        augmentation=recipe.settings,
        output=primary_output(config),
    )


def verdict_of(found: Claim) -> str:
    """The verdict of a claim, or that the one album shows it and no other does."""
    albums = [album.album for album in found.result.albums if album.is_used]
    return "one-album" if albums == [_ALBUM] else found.result.verdict.replace(" ", "-")
