"""A finished run as a statement to hand over, and a statement checked against a run; both from the folder alone.

A file is bound by the SHA-256 of its bytes. A folder with a file for each shard is bound as a whole (`folder_digest`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import safetensors
import yaml

from mi_core.checks import ConfigError
from mi_core.report.card import card
from mi_core.report.contents import fault_of
from mi_core.report.runs import plain
from mi_core.report.statement import (
    ANSWERS,
    CODE,
    DEFENSE,
    RECORD,
    WEIGHTS,
    Part,
    differences,
    of_report,
    read_statement,
    rule,
    statement,
    subjects,
    verdict_by_rule,
)
from pipelines.config.encoders import EndpointConfig, LoadedConfig
from pipelines.data.recount import recounted
from pipelines.data.splits import Splits
from pipelines.data.sums import DROPPED
from pipelines.encoders import stored
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.files.ways import follow, way
from pipelines.report.verdict import recognition_fault
from pipelines.run.folder import RunFolder
from pipelines.run.registration import REGISTRATIONS, plan_digest

STATEMENT = "statement.json"
REPORT, CONFIG, MANIFEST, OF_ENCODER = "report.json", "config.yaml", "manifest.json", "encoder.json"
HOLDS, FAILS, OPEN, NOTE = "holds", "FAILS", "open", "note"
_PIECE = 2**20  # bytes read at once
_MOST = 6  # fields that one line names
_LONGEST = 500  # characters of a line
_WRONG = (
    *(ArithmeticError, AttributeError, LookupError, OSError, RecursionError, RuntimeError, TypeError, ValueError),
    *(pa.ArrowException, safetensors.SafetensorError, yaml.YAMLError),
)


@dataclass(frozen=True)
class Check:
    """One line of a check.

    Args:
        about: what was checked.
        outcome: `HOLDS`; `FAILS`; `OPEN`: it cannot be checked offline; `NOTE`: a remark.
        text: the finding, with file and field.
    """

    about: str
    outcome: str
    text: str


def write(run: str, out: str | None = None, card_out: str | None = None) -> tuple[str, ...]:
    """Write the statement of a finished run and, where wanted, a block for a model card; returns where they stand.

    Args:
        run: its folder.
        out: the statement; None: statement.json in the folder.
        card_out: the block, in Markdown; None: none.

    Raises:
        UserError: as `state`, or a name for output is a folder.
    """
    places = [f"{storage.absolute(run)}/{STATEMENT}" if out is None else storage.target(out)]
    places += [] if card_out is None else [storage.target(card_out)]
    for place in places:
        if not storage.is_uri(place) and storage.is_folder(place):
            raise UserError(f"{place} is a folder; give the name of a file")
    content = state(run)
    storage.write_json(places[0], content)
    if card_out is not None:
        report = storage.read_json(f"{storage.absolute(run)}/{REPORT}")
        storage.write_atomic(places[1], card(report, content, file_digest(places[0])).encode())
    return tuple(places)


def state(run: str) -> Part:
    """The statement of a finished run: the same for the same run.

    Raises:
        UserError: there is no run or no report; the report is of another config, or has no primary attack; or the
            folder does not hold what the report is of.
    """
    folder = _folder(run)
    try:
        made = _made(run, folder)
    except UserError:
        raise
    except ConfigError as error:
        raise UserError(f"{run}: {error}") from error
    except _WRONG as error:
        raise UserError(f"{run} is damaged: {_said(error)}") from error
    predicate = made["predicate"]
    own = (_of_encoders(made, folder), _of_config(predicate, folder), _of_verdict(predicate, folder))
    for check in (*chain(*own), *_of_registrations(predicate, folder)):
        if check.outcome == FAILS:
            raise UserError(f"{run} does not hold what its report is of: {check.about}: {check.text}")
    return made


def _made(run: str, folder: RunFolder) -> Part:
    report = _finished(run, folder)
    seeds = [entry["seed"] for entry in of_report(report)["primary"]["per_seed"]]
    return statement(
        report,
        registrations=folder.manifest.get(REGISTRATIONS, []),
        roles=[_roles(folder, seed) for seed in seeds],
        encoders=[_encoder(folder, seed, name) for seed in seeds for name in report["encoders"]],
        config=_file(folder, f"{folder.path}/{CONFIG}"),
        report_file={**_file(folder, f"{folder.path}/{REPORT}"), "parts": _parts(report)},
    )


def verify(file: str, run: str) -> list[Check]:
    """Check a statement against a run, offline: every digest anew, and the verdict by the rule.

    Args:
        file: the statement, or an envelope around it.
        run: folder of the run.

    Raises:
        UserError: the file is no statement, or the folder holds no run or another one.
    """
    try:
        stated, signatures = read_statement(storage.read_json(file))
    except FileNotFoundError as error:
        raise UserError(f"{file} is no file; give the one that encoder-audit statement wrote") from error
    except ConfigError as error:
        raise UserError(f"{file} {error}") from error
    except (OSError, RecursionError, ValueError) as error:
        raise UserError(f"{file} is no statement of encoder-audit: it cannot be read as JSON") from error
    folder = _folder(run)
    if _is_other(stated["predicate"], folder):
        raise UserError(f"{run} is not the run of {file}: its report, its config and all its encoders are others")
    return [*_checks(stated, folder), _signed(signatures)]


def _folder(run: str) -> RunFolder:
    folder = RunFolder(storage.absolute(run))
    if not any(storage.exists(f"{folder.path}/{name}") for name in (MANIFEST, CONFIG, REPORT)):
        raise UserError(f"{run} holds no run; give the --out of one")
    return folder


def _finished(run: str, folder: RunFolder) -> Part:
    """The report of a run whose config is the one that the folder holds."""
    try:
        report: Part = storage.read_json(f"{folder.path}/{REPORT}")
    except FileNotFoundError as error:
        raise UserError(f"{run} holds no {REPORT}; write it with encoder-audit report {run}") from error
    except ValueError as error:
        raise UserError(f"{run}/{REPORT} is no JSON; write it anew with encoder-audit report {run}") from error
    if fault := fault_of(report):
        raise UserError(f"{run}/{REPORT} {fault}; write it anew with encoder-audit report {run}")
    if report["config_sha256"] != folder.manifest.get("config_sha256"):
        raise UserError(f"{run}/{REPORT} is of another config than {CONFIG}; write it anew: encoder-audit report {run}")
    return report


def file_digest(path: str) -> str:
    """SHA-256 of a file's bytes: 64 hex digits. Raises OSError as `storage.open_input`."""
    found = hashlib.sha256()
    with storage.open_input(path, unpacked=False) as stream:
        while piece := stream.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


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


