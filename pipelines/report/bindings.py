"""The statement of a run, made of its folder, and the digests that it binds: of roles, encoders and single files.

A file is bound by the SHA-256 of its bytes. A folder with a file for each shard is bound as a whole (`folder_digest`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from mi_core.checks import ConfigError
from mi_core.report.contents import fault_of
from mi_core.report.model.report import report_from_json
from mi_core.report.statement import ANSWERS, CODE, DEFENSE, RECORD, WEIGHTS, Part, of_report, parsed, statement
from pipelines.config.sections.encoders import EndpointConfig, LoadedConfig
from pipelines.data.draw.parts import recounted
from pipelines.data.draw.splits import Splits
from pipelines.data.draw.sums import DROPPED
from pipelines.encoders import stored
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.damage import in_a_line, reading
from pipelines.files.digest import digest
from pipelines.files.walk import follow, way
from pipelines.run.folder import MANIFEST, STAGE_FOLDERS, RunFolder
from pipelines.run.registration import lines_of

REPORT, CONFIG, OF_ENCODER = "report.json", "config.yaml", "encoder.json"
RESULTS = ("report.html", "results.json", "results.parquet", "figures")
_PIECE = 2**20  # bytes read at once


def run_folder(run: str) -> RunFolder:
    """The folder of a run, damaged or not. Raises UserError: it holds none of a run's own files."""
    folder = RunFolder(storage.absolute(run))
    if not any(storage.exists(f"{folder.path}/{name}") for name in (MANIFEST, CONFIG, REPORT)):
        raise UserError(f"{run} holds no run; give the --out of one")
    return folder


def file_digest(path: str) -> str:
    """SHA-256 of a file's bytes: 64 hex digits. Raises OSError as `storage.open_input`."""
    found = hashlib.sha256()
    with storage.open_input(path, unpacked=False) as stream:
        while piece := stream.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def read_through(path: str) -> None:
    """Read a table or an entry of JSON to its end: a digest binds a damaged file as well as a whole one.

    Raises:
        UserError: it is damaged.
    """
    with reading(path):
        if path.endswith(".parquet"):
            storage.read_table(path)
        elif path.endswith(".json"):
            storage.read_json(path)


def folder_digest(folder: str) -> str:
    """The ``dirHash`` of a folder, as in-toto names it: 64 hex digits. Hidden files are left out.

    It is the SHA-256 of one line for each file: its SHA-256, two blanks, its path in the folder. Lines are sorted by
    path.
    """
    paths = storage.list_files(folder)
    names = [path.removeprefix(f"{folder}/") for path in paths]
    lines = dict(zip(names, storage.at_once(file_digest, paths), strict=True))
    text = "".join(f"{lines[name]}  {name}\n" for name in sorted(names, key=str.encode))
    return hashlib.sha256(text.encode()).hexdigest()


def bind(folder: RunFolder, path: str) -> Part:
    """A file or folder by its name in the run and its digest. Raises UserError: it, or a file in it, is damaged."""
    is_folder = storage.is_folder(path)
    for file in storage.list_files(path) if is_folder else [path]:
        read_through(file)
    digests = {"dirHash": folder_digest(path)} if is_folder else {"sha256": file_digest(path)}
    return {"name": way(folder.path, path), "digest": digests}


def results_of(folder: RunFolder, seeds: Sequence[int]) -> list[Part]:
    """The pages and tables of all seeds, and the scores of each, where they are there."""
    paths = [f"{folder.path}/{name}" for name in RESULTS]
    paths += [f"{folder.seed(seed).path}/{name}" for seed in seeds for name in STAGE_FOLDERS["attack"]]
    return [bind(folder, path) for path in paths if storage.exists(path)]


def roles_of(folder: RunFolder, seed: int) -> Part:
    """The roles of one seed, counted anew, and the files and folders that tell them."""
    splits = Splits.load(folder.seed(seed).path)
    files, folders = telling(folder, seed, splits)
    return {
        "seed": seed,
        "roles": recounted(splits),
        "files": [bind(folder, path) for path in files],
        "folders": [bind(folder, path) for path in folders],
    }


