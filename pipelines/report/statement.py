"""A finished run as a statement to hand over, and a statement checked against the folder of its run, offline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import yaml

from mi_core.checks import ConfigError
from mi_core.registration import PLAN, ROLES, attempts, faults_of, file_of, is_after_looking
from mi_core.report import statement as layout
from mi_core.report.contents import plain
from mi_core.report.model.report import report_from_json
from mi_core.report.statement import Part
from pipelines.data.draw.parts import recounted
from pipelines.data.draw.splits import Splits
from pipelines.encoders import stored
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.damage import DAMAGE, in_a_line, reading
from pipelines.files.digest import digest
from pipelines.files.walk import follow, way
from pipelines.plan.load import load
from pipelines.plan.written import PLAN_FILE, faults_of_plan
from pipelines.report import bindings
from pipelines.report.bindings import CONFIG, OF_ENCODER, REPORT, fault_of_file, run_folder
from pipelines.report.finished import FinishedRun
from pipelines.report.verdict import verdict
from pipelines.run.folder import RunFolder
from pipelines.run.registration import FILE, lines_of

STATEMENT = "statement.json"
ORDER = ("weights", "roles", "registration", "config", "report", "results", "verdict", "coverage", "signature")
"""The subjects of the checks, in the order of the lines."""
HOLDS, FAILS, OPEN, NOTE = "holds", "FAILS", "open", "note"
NEAR = 1e-6  # share by which numbers that are computed anew may differ, on a machine with other libraries
_MOST = 6  # fields that one line names
_LONGEST = 500  # characters of a line


@dataclass(frozen=True)
class Check:
    """One line of a check.

    Args:
        about: what was checked: one of `ORDER`.
        outcome: `HOLDS`; `FAILS`; `OPEN`: it cannot be checked offline; `NOTE`: a remark.
        text: the finding, with file and field.
    """

    about: str
    outcome: str
    text: str


def write(run: str, out: str | None = None) -> str:
    """Write the statement of a finished run, and beside it a section for the model's card; returns where it stands.

    Args:
        run: its folder.
        out: the statement; None: statement.json in the folder.

    Raises:
        UserError: as `state`, or the name for output is a folder.
    """
    place = f"{storage.absolute(run)}/{STATEMENT}" if out is None else storage.target(out)
    if not storage.is_uri(place) and storage.is_folder(place):
        raise UserError(f"{place} is a folder; give the name of a file")
    storage.write_json(place, state(run))
    report = report_from_json(storage.read_json(f"{storage.absolute(run)}/{REPORT}"))
    told = layout.card(report, bindings.file_digest(place))
    storage.write_atomic(f"{place.removesuffix('.json')}.md", told.encode())
    return place


def state(run: str) -> Part:
    """The statement of a finished run: the same for the same run.

    Raises:
        UserError: there is no run or no report; the report is of another config, or has no primary attack; or the
            folder does not hold what the report is of.
    """
    folder = run_folder(run)
    with reading(run):
        made = bindings.state(run, folder)
        checks = consistency(made, folder)
    for check in checks:
        if check.outcome == FAILS:
            raise UserError(f"{run} does not hold what its report is of: {check.about}: {check.text}")
    return made


def verify(file: str, run: str) -> list[Check]:
    """Check a statement against a run, offline: every digest anew, and the verdict by the rule.

    Args:
        file: the statement, or an envelope around it.
        run: folder of the run.

    Raises:
        UserError: the file is no statement, or the folder holds no run or another one.
    """
    try:
        stated, signatures = layout.read_statement(layout.parsed(storage.read_bytes(file)))
    except FileNotFoundError as error:
        raise UserError(f"{file} is no file; give the one that encoder-audit statement wrote") from error
    except ConfigError as error:
        raise UserError(f"{file} {error}") from error
    except (OSError, RecursionError, ValueError) as error:
        raise UserError(
            f"{file} is no statement of encoder-audit: it cannot be read as JSON ({in_a_line(error)})"
        ) from error
    folder = run_folder(run)
    predicate = stated["predicate"]
    with reading(file):
        if _is_other(predicate, folder):
            raise UserError(f"{run} is not the run of {file}: its report, its config and all its encoders are others")
        checks = [*consistency(stated, folder), *_check_roles(predicate, folder)]
    checks += [_uncovered(predicate, folder), _signed(signatures)]
    return sorted(checks, key=lambda check: ORDER.index(check.about))


def consistency(stated: Part, folder: RunFolder) -> list[Check]:
    """All checks but of the roles, which are counted anew where a statement is made."""
    predicate = stated["predicate"]
    return [
        *_check_encoders(stated, folder),
        *_check_registrations(predicate, folder),
        *_check_config(predicate, folder),
        *_check_report(predicate, folder),
        *_check_results(predicate, folder),
        *_check_verdict(predicate, folder),
    ]


def _lines(about: str, faults: Iterable[str], fine: str) -> list[Check]:
    """One line for each fault, or one that all is well; names in it may be of unknown origin."""
    found = [(FAILS, fault) for fault in faults] or [(HOLDS, fine)]
    return [Check(about, outcome, plain(text, _LONGEST)) for outcome, text in found]


def _faults_of_files(files: Iterable[Part], folder: RunFolder) -> list[str]:
    return [fault for file in files if (fault := fault_of_file(file, folder))]


def _guarded(check: Callable[[], list[str]], place: str) -> list[str]:
    """The faults that a check finds; what cannot be read is one."""
    try:
        return check()
    except DAMAGE as error:
        return [f"{place} cannot be read ({in_a_line(error)})"]


def _some(names: list[str]) -> str:
    """A few names in words."""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more or "none"


def _check_encoders(stated: Part, folder: RunFolder) -> list[Check]:
    encoders, primary = stated["predicate"]["encoders"], stated["predicate"]["primary"]
    files = [file for encoder in encoders for file in encoder["files"]]
    faults = _faults_of_files(files, folder) or _guarded(
        lambda: [fault for encoder in encoders for fault in _faults_of_encoder(encoder, folder)], OF_ENCODER
    )
    faults += _guarded(lambda: _faults_of_subjects(stated["subject"], encoders, primary), "subject")
    fine = f"{len(files)} files of {len(encoders)} encoders are as stated, and so are their fingerprints"
    closed = [encoder for encoder in encoders if encoder["kind"] != layout.WEIGHTS]
    return [*_lines("weights", faults, fine), *map(_open, closed)]


def _open(encoder: Mapping[str, Any]) -> Check:
    what = (
        "a function, whose code and weights are not in the run"
        if encoder["kind"] == layout.CODE
        else "behind an API, of which the run holds a few answers and no weights"
    )
    name = plain(encoder["name"])
    return Check("weights", OPEN, f"{name}, seed {encoder['seed']}, cannot be checked offline: it is {what}")


def _faults_of_encoder(encoder: Mapping[str, Any], folder: RunFolder) -> list[str]:
    """The faults of an encoder whose files are as stated."""
    one, name = stored.describe(folder.seed(encoder["seed"]), encoder["name"]), encoder["name"]
    place = f"seed-{encoder['seed']}/encoders/{name}"
    expected = {OF_ENCODER, *one.files}
    faults = (
        [] if encoder["kind"] == bindings.kind_of(one) else [f"the statement's kind of {place} is not that of the run"]
    )
    if sorted(file["name"] for file in encoder["files"]) != sorted(f"{place}/{file}" for file in expected):
        faults.append(f"the statement's files of {place} are not those of the run")
    if encoder["fingerprints"] != one.record.fingerprints:
        faults.append(f"{place}/{OF_ENCODER} has other fingerprints than stated")
    if encoder["published"] != one.record.source.get("files", {}):
        faults.append(f"{place}/{OF_ENCODER} has other files of its publisher than stated")
    return faults + [
        f"{place}, epoch {epoch}: its weights do not have the fingerprint in {OF_ENCODER}"
        for epoch, found in {str(epoch): one.measured(epoch) for epoch in one.epochs}.items()
        if found not in (None, one.record.fingerprints[epoch])
    ]


def _faults_of_subjects(given: list[Part], encoders: list[Part], primary: Mapping[str, Any]) -> list[str]:
    audited = [(entry["seed"], primary["target"]) for entry in primary["per_seed"]]
    known = [(encoder["seed"], encoder["name"]) for encoder in encoders]
    faults = [
        f"the statement tells no files of {name}, seed {seed}" for seed, name in audited if (seed, name) not in known
    ]
    if given != layout.subjects(encoders, primary):
        faults.append("the statement's subject is not the encoder that its predicate names as audited")
    return faults


def _check_roles(predicate: Part, folder: RunFolder) -> list[Check]:
    files = [file for entry in predicate["roles"] for file in (*entry["files"], *entry["folders"])]
    faults = _faults_of_files({file["name"]: file for file in files}.values(), folder)
    for entry in () if faults else predicate["roles"]:
        faults += _guarded(partial(_faults_of_roles, entry, folder), f"seed-{entry['seed']}/splits")
    count = sum(len(entry["roles"]) for entry in predicate["roles"])
    fine = f"{count} roles have the stated images, counted anew from {len(files)} files and folders"
    return _lines("roles", faults, fine)


def _faults_of_roles(entry: Part, folder: RunFolder) -> list[str]:
    """The faults of one seed's roles, whose files are as stated."""
    place, splits = f"seed-{entry['seed']}/splits", Splits.load(folder.seed(entry["seed"]).path)
    changed = layout.differences(entry["roles"], recounted(splits))
    faults = [f"{place}: roles other than stated: {_some(changed)}"] if changed else []
    names = [[way(folder.path, path) for path in paths] for paths in bindings.telling(folder, entry["seed"], splits)]
    if names != [[file["name"] for file in entry[kind]] for kind in ("files", "folders")]:
        faults.append(f"the statement's files of {place} are not those of the run")
    return faults


