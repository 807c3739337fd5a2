"""``encoder-audit lot`` and ``claim``: prepare a release by lot, and test later whether an encoder used it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from mi_core.lots.draw import SHARE, beacon_fault
from pipelines.cli.flags import Address, EncoderFlags, example, with_flags
from pipelines.console import output
from pipelines.errors import UserError

if TYPE_CHECKING:
    from pipelines.config.sections.sources import SourceConfig
    from pipelines.lots.vault import Release

_PREPARE, _ASK = "prepare", "ask"


class _WithDefault(TyperGroup):
    """``lot IMAGES`` stands for ``lot prepare IMAGES``, and ``claim LOT`` for ``claim ask LOT``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            if len(args) == 1 and re.fullmatch(r"[\w-]+", args[0]) and not Path(args[0]).exists():
                known = ", ".join(self.commands)
                raise UserError(f"{ctx.info_name} {args[0]}: no command ({known}), and no folder that is there")
            args = [_PREPARE if _PREPARE in self.commands else _ASK, *args]
        return super().parse_args(ctx, args)


lot_app = typer.Typer(
    cls=_WithDefault,
    no_args_is_help=True,
    help="Prepare a release by lot, so that its use can be proved later: lot IMAGES --out LOT.",
    epilog=example("lot prepare photos --out release"),
)
claim_app = typer.Typer(
    cls=_WithDefault,
    no_args_is_help=True,
    help="Test whether an encoder used what a lot published: claim LOT --encoder KIND:NAME --weights FILE.",
    epilog=example("claim ask release --encoder timm:resnet18 --weights resnet18.pth"),
)
Images = Annotated[str, typer.Argument(help="A folder of images, or tars.", metavar="IMAGES")]
Place = Annotated[str, typer.Option("--out", help="Folder of the lot; one that is there gets a new release.")]
DecidedBy = Annotated[
    str, typer.Option("--decided-by", help="Which public number of a later time will decide, in words.")
]


@dataclass(frozen=True)
class ReleaseFlags:
    """How a release is prepared."""

    share: Annotated[float, typer.Option("--share", help="Share of the images that is held back; 0: none.")] = SHARE
    captions: Annotated[
        bool, typer.Option("--captions", help="Publish one of six credit lines behind every caption (text beside it).")
    ] = False
    albums: Annotated[
        str | None,
        typer.Option(
            "--albums", help="Table (CSV) with name and album of each image; default: its folder.", metavar="FILE"
        ),
    ] = None
    until_decided: Annotated[
        bool,
        typer.Option("--until-decided", help="Claims ask about more and more images, and stop when it is decided."),
    ] = False
    elsewhere: Annotated[
        str | None,
        typer.Option(
            "--seen-elsewhere",
            help="Images that others have already (folder or tars); near-copies of them are left out of the lot.",
            metavar="IMAGES",
        ),
    ] = None
    address: Address = None


@lot_app.command(_PREPARE, epilog=example("lot prepare photos --out release"))
@with_flags
def prepare(images: Images, out: Place, asked: ReleaseFlags) -> None:
    """Commit and draw at once, with random numbers of this machine; lot IMAGES is short for it."""
    _commit(images, out, asked, "")


@lot_app.command("commit", epilog=example("lot commit photos --out release --decided-by 'drand quicknet round NUMBER'"))
@with_flags
def commit(images: Images, out: Place, decided_by: DecidedBy, asked: ReleaseFlags) -> None:
    """Fix images and salt by one number, before a public number of a later time decides what is published."""
    _commit(images, out, asked, _named_beacon(decided_by))


def _named_beacon(decided_by: str) -> str:
    if not decided_by.strip():
        raise UserError("--decided-by is empty; say which public number of a later day will decide")
    return decided_by.strip()


