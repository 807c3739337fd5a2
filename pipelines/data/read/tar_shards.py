"""WebDataset tars: which members make up a sample, and what of a tar makes up none.

Members that follow each other and share a key are one sample. Its image is the first, or the first that every machine
reads; a further one is not used, and listed. Every file is part of a sample, or listed, or hidden and no image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mi_core.hashing import printable
from mi_core.image_files import NOT_EVERYWHERE, SUFFIXES
from pipelines.config.sections.sources import SourceConfig
from pipelines.data.read.samples import Damage, Portion, Problem, Sample, misnamed
from pipelines.data.read.shard_paths import expand, names_of
from pipelines.data.read.tars import Member, TarError, read_members
from pipelines.files import storage

_FORKED = "._"  # what macOS puts beside every file of a tar
_APART = "the files of this sample do not follow each other in the tar; write it anew with tar --sort=name"


def items_of(patterns: Sequence[str]) -> list[Portion]:
    """The tars that some patterns name, in order, with names of their own.

    Raises:
        UserError: as `pipelines.data.read.shard_paths.expand`.
    """
    paths = [path for pattern in patterns for path in expand(pattern)]
    return [Portion(name, path=path) for name, path in zip(names_of(paths, ".tar"), paths, strict=True)]


def scan_shard(source: SourceConfig, item: Portion) -> Iterator[Sample | Problem]:
    """Everything in a tar, in order: usable samples, a problem for each that is not, and the damage that ends it."""
    shard = _Shard(source)
    try:
        with storage.open_input(item.path, unpacked=False) as stream:
            for member in read_members(stream, end_marker=source.end_marker == "required"):
                yield from shard.add(member)
        yield from shard.close()
    except TarError as error:
        yield from shard.close_at_damage()
        yield Damage("", str(error), shard.found, error.read, error.left, error.cut)
    except OSError as error:
        yield Damage("", f"unreadable: {error}")


@dataclass
class _Group:
    """The members of one sample."""

    key: str
    parts: dict[str, bytes] = field(default_factory=dict)
    image: tuple[str, str] | None = None  # suffix and name
    shadowed: list[str] = field(default_factory=list)
    again: dict[str, int] = field(default_factory=dict)  # how often a suffix came once more
    problem: str = ""

    def add(self, member: Member, suffix: str, source: SourceConfig) -> None:
        if suffix in self.parts:
            self.again[suffix] = self.again.get(suffix, 0) + 1
        elif source.image is not None or not is_image(suffix) or self._takes(member, suffix):
            self.parts[suffix] = member.content
            if member.problem and not self.problem:
                self.problem = f"{member.name.rpartition('/')[2]} is {member.problem}"

    @property
    def kinds(self) -> set[str]:
        """Suffixes of its parts; images are all alike."""
        return {"" if self.image is not None and suffix == self.image[0] else suffix for suffix in self.parts}

    def _takes(self, member: Member, suffix: str) -> bool:
        """Tell whether an image is that of the sample; then another one that was is shadowed, or else this one."""
        if self.image is not None:
            old, name = self.image
            if _kind(old) not in NOT_EVERYWHERE or _kind(suffix) in NOT_EVERYWHERE:
                self.shadowed.append(member.name)
                return False
            self.shadowed.append(name)
            del self.parts[old]
        self.image = suffix, member.name
        return True


class _Shard:
    """The state of reading a tar, and the sample that is being put together."""

    def __init__(self, source: SourceConfig) -> None:
        self.source = source
        self.found = 0
        self._group: _Group | None = None
        self._seen: dict[str, frozenset[str]] = {}  # keys, and the suffixes of their parts
        self._alike: dict[frozenset[str], frozenset[str]] = {}  # those, one object each
        self._kinds: set[str] = set()  # of the samples before

    def add(self, member: Member) -> Iterator[Sample | Problem]:
        """Take the next member; yields the sample that it ends."""
        base = member.name.rpartition("/")[2]
        if base.startswith("."):
            if is_image(base) and not base.startswith(_FORKED):
                yield Problem(printable(member.name), "a hidden file; give it a name that begins with no dot")
            return
        key, suffix = split(member.name, self.source)
        if self._group is None or self._group.key != key:
            yield from self.close()
            self._group = _Group(key)
        self._group.add(member, suffix, self.source)

    def close(self, problem: str = "") -> Iterator[Sample | Problem]:
        """The sample that is being put together, or what is wrong with it; then what it shadows."""
        group, self._group = self._group, None
        if group is None:
            return
        self.found += 1
        self._kinds |= group.kinds
        there, before = frozenset(group.parts), self._seen.get(group.key)
        twice = Problem(printable(group.key), "the shard has this key twice")
        if before is None:
            problem = misnamed(group.key) or group.problem or problem
            yield Problem(printable(group.key), problem) if problem else _made(group, self.source)
        else:
            yield twice if before & there else Problem(twice.key, _APART)
        self._seen[group.key] = self._alike.setdefault(there | (before or there), there | (before or there))
        for _ in range(max(group.again.values(), default=0)):
            yield twice
        if group.image is not None:
            reason = self._why_shadowed(group.key, group.image[0])
            yield from (Problem(printable(name), reason) for name in group.shadowed)

    def close_at_damage(self) -> Iterator[Sample | Problem]:
        """The same where the next member cannot be read: a sample is whole if it has all that those before it have."""
        whole = self._group is None or (self.found > 0 and self._kinds <= self._group.kinds)
        yield from self.close("" if whole else "the shard is damaged after this sample, which may be incomplete")

    def _why_shadowed(self, key: str, image: str) -> str:
        ends, apart = ("first dot (WebDataset's rule)", "set key: last-dot on the source")
        if self.source.key == "last-dot":
            ends, apart = ("last dot", "rename it")
        return (
            f"a second image of {printable(key)}, since a key ends at the {ends}; if it is an image of its own, "
            f"{apart}; if it belongs to the first, set image: {printable(image)} on the source"
        )


def split(name: str, source: SourceConfig) -> tuple[str, str]:
    """Key and suffix of a member."""
    folder, _, base = name.rpartition("/")
    stem, dot, suffix = base.rpartition(".") if source.key == "last-dot" else base.partition(".")
    stem, suffix = (stem, suffix) if dot else (base, "")
    return f"{folder}/{stem}".removeprefix("./").lstrip("/"), suffix.lower()


def is_image(suffix: str) -> bool:
    """Tell whether files with a suffix, such as ``jpg`` or ``seg.png``, are images."""
    return _kind(suffix) in SUFFIXES


def _kind(suffix: str) -> str:
    return suffix.rpartition(".")[2].lower()


def _made(group: _Group, source: SourceConfig) -> Sample | Problem:
    key, parts = group.key, group.parts
    image = group.image[0] if group.image is not None else (source.image or "").lower()
    if image not in parts or not image:
        wanted = "image" if source.image is None else f"image {source.image}"
        return Problem(key, f"no {wanted}; it holds {', '.join(map(printable, parts))}")
    try:
        label = int(parts["cls"]) if "cls" in parts else None
    except ValueError:
        return Problem(key, f"its class {parts['cls'][:20]!r} is no number")
    others = {suffix: content for suffix, content in parts.items() if suffix not in (image, "cls")}
    return Sample(key, parts[image], label, others)