def _check_registrations(predicate: Part, folder: RunFolder) -> list[Check]:
    given = predicate["registrations"]

    def changed() -> list[str]:
        if storage.read_bytes(f"{folder.path}/{FILE}") == file_of(given):
            return []
        try:
            names = layout.differences(given, lines_of(folder), "registration")
        except UserError:
            names = []
        return [f"{FILE}: other than stated: {_some(names) if names else 'its bytes'}"]

    faults = faults_of(given) + _guarded(changed, FILE)
    plans = [line for line in given if line["event"] == PLAN]
    roles = [line for line in given if line["event"] == ROLES]
    if not plans or not _binds(plans[-1], predicate):
        faults.append("the last registered plan has not this primary attack and output")
    if not roles or roles[-1]["roles"] != {str(of_seed["seed"]): of_seed["roles"] for of_seed in predicate["roles"]}:
        faults.append("the last registered roles are not those of the statement")
    if plans:
        faults += _guarded(lambda: faults_of_plan(folder.path, plans[-1]["plans"]), PLAN_FILE)
    if is_after_looking(given):
        fine = "what is judged was CHOSEN AFTER LOOKING: its images or its plan came after the first query"
    else:
        looks, by_target = attempts(given)
        fine = (
            f"images and plan were registered {plans[0]['time'] if plans else 'never'}, before the first query, "
            f"nonce: {plans[0]['nonce']['from'] if plans else 'none'}; {looks} reports, "
            f"{sum(by_target.values())} attacks planned"
        )
    return _lines("registration", faults, fine)