@lot_app.command("draw", epilog=example("lot draw photos --out release --beacon 8f3c...01"))
def draw(
    images: Images,
    out: Place,
    beacon: Annotated[str, typer.Option("--beacon", help="The value of the public number that was committed to.")],
    address: Address = None,
) -> None:
    """Draw a committed release with the public number, and write what is published and what is held back."""
    from pipelines.lots.publish import publish
    from pipelines.lots.vault import VAULT, Lot
    from pipelines.run.parts import on_parts

    lot = Lot.at(out)
    release = lot.releases()[-1]
    if not release.is_committed:
        raise UserError(f"{out} is not committed; run encoder-audit lot commit first")
    value = beacon.strip()
    if fault := ("..." in value and "is no value") or beacon_fault(release.header.beacon, value):
        raise UserError(f"--beacon: {fault}; give the number itself that {release.header.beacon} has")
    source = _images(images)
    with on_parts(f"{lot.path}/{VAULT}", address) as each:
        _tell(release, publish(source, release, value, each))


def _commit(images: str, out: str, asked: ReleaseFlags, beacon: str) -> None:
    """Commit, and draw at once where no beacon decides."""
    from mi_core.checks import check_range
    from mi_core.lots.commitment import ALL, UNTIL_DECIDED
    from pipelines.data.scan.shards import source_of
    from pipelines.files import storage
    from pipelines.lots.commit import Wanted, commit, read_albums
    from pipelines.lots.publish import publish
    from pipelines.lots.vault import VAULT, Lot
    from pipelines.run.parts import on_parts

    wanted = Wanted(asked.share, asked.captions)
    check_range("--share", wanted.share, 0, 1, open_high=True)
    if not (wanted.share or wanted.captions):
        raise UserError("--share 0 holds nothing back; give a share above 0, or --captions")
    source, lot = _images(images), Lot(storage.target(out))
    lot.check_vault()
    if f"{lot.path}/".startswith(f"{storage.absolute(images)}/"):
        raise UserError(f"--out {out} is inside of {images}; choose another folder")
    with on_parts(f"{lot.path}/{VAULT}", asked.address) as each:
        albums = None if asked.albums is None else read_albums(asked.albums)
        seen = None if asked.elsewhere is None else source_of(asked.elsewhere)
        counted = UNTIL_DECIDED if asked.until_decided else ALL
        release = commit(source, lot, wanted, beacon=beacon, albums=albums, counted=counted, elsewhere=seen, each=each)
        if release is None:
            output.print("nothing new: all images are in the lot already, and nothing was changed")
        elif not beacon:
            _tell(release, publish(source, release, "", each))
        else:
            output.print(f"commitment: {release.header.commitment}")
            output.print(
                f"Post, time-stamp or mail these 64 characters before the beacon ({beacon}) is known.\n"
                f"Then run: encoder-audit lot draw {images} --out {out} --beacon VALUE",
                soft_wrap=True,
            )


def _images(images: str) -> SourceConfig:
    """The images of a lot."""
    from pipelines.data.scan.shards import source_of
    from pipelines.files import storage

    if storage.exists(images) and not storage.is_folder(images) and not images.endswith(".tar"):
        raise UserError(f"{images} is a single file; give a folder of images, or tars")
    return source_of(images)


def _tell(release: Release, counts: dict[str, int]) -> None:
    """Say what to do with what was written."""
    from pipelines.lots.vault import COMMITMENTS

    lot, with_beacon = release.lot, bool(release.drawing["beacon"])
    todo = "decided by the beacon" if with_beacon else "post, time-stamp or mail these 64 characters today"
    alone = (
        "\nYou drew alone. An opponent can say that you drew many lots and kept the luckiest. Show the 64 characters "
        "to somebody now, or let a public number decide next time: encoder-audit lot commit --help"
    )
    output.print(
        f"published    {counts['published']:,} images in {lot.published}: publish these, and nothing else\n"
        f"held back    {counts['held_back']:,} images in {release.held_back}: show them to nobody, ever\n"
        f"keep secret  {lot.path}/vault: back it up; without it nothing can be proved\n"
        f"commitment   {release.header.commitment}\n"
        f"             {todo}; it stands in {lot.path}/{COMMITMENTS}" + ("" if with_beacon else alone),
        soft_wrap=True,
        highlight=False,
    )


LotFolder = Annotated[str, typer.Argument(help="Folder of the lot.", metavar="LOT")]


