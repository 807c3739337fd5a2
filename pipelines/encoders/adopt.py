"""Take encoders from elsewhere into the run folder: recognise, convert, fingerprint and try them out.

Of an encoder behind an API the folder holds a record and a few answers, by which it is known again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import safetensors.torch
import torch

from mi_core.adoption.builders import WHOLE
from mi_core.adoption.foreign import Adopted, adopt
from mi_core.adoption.model_folder import with_definition
from mi_core.adoption.soundness import Answers, check_company, noise_in_words, noise_of
from mi_core.adoption.weight_sources import WeightSource, commit_of, on_hub, read_weights_of
from mi_core.augmentations.views import clean
from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders.checkpoint import weights_bytes
from mi_core.encoders.remote.encoder import Endpoint
from mi_core.hashing import digest64
from mi_core.provenance import now
from mi_core.querying.sanity import PROBED, VIEWS, Agreement, agreement, consistency_in_words, unit_lengths
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.data import DataConfig
from pipelines.config.sections.encoders import EndpointConfig, LoadedConfig
from pipelines.console import say
from pipelines.data.draw.images import Loaded, load_images
from pipelines.data.draw.splits import Splits
from pipelines.data.plans import Planned
from pipelines.encoders import probes
from pipelines.encoders.access import Access, access_to, secrets_of
from pipelines.encoders.probes import TRIED, Probe, weights_consistency
from pipelines.encoders.stored import ANSWERS, EncoderJob, EncoderRecord, describe, weights_path, write_record
from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.digest import digest
from pipelines.plan.checks import check_adopted
from pipelines.plan.resolve import resolve, roles_in_config
from pipelines.plan.rules import ThreatModel
from pipelines.run.parts import Once
from pipelines.run.points import Run
from pipelines.run.ray_session import available_cpus, largest_node, mapped

REPEATED = 16  # images that an API is asked twice
CHECKED = 4  # of them, those by whose answers it is known again


@dataclass(frozen=True)
class Adoption(EncoderJob):
    """An encoder from elsewhere to adopt; ``roles``: whose images it is tried out on."""

    config: LoadedConfig | EndpointConfig
    roles: tuple[str, ...]

    @property
    def probed(self) -> int:
        """Images on which the encoder is tried out."""
        return min(PROBED, Splits.load(self.folder.path).count(self.roles))

    @property
    def queries(self) -> int:
        """Queries of the trial."""
        return probes_of(self.config, self.data, self.probed)

    def images(self, limit: int) -> Loaded:
        """The first of the audited images."""
        return load_images(self.data, Splits.load(self.folder.path), self.roles, limit=limit)


def probes_of(settings: LoadedConfig | EndpointConfig, data: DataConfig, images: int) -> int:
    """Queries that try an encoder out on some images: views, images in two ways or twice, of an API one image alone."""
    if isinstance(settings, LoadedConfig):
        return VIEWS * images + 2 * min(probes.compared(settings, data), images)
    return VIEWS * images + 2 * min(REPEATED, images) + 1


def run(runs: Sequence[Run], planned: Sequence[Planned]) -> None:
    """Adopt every loaded encoder of some plans that is not in its folder yet.

    An encoder that two runs share is adopted once: the first gets it, the others a copy.

    Raises:
        UserError: weights that are missing or do not fit, an output that the encoder does not have, or a budget that is
            too small to try the encoder out.
    """
    every = [job for one in planned for job in adoptions(one)]
    once = Once(every, lambda job: job.inputs, Adoption.is_done)
    jobs = once.todo()
    probes.check_probes(runs, [(job.name, job.queries) for job in once.first.values()])
    with access_to(runs if jobs else ()) as access:
        gpus = runs[0].config.resources.gpus_per_actor
        commits = commits_of(jobs)
        threads = 1 if gpus or not jobs else int(max(1, min(available_cpus() // len(jobs), largest_node()[0])))
        asked = [(job, access, commits.get(_address(job)), threads) for job in jobs]
        mapped(adopt_one, asked, "encoders", "loading and trying out", cpus=threads, gpus=gpus)
    for job in jobs:
        record = describe(job.folder, job.name).record
        say("load", f"{job.name} (seed {job.folder.seed}): {layout_in_words(record)}, {record.preprocessing_words}")
        say("load", f"{job.name}: {consistency_in_words(record.consistency)}")
        if record.answers:
            say("load", f"{job.name}: {answers_in_words(record.answers)}")
            if isinstance(job.config, EndpointConfig) and storage.is_uri(job.folder.path):
                say("load", f"{job.name}: answers are not cached: the run folder is not on a local disk")
    once.share(Adoption.copy_to)
    for job in every:  # settings that may change after an adoption, such as the limits of an API
        record, current = describe(job.folder, job.name).record, job.config.model_dump(mode="json")
        if record.config != current:
            write_record(job.folder, replace(record, config=current))
    for one in planned:
        for job in adoptions(one):
            check_adopted(one.plan, job.name, describe(job.folder, job.name).record.outputs)


def adoptions(planned: Planned) -> Iterator[Adoption]:
    """Every encoder from elsewhere of a plan."""
    plan, folder = planned
    audited = tuple(role.name for role in plan.audited)
    for encoder in plan.encoders:
        if isinstance(encoder.settings, LoadedConfig | EndpointConfig):
            yield Adoption(encoder.name, encoder.settings, plan.data, folder, encoder.key, audited)


def try_out(config: RunConfig, splits: Splits, seed: int) -> Iterator[tuple[str, str]]:
    """Load every encoder from elsewhere in this process and show it some audited images; no API is asked.

    Args:
        config: of the run.
        splits: roles of the samples, for one seed.
        seed: that seed.

    Yields:
        Its name, and in words its layout and whether it recognises images.

    Raises:
        UserError, ConfigError: a file is missing, or weights do not fit.
    """
    shown: Loaded | None = None
    for name, encoder in config.encoders.items():
        if isinstance(encoder, LoadedConfig):
            adopted, _ = read_encoder(name, encoder, config.data, seed)
            check_adopted(resolve(config, seed, roles_in_config(config)), name, adopted.encoder.outputs)
            shown = shown or load_images(config.data, splits, ThreatModel(config).audited_roles, limit=TRIED)
            worth = consistency_in_words(weights_consistency(Probe(encoder, config.data, seed, shown), adopted))
            compared = compare_preprocessing(adopted, config.data, splits, ThreatModel(config).audited_roles)
            words = probes.in_words(adopted.preprocessing, config.data, compared)
            layout, outputs = layout_in_words(adopted), ", ".join(adopted.encoder.outputs)
            yield name, f"{layout}, {words}, outputs {outputs}; {worth}"
        elif isinstance(encoder, EndpointConfig):
            secrets_of(name, encoder.parameters())
            layout, outputs = encoder.parameters().words()["layout"], ", ".join(encoder.outputs)
            yield name, f"{layout}, not queried here, outputs {outputs}"


def read_encoder(
    name: str, config: LoadedConfig, data: DataConfig, seed: int, commit: str | None = None
) -> tuple[Adopted, WeightSource]:
    """An encoder from elsewhere, with the weights that it has there, and where these come from.

    Raises:
        UserError: a file is missing, or weights do not fit.
    """
    try:
        source = read_weights_of(config.load, config.weights, storage.file_or_none, commit=commit, bare=config.fresh)
    except ConfigError as error:
        # The error names the weights first; without weights it names what `load` asked for.
        raise UserError(f"encoders.{name}{'.weights =' if config.weights else ':'} {error}") from error
    try:
        adopted = adopt(
            config.load,
            source.content,
            channels=data.channels,
            image_size=data.image_size,
            preprocessing=config.preprocessing(),
            activations={output: head.activation for output, head in config.heads.items()},
            fresh=digest64(seed, "encoder", name) if config.fresh else None,
            weights_key=config.weights_key,
        )
    except (ConfigError, ShapeError) as error:
        raise UserError(f"{config.place(name)}: {error}") from error
    return adopted, source


def commits_of(jobs: Sequence[Adoption]) -> dict[str, str]:
    """Commits by address on the Hub: the same for all seeds, even if the Hub changes under way."""
    commits: dict[str, str] = {}
    for job in jobs:
        address = _address(job)
        try:
            commits |= {address: commit_of(address)} if address and address not in commits else {}
        except ConfigError as error:
            raise UserError(f"encoders.{job.name}: {error}") from error
    return commits


def _address(job: Adoption) -> str:
    """Where an encoder is on the Hub; empty: it is elsewhere."""
    config = job.config
    return (on_hub(config.load, config.weights) or "") if isinstance(config, LoadedConfig) else ""


def adopt_one(job: Adoption, access: Access | None, commit: str | None, threads: int = 1) -> None:
    """Try an encoder out with some threads, and write its record."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        if isinstance(job.config, LoadedConfig):
            fields = _adopt_weights(job, job.config, commit)
        else:
            fields = _adopt_endpoint(job, job.config, access)
    finally:
        torch.set_num_threads(before)
    job.write(adopted=now(), **fields)


