"""Take encoders from elsewhere into the run folder: recognise, convert, fingerprint, see whether they work at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from mi_core.encoders.checkpoint import Encoder, weights_bytes
from mi_core.encoders.foreign import CODE, Adopted, adopt
from mi_core.hashing import digest64
from mi_core.sanity import view_consistency
from mi_core.streams import sample_streams
from pipelines import ledger, storage
from pipelines.artifacts import RunFolder, SeedFolder, digest
from pipelines.console import say
from pipelines.data_config import DataConfig
from pipelines.encoders import LoadedConfig, describe, is_done, share, weights_path
from pipelines.errors import UserError
from pipelines.loading import load_images
from pipelines.splits import Splits

if TYPE_CHECKING:
    from pipelines.config import Run, RunConfig

VERSION = 1
PROBED = 256  # images on which an encoder shows that it works


@dataclass(frozen=True)
class Adoption:
    """One encoder from elsewhere of one seed; two of the same ``inputs`` are adopted once."""

    name: str
    config: LoadedConfig
    data: DataConfig
    folder: SeedFolder
    roles: tuple[str, ...]
    inputs: str

    @property
    def probed(self) -> int:
        """Images on which the encoder shows that it works."""
        return min(PROBED, len(Splits.load(self.folder.path).ids(self.roles)))


def run(runs: Sequence[Run]) -> None:
    """Adopt every loaded encoder of every seed of some runs that is not in its folder yet.

    What two runs have in common is adopted once: the first gets it, the others a copy.

    Raises:
        UserError: weights that are missing or do not fit, an output that the encoder does not have, or a budget that
            does not bear a look at whether the encoder works.
    """
    import ray

    every = [job for config, folder in runs for job in adoptions(config, folder)]
    first: dict[str, Adoption] = {}
    for job in every:
        first.setdefault(job.inputs, job)
    jobs = [job for job in first.values() if not is_done(job.folder, job.name, job.inputs)]
    ledger.check_probes(runs, [(job.name, job.probed) for job in first.values()])
    remote = ray.remote(num_cpus=1, num_gpus=runs[0][0].resources.gpus_per_actor)(_adopt)
    ray.get([remote.remote(job) for job in jobs])
    for job in jobs:
        found = describe(job.folder, job.name).description
        say("pretrain", f"{job.name} (seed {job.folder.seed}): {found['layout']}, {found['preprocessing_words']}")
        say("pretrain", f"{job.name}: {consistency_in_words(found['consistency'])}")
    for job in every:
        if not is_done(job.folder, job.name, job.inputs):
            share(first[job.inputs].folder, job.folder, job.name)
    for config, folder in runs:
        for job in adoptions(config, folder):
            config.check_outputs(job.name, tuple(describe(job.folder, job.name).description["outputs"]))


def adoptions(config: RunConfig, folder: RunFolder) -> Iterator[Adoption]:
    """Every encoder from elsewhere of a run, of every seed."""
    for place in map(folder.seed, config.seeds):
        for name, encoder in config.encoders.items():
            if isinstance(encoder, LoadedConfig):
                inputs = digest(VERSION, place.seed, name, encoder.model_dump(), config.data.decoder().digest())
                yield Adoption(name, encoder, config.data, place, config.audited, inputs)


def consistency_in_words(found: dict[str, Any]) -> str:
    """How often two views of an image find each other, against a reference."""
    own, other = found["encoder"], found["reference"]
    words = (
        f"finds the other view of an image among {own['n']} in {own['value']:.1%} of cases, "
        f"{found['reference_name']} in {other['value']:.1%}"
    )
    return words + ("" if found["works"] else "; WARNING: no better, so check weights and preprocessing")


def try_out(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Load every encoder from elsewhere in this process; yields its name and what it is, in words.

    Raises:
        UserError, ConfigError: a file is missing, or weights do not fit.
    """
    for name, encoder in config.encoders.items():
        if isinstance(encoder, LoadedConfig):
            found = _read(name, encoder, config.data, 0)[0]
            config.check_outputs(name, found.encoder.outputs)
            yield name, f"{found.layout}, {found.preprocessing.words()}, outputs {', '.join(found.encoder.outputs)}"


def _read(name: str, config: LoadedConfig, data: DataConfig, seed: int) -> tuple[Adopted, bytes]:
    """The encoder, and the bytes of its weights file."""
    content = None
    if config.weights is not None:
        if not storage.exists(config.weights) or storage.is_folder(config.weights):
            raise UserError(f"encoders.{name}.weights = {config.weights} is no file")
        content = storage.read_bytes(config.weights)
    found = adopt(
        config.load,
        content,
        channels=data.channels,
        image_size=data.image_size,
        preprocessing=config.preprocessing(),
        fresh=digest64(seed, "encoder", name) if config.fresh else None,
    )
    return found, content or b""


def _adopt(job: Adoption) -> None:
    """Read the weights, convert them, try them out, and write them down."""
    found, data = _read(job.name, job.config, job.data, job.folder.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _write(job, found, data, _consistency(job, found.encoder.to(device), device))


def adopt_untried(job: Adoption, probed: int) -> None:
    """Write an encoder down without asking it anything, as if ``probed`` images had shown that it works."""
    found, data = _read(job.name, job.config, job.data, job.folder.seed)
    _write(job, found, data, {"encoder": {"n": probed}})


def _write(job: Adoption, found: Adopted, data: bytes, consistency: dict[str, Any]) -> None:
    config, place = job.config, job.folder.encoder(job.name)
    code = config.load.partition(":")[0] in CODE
    storage.write_atomic(weights_path(place, 0), data if code else weights_bytes(found.encoder))
    storage.write_json(
        f"{place}/encoder.json",
        {
            "name": job.name,
            "inputs": job.inputs,
            "config": config.model_dump(mode="json"),
            "seed": job.folder.seed,
            "channels": job.data.channels,
            "image_size": job.data.image_size,
            "layout": found.layout,
            "outputs": found.encoder.outputs,
            "preprocessing": asdict(found.preprocessing),
            "preprocessing_words": found.preprocessing.words(),
            "consistency": consistency,
            "fingerprints": {0: found.fingerprint},
            "losses": [],
        },
    )


def _consistency(job: Adoption, encoder: Encoder, device: torch.device) -> dict[str, Any]:
    """View consistency of an encoder beside that of fresh weights, or of pixels where nothing can be built afresh."""
    config = job.config
    splits = Splits.load(job.folder.path)
    loaded = load_images(job.data, splits, job.roles, limit=PROBED)
    streams = sample_streams(job.folder.seed, "probe", loaded.names())
    images, views = torch.from_numpy(loaded.images), config.views()
    own = view_consistency(encoder, images, streams, views, device=device)
    reference, name = None, "raw pixels"
    if config.load.partition(":")[0] not in CODE:
        fresh = adopt(
            config.load,
            None,
            channels=job.data.channels,
            image_size=job.data.image_size,
            preprocessing=config.preprocessing(),
            fresh=0,
        )
        reference, name = fresh.encoder.to(device), "fresh weights"
    other = view_consistency(reference, images, streams, views, device=device, size=encoder.size)
    return {
        "encoder": own.as_json(),
        "reference": other.as_json(),
        "reference_name": name,
        "works": config.fresh or own.low > other.high or own.value == 1.0,
    }