@claim_app.command("register", epilog=example("claim register release --encoder timm:resnet18 --decided-by 'round N'"))
@with_flags
def register(lot: LotFolder, decided_by: DecidedBy, named: EncoderFlags) -> None:
    """Fix a question by one number, before a public number of a later time decides how the encoder is asked."""
    from pipelines.lots.claim import register_claim

    beacon = _named_beacon(decided_by)
    model, settings = named.claim_arguments()
    question = register_claim(lot, model, beacon, **settings)
    output.print(f"registration: {question.commitment}")
    output.print(
        f"Post, time-stamp or mail these 64 characters before {beacon} is known.\n"
        f"Then run: encoder-audit claim ask {lot} with the same encoder and --beacon VALUE",
        soft_wrap=True,
    )


@claim_app.command(_ASK, epilog=example("claim ask release --encoder timm:resnet18 --weights resnet18.pth"))
@with_flags
def ask(
    lot: LotFolder,
    named: EncoderFlags,
    beacon: Annotated[
        str, typer.Option("--beacon", help="The value of the public number that was registered.", metavar="VALUE")
    ] = "",
    missing_ok: Annotated[
        bool, typer.Option("--missing-ok", help="Ask although images are missing; they count against the claim.")
    ] = False,
    address: Address = None,
) -> None:
    """Test whether an encoder used what a lot published; claim LOT is short for it.

    The p-value holds whatever the images and the encoder are. Its grade says what the owner could have chosen.
    """
    from mi_core.lots.words import grade_in_words, headline, lines
    from pipelines.lots.claim import claim

    model, settings = named.claim_arguments()
    found = claim(lot, model, beacon=beacon.strip(), missing_ok=missing_ok, address=address, **settings)
    output.print(f"{headline(found.result.verdict, found.grade)}\n", soft_wrap=True, highlight=False)
    for line in (grade_in_words(found.grade, found.alone, found.question.given), *lines(found.result, found.lost)):
        output.print(f"  {line}", soft_wrap=True, highlight=False)
    output.print(
        f"\nquestion {found.result.questions_asked}  {found.question.commitment}\nanswers     {found.answers}\n"
        f"page:      {found.statement}/claim.html\n"
        f"statement: {found.statement}/statement.json, and opened.parquet beside it: hand over both, they show no "
        "image; encoder-audit verify checks them without the vault",
        soft_wrap=True,
        highlight=False,
    )


@claim_app.command("join", epilog=example("claim join union claims/*"))
def join(
    union: Annotated[str, typer.Argument(help="Folder with header-NUMBER.json of each lot.", metavar="UNION")],
    statements: Annotated[
        list[str] | None, typer.Argument(help="Statements, or their folders; none: name the list.", metavar="STATEMENT")
    ] = None,
) -> None:
    """Judge the claims of many owners of small lots on one encoder together, from their statements alone."""
    from mi_core.lots.words import grade_in_words, headline
    from mi_core.report.words.numbers import small
    from pipelines.lots.join import Union, join_claims

    if not statements:
        listed = Union.read(union)
        output.print(
            f"list of {len(listed.headers)} lots: {listed.digest}\nPost, time-stamp or mail these 64 characters before "
            f"{listed.beacon} is known. A lot that is added or taken out later makes another list.",
            soft_wrap=True,
        )
        return
    found = join_claims(union, statements)
    told = [
        f"p = {small(found.p_value)}, and {small(found.level)} or less was needed.",
        f"Statements of {len(found.union.headers) - len(found.absent)} of {len(found.union.headers)} lots"
        + ("; each that is missing counts against the claim." if found.absent else "."),
        grade_in_words(found.grade, False, found.given),
        f"Look up that {found.union.beacon} was {found.value}, in exactly these characters, and that somebody else "
        f"knew the list {found.union.digest} before, and no other list of these lots. Whether the answers are the "
        "encoder's, verify tells of each statement.",
    ]
    output.print(f"{found.encoder}: {headline(found.verdict, found.grade)}\n", soft_wrap=True, highlight=False)
    for line in told:
        output.print(f"  {line}", soft_wrap=True, highlight=False)