def _file(folder: RunFolder, path: str) -> Part:
    return {"name": way(folder.path, path), "digest": {"sha256": file_digest(path)}}


def _parts(report: Mapping[str, Any]) -> dict[str, str]:
    return {name: digest(part) for name, part in report.items()}


def _roles(folder: RunFolder, seed: int) -> Part:
    """The roles of one seed, counted anew, and the files and folders that tell them."""
    splits = Splits.load(folder.seed(seed).path)
    files, folders = _telling(folder, seed, splits)
    return {
        "seed": seed,
        "roles": recounted(splits),
        "files": [_file(folder, path) for path in files],
        "folders": [{"name": way(folder.path, path), "digest": {"dirHash": folder_digest(path)}} for path in folders],
    }


def _telling(folder: RunFolder, seed: int, splits: Splits) -> tuple[list[str], list[str]]:
    """The files that tell the roles of one seed, and the folders that hold a file for each shard."""
    places = dict.fromkeys((folder.seed(seed).path, splits.folder))  # a seed may have another one's splits
    files = [path for place in places for path in storage.list_files(f"{place}/splits", recursive=False)]
    folders = (f"{splits.folder}/splits/{DROPPED}", splits.scan_folder)
    return files, [path for path in folders if path and storage.exists(path)]


def _encoder(folder: RunFolder, seed: int, name: str) -> Part:
    one = stored.describe(folder.seed(seed), name)
    parts: dict[str, Part] = {OF_ENCODER: {"part": RECORD}}
    parts |= {file: {"part": DEFENSE if file == stored.DEFENSE else ANSWERS} for file in one.files}
    weights = {stored.weights_path("", epoch)[1:]: epoch for epoch in one.epochs}
    parts |= {file: {"part": WEIGHTS, "epoch": weights[file]} for file in one.files if file in weights}
    return {
        "name": name,
        "seed": seed,
        "kind": _kind(one),
        "fingerprints": dict(one.record.fingerprints),
        "files": [
            {**_file(folder, f"{one.folder}/{file}"), "annotations": annotations} for file, annotations in parts.items()
        ],
    }


def _kind(encoder: stored.StoredEncoder) -> str:
    settings = encoder.record.settings
    if isinstance(settings, EndpointConfig):
        return ANSWERS
    return CODE if isinstance(settings, LoadedConfig) and settings.load.startswith("python:") else WEIGHTS


def _checks(stated: Part, folder: RunFolder) -> list[Check]:
    """All checks that a folder allows, of one thing after the other."""
    predicate = stated["predicate"]
    return [
        *_of_encoders(stated, folder),
        *_of_roles(predicate, folder),
        *_of_registrations(predicate, folder),
        *_of_config(predicate, folder),
        *_of_report(predicate, folder),
        *_of_verdict(predicate, folder),
    ]