def _adopt_weights(job: Adoption, config: LoadedConfig, commit: str | None) -> dict[str, Any]:
    """Read the weights, convert them and try them out."""
    adopted, source = read_encoder(job.name, config, job.data, job.folder.seed, commit)
    data = source.content or b""
    if config.load.partition(":")[0] not in WHOLE:
        data = with_definition(weights_bytes(adopted.encoder), adopted.files)
    compared = compare_preprocessing(adopted, job.data, Splits.load(job.folder.path), job.roles)
    storage.write_atomic(weights_path(job.folder.encoder(job.name), 0), data)
    return {
        **{part: getattr(adopted, part) for part in ("layout", "used", "ignored", "assumed")},
        "activations": dict(adopted.activations),
        "outputs": adopted.encoder.outputs,
        "preprocessing": asdict(adopted.preprocessing),
        "preprocessing_words": probes.in_words(adopted.preprocessing, job.data, compared),
        "decoding": {} if compared is None else asdict(compared),
        "consistency": weights_consistency(_probe(job, config), adopted),
        "answers": asdict(adopted.answers) if adopted.answers.words() else {},  # where something has to be said
        "fingerprints": {"0": adopted.fingerprint},
        "source": source.as_json(),
    }


def layout_in_words(encoder: Adopted | EncoderRecord) -> str:
    """Layout of the file, the keys that were used, those that were ignored and why, and the assumptions."""
    return "; ".join([encoder.layout, *(f"{part}: {words}" for part, words in _accounts(encoder).items())])