def _binds(plan: Mapping[str, Any], predicate: Part) -> bool:
    """Tell whether a registered plan is the one that the statement's verdict follows."""
    stated = {**plan, **predicate["verdict"], **predicate["primary"]}
    planned = {**plan, **{name: plan["primary_attack"][name] for name in ("attack", "target")}}
    return all(stated[name] == planned[name] for name in ("attack", "target", "output", "by", "factor"))


def _check_config(predicate: Part, folder: RunFolder) -> list[Check]:
    def values() -> list[str]:
        found = digest(yaml.safe_load(storage.read_bytes(f"{folder.path}/{CONFIG}")))
        same = found == predicate["run"]["config_sha256"]
        return [] if same else [f"{CONFIG} is not the config that the stated report is of"]

    fault = fault_of_file(predicate["config"] | {"name": CONFIG}, folder)
    return _lines("config", [fault] if fault else _guarded(values, CONFIG), f"{CONFIG} is as stated")


def _check_report(predicate: Part, folder: RunFolder) -> list[Check]:
    given = predicate["report"]
    fault = fault_of_file(given | {"name": REPORT}, folder)

    def changed() -> list[str]:
        entry = storage.read_json(f"{folder.path}/{REPORT}")
        parts = layout.differences(given["parts"], {name: digest(part) for name, part in entry.items()})
        report = report_from_json(entry)
        found = layout.of_report(report)
        fields = [name for part in found for name in layout.differences(predicate[part], found[part], part)]
        if fault:
            return [f"{fault}; parts that differ: {_some(parts)}" + (f" ({_some(fields)})" if fields else "")]
        reported = {
            (of_seed["seed"], name): fingerprint
            for name, encoder in report.encoders.items()
            for of_seed, fingerprint in zip(found["primary"]["per_seed"], encoder.fingerprints, strict=True)
        }
        last = {
            (encoder["seed"], encoder["name"]): encoder["fingerprints"][max(encoder["fingerprints"], key=int)]
            for encoder in predicate["encoders"]
        }
        wanted = [line.get("bound") for line in predicate["registrations"] if line["event"] == PLAN][-1:] or [None]
        named = fields + parts + ([] if reported == last else ["encoders"])
        named += [] if all([part.bound] == wanted for part in report.bounds) else ["registered bound"]
        return [f"the statement's {_some(named)} is not as {REPORT} has it"] if named else []

    faults = _guarded(changed, REPORT)
    return _lines("report", faults, f"{REPORT} is as stated, in all of its {len(given['parts'])} parts")


