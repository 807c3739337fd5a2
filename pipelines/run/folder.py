"""The run folder: the results of a run, their inputs and how long they took.

RUN/config.yaml and RUN/manifest.json describe the run; RUN/seed-K/ holds splits, encoders, features and
attacks of one seed. A marker of finished work counts only if it carries the hash of the same inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from mi_core.provenance import now, versions
from mi_core.querying.precision import precision_on
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.files.lock import lock

MANIFEST = "manifest.json"
PROGRESS = "progress.json"
FINISHED = "finished.json"
STAGES = ("data", "pretrain", "extract", "attack", "tune", "report")
# Which stage a section of the config first matters to; the others (name, resources) may change freely.
SECTION_STAGE = {
    **dict.fromkeys(("seeds", "data"), "data"),
    "encoders": "pretrain",
    "queries": "extract",
    **dict.fromkeys(("attacks", "checkpoints", "utility", "validity", "dp_audit"), "attack"),
    "tune": "tune",
}
GROWING = ("seeds", "attacks")  # sections to which entries may be added after a run
FREE = (  # fields that change no result
    "data.max_rejected",
    "queries.compile",
    "tune.trials",
    "tune.at_once",
    *(
        f"encoders.*.endpoint.{name}"
        for name in (
            "batch", "concurrency", "timeout_s", "retries", "cache", "api_key_env", "api_key_header",
            "requests_per_second", "price_per_request", "price_per_image", "max_spend", "query_env*",
        )
    ),
)  # fmt: skip
STAGE_FOLDERS = {
    "data": ("splits",),
    "pretrain": ("encoders",),
    "attack": ("attacks", "attribute-inference", "utility", "validity"),
}
FEATURES = "features"  # stand beside the seeds, by the keys of queries, for all seeds, points and trials
SCAN = "scan"  # what was read of every shard stands beside the seeds, which share it
OF_RUN = (
    MANIFEST,
    "registration.jsonl",
    "plan.json",
    PROGRESS,
    FINISHED,
    ".ray.json",
    SCAN,
    FEATURES,
    "seed-*",
    "sweep",
    "tune",
    "spend",
    "answers",
    "figures",
    "report.*",
    "results.*",
)
"""Patterns of what a run leaves in its folder, beside config.yaml."""
_GONE = "was deleted while the run was going on; leave it where it is and run the same command again, from the start"
TUNED = "tune"  # what a search has found stands beside the seeds: a trial is measured on all of them


@dataclass(frozen=True)
class SeedFolder:
    """The part of a run folder that one seed fills.

    Args:
        path: of the folder.
        seed: of its plan.
        root: of the run folder; of a point of a sweep or a trial, that of the run that it belongs to. Empty: the
            folder that holds this one.
    """

    path: str
    seed: int
    root: str = ""

    @property
    def store(self) -> str:
        """The folder of all features, which a run, the points of its sweeps and its trials share."""
        return f"{self._whole}/{FEATURES}"

    @property
    def run(self) -> str:
        """The run, point or trial that it belongs to, from the run folder; empty: the run itself."""
        return self.path.rpartition("/")[0].removeprefix(self._whole).lstrip("/")

    @property
    def trial(self) -> str:
        """The trial that it belongs to, as `run`; empty: it is of none."""
        return self.run if self.run.startswith(f"{TUNED}/") else ""

    @property
    def _whole(self) -> str:
        return self.root or self.path.rpartition("/")[0]

    def encoder(self, name: str) -> str:
        """Folder of a trained encoder."""
        return f"{self.path}/encoders/{name}"


@dataclass(frozen=True)
class RunFolder:
    """A run folder, local or on an object store.

    Args:
        path: of the folder.
        root: of the run that a point of a sweep or a trial belongs to; empty: it is a run of its own.
    """

    path: str
    root: str = ""

    def seed(self, seed: int) -> SeedFolder:
        """The part of one seed."""
        return SeedFolder(f"{self.path}/seed-{seed}", seed, self.root or self.path)

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest as it stands; empty for a new run."""
        return dict(storage.read_json_or(f"{self.path}/{MANIFEST}", {}))

    def update_manifest(self, **entries: Any) -> None:
        """Replace some top-level entries of the manifest."""
        storage.write_json(f"{self.path}/{MANIFEST}", self.manifest | entries)

    def append_manifest(self, key: str, entry: Mapping[str, Any]) -> None:
        """Append one record to a list of the manifest (reruns, registrations)."""
        self.update_manifest(**{key: [*self.manifest.get(key, []), dict(entry)]})

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the wall seconds of the block to the stage's entry in the manifest, also when it fails."""
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = dict(self.manifest.get("seconds", {}))
            seconds[stage] = round(seconds.get(stage, 0.0) + time.perf_counter() - started, 3)
            self.update_manifest(seconds=seconds)

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the folder for this process, and remove the leftovers of killed writes.

        Raises:
            UserError: another process holds it, or it was deleted meanwhile; files written there since are removed.
        """
        with lock(self.path) as deleted:
            storage.remove_unfinished(self.path)
            try:
                yield
            except Exception as error:
                if not self._gone(deleted):
                    raise
                raise UserError(f"{self.path} {_GONE}") from error
            if self._gone(deleted):
                raise UserError(f"{self.path} {_GONE}")

    def _gone(self, deleted: Callable[[], bool]) -> bool:
        """Tell whether somebody deleted the folder; then the files that the run wrote since are removed too."""
        if not deleted() or storage.exists(f"{self.path}/config.yaml"):
            return False
        for made in OF_RUN:
            for piece in Path(self.path).glob(made):
                storage.remove(str(piece))
        with suppress(OSError):  # it is not there, or holds what is not ours
            Path(self.path).rmdir()
        return True

    def open(self, config: dict[str, Any], *, command: str, force: str | None = None) -> str:
        """Begin or continue a run with this resolved config; returns a line on the changes since the last start.

        Args:
            config: the whole config as plain values.
            command: the command line, for the list of runs.
            force: a stage to redo, with all that follow.

        Raises:
            UserError: the folder holds a run of another config whose changed keys matter to finished work and
                ``force`` does not cover them, or it holds files that are not a run.
        """
        before_path, difference, dropped = f"{self.path}/config.yaml", "", set[int]()
        if storage.exists(before_path):
            before = yaml.safe_load(storage.read_bytes(before_path))
            if storage.is_folder(f"{self.seed(before['seeds'][0]).path}/{FEATURES}"):
                raise UserError(f"{self.path} was made by a version that kept features by seed; choose another --out")
            self._check_changes(before, config, force)
            difference, dropped = _difference(before, config), {*before["seeds"]} - {*config["seeds"]}
        elif storage.list_files(self.path):
            raise UserError(f"{self.path} is not empty and holds no run; choose another --out")
        if force is not None:
            self._clear(force, config | {"seeds": [*config["seeds"], *dropped]})  # one that is dropped may come back
        self.settle(config)
        self.update_manifest(created=self.manifest.get("created", now()), versions=versions(), name=config["name"])
        self.append_manifest("runs", {"started": now(), "command": command, "forced": force or ""})
        return difference

    def settle(self, config: dict[str, Any]) -> None:
        """Write down a config in which something was settled since `open`."""
        storage.write_atomic(f"{self.path}/config.yaml", yaml.safe_dump(config, sort_keys=False).encode())
        self.update_manifest(config_sha256=digest(config))

    def _check_changes(self, before: dict[str, Any], config: dict[str, Any], force: str | None) -> None:
        kept = STAGES if force is None else STAGES[: STAGES.index(force)]
        finished = {stage for stage in kept if any(map(storage.list_files, self._made(stage, before)))}
        old, new = _settled(before), _settled(config)
        grown = {section for section in GROWING if _only_added(old.get(section), new.get(section))}
        changes = _changes(before, _without_new_defenses(before, config))
        changed = {
            key: stage for key, stage in changes.items() if stage in finished and key.partition(".")[0] not in grown
        }
        if changed:
            moved = "attacks" in changed and config.get("defenses") and _holds(new.get("attacks"), old.get("attacks"))
            why = ": every defense repeats all attacks behind them, so results would change their numbers" * bool(moved)
            raise UserError(
                f"{self.path} holds a run of another config; changed: {', '.join(list(changed)[:6])}{why}. "
                f"Choose another --out, or redo from there with --force {min(changed.values(), key=STAGES.index)}"
            )

    def _made(self, stage: str, config: dict[str, Any]) -> Iterator[str]:
        """Folders that a stage and all later ones fill."""
        for later in STAGES[STAGES.index(stage) :]:
            for seed in config["seeds"]:
                yield from (f"{self.seed(seed).path}/{folder}" for folder in STAGE_FOLDERS.get(later, ()))
            if later == "extract":
                yield f"{self.root or self.path}/{FEATURES}"
            if later == "tune":
                yield f"{self.path}/{TUNED}"

    def _clear(self, force: str, config: dict[str, Any]) -> None:
        for place in self._made(force, config):
            storage.remove(place)
        if force == STAGES[0]:
            storage.remove(f"{self.path}/{SCAN}")
        storage.remove(f"{self.path}/report.json")
        if STAGES.index(force) <= STAGES.index("extract"):
            self.update_manifest(extraction=[])


def _changes(before: dict[str, Any], config: dict[str, Any]) -> dict[str, str]:
    """Changed fields that matter to results, each with the first stage that it matters to."""
    before, config = _settled(before), _settled(config)
    return {
        key: stage
        for section, stage in SECTION_STAGE.items()
        for key in changed_keys(before.get(section), config.get(section), section)
        if not any(fnmatchcase(key, free) for free in FREE)
    }


def _settled(config: dict[str, Any]) -> dict[str, Any]:
    """A plain config with the precision that its device means."""
    settled = dict(config)
    if isinstance(queries := config.get("queries"), dict) and "precision" in queries:
        device = "cuda" if (config.get("resources") or {}).get("gpus_per_actor") else "cpu"
        settled["queries"] = queries | {"precision": precision_on(device, queries["precision"])}
    return settled


def _difference(before: dict[str, Any], config: dict[str, Any]) -> str:
    """Changes since the last start in words, with the first stage that they matter to; empty: none matters."""
    changes = _changes(before, config)
    if not changes:
        return ""
    names = ", ".join(list(changes)[:6]) + (f" and {len(changes) - 6} more" if len(changes) > 6 else "")
    return f"changed since the last start: {names}; {min(changes.values(), key=STAGES.index)} and what follows use it"


def changed_keys(before: Any, after: Any, prefix: str) -> list[str]:
    """Dotted names of all leaves that differ between two plain configs."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = list(dict.fromkeys([*before, *after]))
        return [name for key in keys for name in changed_keys(before.get(key), after.get(key), f"{prefix}.{key}")]
    return [] if before == after else [prefix]


def _without_new_defenses(before: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The config without defended encoders that are new since the last start: these change no result."""
    known, encoders = before.get("encoders", {}), config.get("encoders", {})
    kept = {name: one for name, one in encoders.items() if name in known or "defends" not in one}
    return config | {"encoders": kept} if encoders else config


def _holds(after: Any, before: Any) -> bool:
    """Tell whether a list has all entries of another, in their order, and perhaps some between them."""
    coming: Iterator[Any] = iter(after if isinstance(after, list) else ())
    return isinstance(before, list) and all(any(one == other for other in coming) for one in before)


def _only_added(before: Any, after: Any) -> bool:
    """Tell whether a list only grew at its end."""
    return isinstance(before, list) and isinstance(after, list) and after[: len(before)] == before