def telling(folder: RunFolder, seed: int, splits: Splits) -> tuple[list[str], list[str]]:
    """The files that tell the roles of one seed, and the folders that hold a file for each shard."""
    places = dict.fromkeys((folder.seed(seed).path, splits.folder))  # a seed may have another one's splits
    files = [path for place in places for path in storage.list_files(f"{place}/splits", recursive=False)]
    folders = (f"{splits.folder}/splits/{DROPPED}", splits.scan_folder)
    return files, [path for path in folders if path and storage.exists(path)]


def encoder_of(folder: RunFolder, seed: int, name: str) -> Part:
    """An encoder of one seed: its kind, its fingerprints by epoch, its files, and its publisher's files."""
    one = stored.describe(folder.seed(seed), name)
    parts: dict[str, Part] = {OF_ENCODER: {"part": RECORD}}
    parts |= {file: {"part": DEFENSE if file == stored.DEFENSE else ANSWERS} for file in one.files}
    epochs = {stored.weights_path("", epoch)[1:]: epoch for epoch in one.epochs}
    parts |= {file: {"part": WEIGHTS, "epoch": epochs[file]} for file in one.files if file in epochs}
    return {
        "name": name,
        "seed": seed,
        "kind": kind_of(one),
        "fingerprints": dict(one.record.fingerprints),
        "published": dict(one.record.source.get("files", {})),
        "files": [
            {**bind(folder, f"{one.folder}/{file}"), "annotations": annotations} for file, annotations in parts.items()
        ],
    }


def kind_of(encoder: stored.StoredEncoder) -> str:
    """Tell whether the run holds an encoder's weights, answers of an API, or nothing of it: a function."""
    settings = encoder.record.settings
    if isinstance(settings, EndpointConfig):
        return ANSWERS
    return CODE if isinstance(settings, LoadedConfig) and settings.load.startswith("python:") else WEIGHTS


def fault_of_file(file: Mapping[str, Any], folder: RunFolder) -> str:
    """The fault of a file or folder of a run; empty: its digest is the stated one.

    A name may lead out of a point of a sweep, to the run around it. No content is told, only whether the digest fits.
    """
    name, ((algorithm, wanted), *_) = file["name"], file["digest"].items()
    if name.startswith("/") or "://" in name or "\0" in name:
        return f"{name} is no name of a file in a run"
    path = follow(folder.path, name)
    try:
        if not storage.exists(path):
            return f"{name} is missing"
        found = file_digest(path) if algorithm == "sha256" else folder_digest(path)
    except OSError as error:
        return f"{name} cannot be read ({type(error).__name__})"
    if found != wanted:
        return f"{name} has other bytes than stated"
    try:
        for place in [path] if algorithm == "sha256" else storage.list_files(path):
            read_through(place)
    except UserError as error:
        return str(error)
    return ""


def state(run: str, folder: RunFolder) -> Part:
    """The statement of a run, called ``run`` in messages. Raises UserError: the run is not finished, or damaged."""
    entry = _finished(run, folder)
    report = report_from_json(entry)
    try:
        seeds = [of_seed["seed"] for of_seed in of_report(report)["primary"]["per_seed"]]
    except ConfigError as error:
        raise UserError(f"{run}: {error}") from error
    return statement(
        report,
        registrations=lines_of(folder),
        roles=[roles_of(folder, seed) for seed in seeds],
        encoders=[encoder_of(folder, seed, name) for seed in seeds for name in report.encoders],
        config=bind(folder, f"{folder.path}/{CONFIG}"),
        report_file=bind(folder, f"{folder.path}/{REPORT}")
        | {"parts": {name: digest(part) for name, part in entry.items()}},
        results=results_of(folder, seeds),
    )


def _finished(run: str, folder: RunFolder) -> Part:
    """The report of a run whose config is the one that the folder holds."""
    try:
        report: Part = parsed(storage.read_bytes(f"{folder.path}/{REPORT}"))
    except FileNotFoundError as error:
        raise UserError(f"{run} holds no {REPORT}; write it with encoder-audit report {run}") from error
    except (RecursionError, ValueError) as error:
        why = f"{run}/{REPORT} is no JSON ({in_a_line(error)})"
        raise UserError(f"{why}; write it anew with encoder-audit report {run}") from error
    if fault := fault_of(report):
        raise UserError(f"{run}/{REPORT} {fault}; write it anew with encoder-audit report {run}")
    if report["config_sha256"] != folder.manifest.get("config_sha256"):
        raise UserError(f"{run}/{REPORT} is of another config than {CONFIG}; write it anew: encoder-audit report {run}")
    return report