def _accounts(encoder: Adopted | EncoderRecord) -> dict[str, str]:
    parts = {"used": encoder.used, "ignored": ", ".join(encoder.ignored), "assumed": ", ".join(encoder.assumed)}
    return {part: words for part, words in parts.items() if words}


def _probe(job: Adoption, config: LoadedConfig | EndpointConfig) -> Probe:
    return Probe(config, job.data, job.folder.seed, job.images(PROBED))


def compare_preprocessing(adopted: Adopted, data: DataConfig, splits: Splits, roles: Sequence[str]) -> Agreement | None:
    """Agreement of the answers to the run's images and to its publisher's; None: the images are the same."""
    theirs = probes.as_published(adopted.preprocessing, data)
    if theirs is None:
        return None
    first, second = (load_images(way, splits, roles, limit=probes.COMPARED).images for way in (theirs, data))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return agreement(adopted.encoder.to(device), torch.from_numpy(first), torch.from_numpy(second), device=device)


def _adopt_endpoint(job: Adoption, config: EndpointConfig, access: Access | None) -> dict[str, Any]:
    """Try an API out, ask some images twice and one alone, and keep the answers by which it is known again."""
    assert access is not None
    parameters = config.parameters()
    encoder = Endpoint(access.client(job.name, parameters))
    shown = _probe(job, config).consistency(encoder, None, torch.device("cpu"))
    images = clean(torch.from_numpy(job.images(REPEATED).images))
    first, second = encoder(images), encoder(images)
    noise = noise_of(first, second)
    if not math.isfinite(noise["largest"]):
        raise UserError(
            f"encoders.{job.name}.endpoint: the API gave a zero embedding and then another one for the same image; "
            "repair the API"
        )
    data = safetensors.torch.save({output: rows[:CHECKED].contiguous() for output, rows in first.items()})
    try:
        check_company({output: rows[:1] for output, rows in first.items()}, encoder(images[:1]), noise)
    except ConfigError as error:
        raise UserError(f"encoders.{job.name}.endpoint: {error}") from error
    storage.write_atomic(f"{job.folder.encoder(job.name)}/{ANSWERS}", data)
    marks = [] if Answers(noise).noisy else [hashlib.sha256(data).hexdigest()]
    words = parameters.words()
    return {
        "layout": words["layout"],
        "outputs": parameters.outputs,
        "preprocessing_words": words["preprocessing"],
        "consistency": shown,
        "answers": {
            "widths": {output: rows.shape[1] for output, rows in first.items()},
            "unit_length": [output for output, rows in first.items() if unit_lengths(rows)],
            "noise": noise,
            "queries": 2 * len(images) + 1,
        },
        "fingerprints": {"0": digest(parameters.identity(), *marks)},
    }


def origin(config: LoadedConfig | EndpointConfig, record: EncoderRecord) -> dict[str, str]:
    """An encoder from elsewhere in words, for the report."""
    if isinstance(config, LoadedConfig):
        told = "".join(f", commit {commit}" for commit in (record.source.get("commit"),) if commit)
        told += "".join(f", {file} sha256 {mark}" for file, mark in record.source.get("files", {}).items())
        source = {"load": config.load, "weights": f"{config.weights or 'its own'}{told}"}
    else:
        source = config.parameters().words()
    return source | {
        "layout": record.layout,
        **_accounts(record),
        "preprocessing": record.preprocessing_words,
        "consistency": consistency_in_words(record.consistency),
        **({"answers": answers_in_words(record.answers)} if record.answers else {}),
    }


def answers_in_words(answers: Mapping[str, Any]) -> str:
    """The answers of an encoder as its record holds them, and whether it answers the same twice."""
    if "widths" not in answers:
        return Answers(answers["noise"], tuple(answers["notes"])).words()
    widths = ", ".join(f"{width} numbers for the {output}" for output, width in answers["widths"].items())
    unit = answers["unit_length"]
    scaled = f"; embeddings of {' and '.join(unit)} are scaled to length 1, so attacks on the length do not apply"
    return f"answers with {widths}, and {noise_in_words(answers['noise'])}" + (scaled if unit else "")