def _lines(about: str, faults: Iterable[str], fine: str) -> list[Check]:
    """One line for each fault, or one that all is well; names in it may be of unknown origin."""
    found = [(FAILS, fault) for fault in faults] or [(HOLDS, fine)]
    return [Check(about, outcome, plain(text, _LONGEST)) for outcome, text in found]


def _faults_of_files(files: Iterable[Part], folder: RunFolder) -> list[str]:
    return [fault for file in files if (fault := _fault_of_file(file, folder))]


def _fault_of_file(file: Mapping[str, Any], folder: RunFolder) -> str:
    """What is wrong with a file or folder of a run; empty: its digest is the stated one."""
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
    return "" if found == wanted else f"{name} has other bytes than stated"


def _of_encoders(stated: Part, folder: RunFolder) -> list[Check]:
    encoders, primary = stated["predicate"]["encoders"], stated["predicate"]["primary"]
    files = [file for encoder in encoders for file in encoder["files"]]
    faults = _faults_of_files(files, folder) or _guarded(
        lambda: [fault for encoder in encoders for fault in _faults_of_encoder(encoder, folder)], OF_ENCODER
    )
    faults += _guarded(lambda: _faults_of_subjects(stated["subject"], encoders, primary), "subject")
    fine = f"{len(files)} files of {len(encoders)} encoders are as stated, and so are their fingerprints"
    return [*_lines("weights", faults, fine), *(_open(encoder) for encoder in encoders if encoder["kind"] != WEIGHTS)]


def _open(encoder: Mapping[str, Any]) -> Check:
    what = (
        "a function, whose code and weights are not in the run"
        if encoder["kind"] == CODE
        else "behind an API, of which the run holds a few answers and no weights"
    )
    name = plain(encoder["name"])
    return Check("weights", OPEN, f"{name}, seed {encoder['seed']}, cannot be checked offline: it is {what}")


def _guarded(check: Callable[[], list[str]], place: str) -> list[str]:
    """The faults that a check finds; what cannot be read is one."""
    try:
        return check()
    except _WRONG as error:
        return [f"{place} cannot be read ({_said(error)})"]


def _said(error: BaseException) -> str:
    """An error in a line."""
    return plain(f"{type(error).__name__}: {error}")


def _faults_of_encoder(encoder: Mapping[str, Any], folder: RunFolder) -> list[str]:
    """The faults of an encoder whose files are as stated."""
    one, name = stored.describe(folder.seed(encoder["seed"]), encoder["name"]), encoder["name"]
    place = f"seed-{encoder['seed']}/encoders/{name}"
    expected = {OF_ENCODER, *one.files}
    faults = [] if encoder["kind"] == _kind(one) else [f"the statement's kind of {place} is not that of the run"]
    if {file["name"] for file in encoder["files"]} != {f"{place}/{file}" for file in expected}:
        faults.append(f"the statement's files of {place} are not those of the run")
    if encoder["fingerprints"] != one.record.fingerprints:
        faults.append(f"{place}/{OF_ENCODER} has other fingerprints than stated")
    measured = {str(epoch): one.measured(epoch) for epoch in one.epochs}
    return faults + [
        f"{place}, epoch {epoch}: its weights do not have the fingerprint in {OF_ENCODER}"
        for epoch, found in measured.items()
        if found not in (None, one.record.fingerprints[epoch])
    ]


def _faults_of_subjects(given: list[Part], encoders: list[Part], primary: Mapping[str, Any]) -> list[str]:
    audited = [(entry["seed"], primary["target"]) for entry in primary["per_seed"]]
    known = [(encoder["seed"], encoder["name"]) for encoder in encoders]
    faults = [
        f"the statement tells no files of {name}, seed {seed}" for seed, name in audited if (seed, name) not in known
    ]
    if given != subjects(encoders, primary):
        faults.append("the statement's subject is not the encoder that its predicate names as audited")
    return faults


def _of_roles(predicate: Part, folder: RunFolder) -> list[Check]:
    files = [file for entry in predicate["roles"] for file in (*entry["files"], *entry["folders"])]
    faults = _faults_of_files({file["name"]: file for file in files}.values(), folder)
    if not faults:
        faults = [fault for entry in predicate["roles"] for fault in _faults_of_roles(entry, folder)]
    count = sum(len(entry["roles"]) for entry in predicate["roles"])
    fine = f"{count} roles have the stated images, counted anew from {len(files)} files and folders"
    return _lines("roles", faults, fine)


def _faults_of_roles(entry: Part, folder: RunFolder) -> list[str]:
    """The faults of one seed's roles, whose files are as stated."""
    seed, place = entry["seed"], f"seed-{entry['seed']}/splits"

    def faults() -> list[str]:
        splits = Splits.load(folder.seed(seed).path)
        changed = differences(entry["roles"], recounted(splits))
        other = [f"{place}: roles other than stated: {_some(changed)}"] if changed else []
        telling = [[way(folder.path, path) for path in some] for some in _telling(folder, seed, splits)]
        same = telling == [[file["name"] for file in entry[kind]] for kind in ("files", "folders")]
        return other + ([] if same else [f"the statement's files of {place} are not those of the run"])

    return _guarded(faults, place)


