"""The whole of report.json; memorisation of images, and promises of differential privacy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mi_core.records import Estimate
from mi_core.report.model import attacks as attack_parts
from mi_core.report.model.as_json import part_from_json
from mi_core.report.model.defenses import DefenseRow, Tuning
from mi_core.report.model.judgement import Bound, Evidence, VerdictPart


@dataclass(frozen=True, kw_only=True)
class MemorisedSample:
    """The memorisation of one sample."""

    id: str
    value: float
    ci95: tuple[float, float]
    q_value: float


@dataclass(frozen=True, kw_only=True)
class Memorisation:
    """Memorisation of the audited samples by shadows, by one attack on one output in one seed."""

    attack: str
    shadow: str
    settings: str | None = None
    output: str
    epoch: int
    seed: int
    pairs: int
    mean: Estimate
    memorised: int
    fdr: float
    top: tuple[MemorisedSample, ...]
    file: str


@dataclass(frozen=True, kw_only=True)
class Guessed:
    """A number of guesses that was tried, and how many were right."""

    guesses: int
    correct: int


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A promise about an encoder, and who makes it."""

    epsilon: float
    delta: float
    by: str
    replaced: float | None = None
    gamma: float | None = None


@dataclass(frozen=True, kw_only=True)
class DpAudit:
    """The promise of one encoder against guessed canaries, all seeds together."""

    target: str
    attack: str
    output: str
    epoch: int
    seeds: tuple[int, ...]
    kind: str
    canaries: int
    inside: int
    tried: tuple[Guessed, ...]
    guesses: int
    correct: int
    confidence: float
    family: str
    delta: float
    epsilon: float
    most: float
    mu: float | None = None
    promised: Promise | None = None
    p_value: float | None = None
    any_time_p_value: float | None = None
    verdict: str


SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class RolePart:
    """The samples of a role."""

    n: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A treatment of images of a source on the way from file to pixels, and their number."""

    source: str
    remark: str
    n: int


@dataclass(frozen=True, kw_only=True)
class SeedData:
    """The samples of one seed."""

    seed: int
    roles: Mapping[str, RolePart]
    duplicates_removed: int | None = None
    near_duplicates_removed: int | None = None


@dataclass(frozen=True, kw_only=True)
class ShardsRead:
    """How many shards of a source were read, of how many."""

    read: int
    of: int


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """The samples of the first seed, and where they are from."""

    source: str
    roles: Mapping[str, RolePart]
    duplicates_removed: int
    near_duplicates_removed: int | None = None
    remarks: tuple[Remark, ...] = ()
    per_seed: tuple[SeedData, ...] = ()
    shards: Mapping[str, ShardsRead] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NonceOrigin:
    """The nonce that makes the views unforeseeable beside the pixels, and who drew it."""

    origin: str = field(metadata={"key": "from"})
    value: str | None = None


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A registration written down before the target was queried, and how often somebody looked since.

    ``note``: what an audit in Python recorded of that, and what it did not.
    """

    nonce: NonceOrigin
    time: str | None = None
    sha256: str | None = None
    reports: int | None = None
    attacks: int | None = None
    after_looking: bool | None = None
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """How fast encoders were queried."""

    images_per_second: float | None = None
    views_per_second: float | None = None
    encoder_fraction: float | None = None
    precision: str | None = None


@dataclass(frozen=True, kw_only=True)
class QueryEntry:
    """Queries sent to one encoder about the samples of one role."""

    encoder: str
    role: str
    epoch: int | None = None
    seed: int | None = None
    images: int
    queries: int


@dataclass(frozen=True, kw_only=True)
class QueriesPart:
    """Every query sent to an encoder, over all seeds."""

    total: int
    budget: int | None = None
    entries: tuple[QueryEntry, ...]


@dataclass(frozen=True, kw_only=True)
class RejectedSample:
    """A sample, or a shard, that was left out, and why."""

    source: str
    shard: str
    key: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RejectedTotal:
    """Samples that were left out, those in damaged shards included."""

    samples: int
    shards: int
    estimated: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of report.json."""

    schema_version: int
    name: str
    created: str
    config_sha256: str
    config: Mapping[str, Any] = field(default_factory=dict)
    membership: str | None = None
    versions: Mapping[str, str]
    command: str | None = None
    data: DataPart
    encoders: Mapping[str, attack_parts.EncoderPart]
    attacks: tuple[attack_parts.AttackResult, ...]
    not_applicable: tuple[attack_parts.NotApplicable, ...] = ()
    pooled: tuple[attack_parts.PooledRow, ...] = ()
    attribute_inference: tuple[attack_parts.InferenceRow, ...] = ()
    methods: Mapping[str, attack_parts.MethodPart] = field(default_factory=dict)
    registration: Registration | None = None
    validity: VerdictPart | None = None
    bounds: tuple[Bound, ...] = ()
    evidence: Evidence | None = None
    classes: tuple[attack_parts.ClassRow, ...] = ()
    memorisation: tuple[Memorisation, ...] = ()
    dp_audit: tuple[DpAudit, ...] = ()
    throughput: Throughput | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    queries: QueriesPart | None = None
    rejected: tuple[RejectedSample, ...] = ()
    rejected_count: int | None = None
    rejected_total: RejectedTotal | None = None
    caveats: tuple[str, ...] = ()
    not_tested: tuple[str, ...] = ()
    not_applying: tuple[str, ...] = ()
    defenses: tuple[DefenseRow, ...] = ()
    tuning: Tuning | None = None
    sweeps: tuple[attack_parts.Sweep, ...] = ()

    @property
    def judged(self) -> VerdictPart:
        """The verdict; undecided where no attack applies that it could rest on."""
        return self.validity or VerdictPart(verdict="undecided")


def report_from_json(entry: Any) -> Report:
    """The report in the content of a report.json.

    Raises:
        TypeError, KeyError, ValueError: as `part_from_json`; it is not as this version writes it.
    """
    return part_from_json(Report, entry)