def _check_results(predicate: Part, folder: RunFolder) -> list[Check]:
    given, seeds = predicate["results"], [of_seed["seed"] for of_seed in predicate["primary"]["per_seed"]]
    faults = _faults_of_files(given, folder)
    if not faults and [file["name"] for file in bindings.results_of(folder, seeds)] != [file["name"] for file in given]:
        faults.append("the statement's files of results are not those of the run")
    return _lines("results", faults, f"scores, report.html and tables are as stated, in {len(given)} files and folders")


def _check_verdict(predicate: Part, folder: RunFolder) -> list[Check]:
    given, said = predicate["verdict"], predicate["verdict"]["verdict"]
    stated = layout.rule(given.get("factor"))
    faults = [] if predicate["rule"] == stated else ["the statement's rule is not the rule of this version"]
    by_rule, reason = layout.verdict_by_rule(given)
    if (by_rule, reason) != (said, given.get("reason")):
        faults.append(f"the statement says {said}, but by the rule its numbers give {by_rule} ({reason})")

    def numbers() -> list[str]:
        found = layout.judged(verdict(FinishedRun.at(load(f"{folder.path}/{CONFIG}"), folder)))
        apart = layout.differences(given, found, "verdict", tolerance=NEAR)
        return [f"the scores and encoders in the run give another {_some(apart)} than stated"] if apart else []

    faults += _guarded(numbers, "what the verdict rests on")
    return _lines("verdict", faults, f"{said} follows from the numbers by the rule, and these from the scores")


def _uncovered(predicate: Part, folder: RunFolder) -> Check:
    """The files of a run that no digest binds."""
    roles = [file for entry in predicate["roles"] for file in (*entry["files"], *entry["folders"])]
    files = [*roles, *predicate["results"], *(file for one in predicate["encoders"] for file in one["files"])]
    bound = {follow(folder.path, file["name"]) for file in files}
    bound |= {f"{folder.path}/{name}" for name in (REPORT, CONFIG, FILE, PLAN_FILE, STATEMENT)}
    free: dict[str, None] = {}
    for path in storage.list_files(folder.path):
        parts = path.removeprefix(f"{folder.path}/").split("/")
        if not any("/".join((folder.path, *parts[:depth])) in bound for depth in range(1, len(parts) + 1)):
            free["/".join(parts[: 2 if parts[0].startswith("seed-") else 1])] = None
    return Check("coverage", NOTE, plain(f"not covered: {', '.join(free) or 'nothing'}", _LONGEST))


def _signed(signatures: int | None) -> Check:
    shown = "what holds shows that nothing was changed since"
    text = f"{signatures} in the envelope, not checked here; the tool that made them checks who stated it, and {shown}"
    return Check("signature", NOTE, f"none is in this file: {shown}, not who stated it" if signatures is None else text)


def _is_other(predicate: Part, folder: RunFolder) -> bool:
    """Tell whether a folder holds another run: no file of the stated one is there but, perhaps, its roles."""
    files = [file for encoder in predicate["encoders"] for file in encoder["files"]]
    return all(fault_of_file(file, folder) for file in (predicate["report"], predicate["config"], *files))