def _of_registrations(predicate: Part, folder: RunFolder) -> list[Check]:
    given = predicate["registrations"]
    faults = _guarded(lambda: _changed_registrations(given, folder), MANIFEST)
    faults += [
        f"the plan registered {entry['registered']} does not have its sha256"
        for entry in given
        if entry["sha256"] != plan_digest(entry)
    ]
    binding = [entry for entry in given if _binds(entry, predicate)]
    if not binding:
        faults.append("no registered plan has this primary attack, its output and these roles")
    times = " and ".join(entry["registered"] for entry in binding)
    more = "" if len(given) == 1 else f"; it is one of {len(given)} plans that were registered"
    return _lines("registration", faults, f"the plan registered {times} has this primary attack and these roles{more}")


def _changed_registrations(given: list[Part], folder: RunFolder) -> list[str]:
    changed = differences(given, storage.read_json(f"{folder.path}/{MANIFEST}")[REGISTRATIONS], REGISTRATIONS)
    return [f"{MANIFEST}: other than stated: {_some(changed)}"] if changed else []


def _binds(entry: Mapping[str, Any], predicate: Part) -> bool:
    """Whether a registered plan is the one that the statement's verdict follows."""
    primary, plan = predicate["primary"], entry["primary_attack"]
    roles = {str(of_seed["seed"]): of_seed["roles"] for of_seed in predicate["roles"]}
    same = (plan["attack"], plan["target"], entry["output"]) == tuple(
        primary[name] for name in ("attack", "target", "output")
    )
    return bool(same and entry["roles"] == roles)


def _of_config(predicate: Part, folder: RunFolder) -> list[Check]:
    def values() -> list[str]:
        found = digest(yaml.safe_load(storage.read_bytes(f"{folder.path}/{CONFIG}")))
        same = found == predicate["run"]["config_sha256"]
        return [] if same else [f"{CONFIG} is not the config that the stated report is of"]

    fault = _fault_of_file(predicate["config"] | {"name": CONFIG}, folder)
    return _lines("config", [fault] if fault else _guarded(values, CONFIG), f"{CONFIG} is as stated")


def _of_report(predicate: Part, folder: RunFolder) -> list[Check]:
    given = predicate["report"]
    fault = _fault_of_file(given | {"name": REPORT}, folder)

    def changed() -> list[str]:
        report = storage.read_json(f"{folder.path}/{REPORT}")
        parts, told = differences(given["parts"], _parts(report)), of_report(report)
        fields = [name for part in told for name in differences(predicate[part], told[part], part)]
        if fault:
            return [f"{fault}; parts that differ: {_some(parts)}" + (f" ({_some(fields)})" if fields else "")]
        return [f"the statement's {_some(fields + parts)} is not as {REPORT} has it"] if fields or parts else []

    faults = _guarded(changed, REPORT)
    return _lines("report", faults, f"{REPORT} is as stated, in all of its {len(given['parts'])} parts")


def _some(names: list[str]) -> str:
    """A few names in words."""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more or "none"


def _of_verdict(predicate: Part, folder: RunFolder) -> list[Check]:
    given, said = predicate["verdict"], predicate["verdict"]["verdict"]
    faults = [] if predicate["rule"] == rule() else ["the statement's rule is not the rule of this version"]
    by_rule = verdict_by_rule(given)
    if by_rule != said:
        faults.append(f"the statement says {said}, but by the rule its numbers give {by_rule}")

    def recognition() -> list[str]:
        target, seeds = predicate["primary"]["target"], [entry["seed"] for entry in predicate["roles"]]
        broken = any(recognition_fault(folder.seed(seed), target) for seed in seeds)
        same = broken == ("warning" in given)
        return [] if same else [f"verdict.warning is not what {OF_ENCODER} says of recognising images"]

    return _lines("verdict", faults + _guarded(recognition, OF_ENCODER), f"{said} follows from the numbers by the rule")


def _signed(signatures: int | None) -> Check:
    if signatures is None:
        text = "none is in this file: what holds shows that nothing was changed since, not who stated it"
    else:
        text = (
            f"{signatures} in the envelope, not checked here; the tool that made them checks who stated it, "
            "and what holds shows that nothing was changed since"
        )
    return Check("signature", NOTE, text)


def _is_other(predicate: Part, folder: RunFolder) -> bool:
    """Whether a folder holds another run: no file of the stated one is there but, perhaps, its roles."""
    files = [file for encoder in predicate["encoders"] for file in encoder["files"]]
    return all(_fault_of_file(file, folder) for file in (predicate["report"], predicate["config"], *files))
