"""The sections ``resources``, ``budget`` and ``prices`` of a config."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from pipelines.config.sections.section import Section
from pipelines.errors import UserError

DEFAULT_ACTORS = 2


class ResourcesConfig(Section):
    """The share of the cluster that the stages may use."""

    train_workers: int = Field(default=1, ge=1, description="data-parallel workers per encoder")
    train_cpus: float = Field(default=1.0, gt=0, description="CPUs per training worker, also its threads")
    train_gpus: float = Field(default=0, ge=0, description="GPUs per training worker")
    train_retries: int = Field(default=2, ge=0, description="restarts of a training run after a worker died")
    encoder_actors: int | None = Field(
        default=None, ge=1, description="processes that query encoders; by default 2, or 1 where 2 do not fit"
    )
    actor_cpus: float = Field(default=0.75, gt=0, description="CPUs per encoder actor")
    gpus_per_actor: float = Field(default=0, ge=0, description="GPUs per encoder actor")
    reader_cpus: float = Field(default=0.25, gt=0, description="CPUs per shard reader")
    decode: Literal["fused", "apart"] = Field(
        default="fused", description="in the encoder actors, or in tasks of its own on CPUs that they leave free"
    )
    decoder_cpus: float = Field(default=1.0, gt=0, description="CPUs per decoding task, where decoding stands apart")
    resident_mb: int = Field(
        default=4096, ge=0, description="decoded members that a training worker keeps; more are streamed from shards"
    )
    object_store_mb: int = Field(default=300, ge=80, description="object store of a local Ray")

    def check(self, available: Mapping[str, float]) -> None:
        """Refuse a cluster on which a stage could never be scheduled.

        Raises:
            UserError: names the resource, the demand and the supply.
        """
        cpus, gpus = available.get("CPU", 0.0), available.get("GPU", 0.0)
        actors = self.actors(available)
        querying = actors * self.actor_cpus + self.reader_cpus
        if querying > cpus + 1e-9:
            raise UserError(
                f"resources: encoder_actors x actor_cpus + reader_cpus = {querying:g} CPUs, but Ray has {cpus:g}: "
                "readers would never be scheduled; lower encoder_actors or actor_cpus"
            )
        training = self.train_workers * self.train_cpus
        if training > cpus + 1e-9:
            raise UserError(f"resources: train_workers x train_cpus = {training:g} CPUs, but Ray has {cpus:g}")
        wanted = max(actors * self.gpus_per_actor, self.train_workers * self.train_gpus)
        if wanted > gpus + 1e-9:
            raise UserError(
                f"resources: {wanted:g} GPUs asked for, but Ray has {gpus:g}; set gpus_per_actor, train_gpus"
            )

    def actors(self, available: Mapping[str, float]) -> int:
        """Encoder actors: as many as the config says, or what fits ``available``."""
        if self.encoder_actors is not None:
            return self.encoder_actors
        held = {"CPU": self.actor_cpus, "GPU": self.gpus_per_actor}
        left = {kind: available.get(kind, math.inf) for kind in held}
        left["CPU"] -= self.reader_cpus
        fitting = min((left[kind] + 1e-9) // amount for kind, amount in held.items() if amount)
        return DEFAULT_ACTORS if fitting < 1 else int(min(DEFAULT_ACTORS, fitting))

    @property
    def device(self) -> str:
        """The kind of device that encoders are queried on: ``cuda`` where actors hold GPUs, else ``cpu``."""
        return "cuda" if self.gpus_per_actor else "cpu"

    def decoding_threads(self, nodes: Sequence[Mapping[str, float]]) -> int:
        """Threads that decode in an actor while its GPU works: the CPUs of its node divided by the node's actors.

        Args:
            nodes: resources of the cluster's nodes; the one with the fewest CPUs for an actor counts.

        Returns:
            At least the actor's own CPUs; 0 without a GPU, where decoding beside the encoder gains nothing.
        """
        if not self.gpus_per_actor:
            return 0
        holding = [(node.get("CPU", 0.0), (node.get("GPU", 0.0) + 1e-9) // self.gpus_per_actor) for node in nodes]
        shares = [cpus // min(actors, self.encoder_actors or DEFAULT_ACTORS) for cpus, actors in holding if actors]
        return max(1, int(self.actor_cpus), int(min(shares, default=0)))

    def decoders(self, actors: int, available: Mapping[str, float]) -> int:
        """Tasks that decode at once, on the CPUs that actors and readers leave; 0: the actors decode."""
        if self.decode == "fused":
            return 0
        left = available.get("CPU", 0.0) - actors * self.actor_cpus - self.reader_cpus
        return max(1, int((left + 1e-9) / self.decoder_cpus))


class BudgetConfig(Section):
    """The most that a run may spend."""

    queries: int | None = Field(
        default=None, ge=1, description="queries of attacked encoders, over all their checkpoints and all seeds"
    )
    cpu_hours: float | None = Field(default=None, gt=0, description="above it, as estimated, a run asks first")
    gpu_hours: float | None = Field(default=None, gt=0, description="the same")
    money: float | None = Field(default=None, gt=0, description="the same, in the unit of `prices`")

    @property
    def estimated(self) -> dict[str, float]:
        """The limits that an estimate is compared with before anything is spent."""
        return self.model_dump(exclude={"queries"}, exclude_none=True)


class PricesConfig(Section):
    """Prices in one unit of money; a thing without a price is not counted."""

    cpu_hour: float | None = Field(default=None, ge=0, description="a CPU for an hour")
    gpu_hour: float | None = Field(default=None, ge=0, description="a GPU for an hour")
    query: float | None = Field(default=None, ge=0, description="a query of an attacked encoder")
    storage_gb_month: float | None = Field(default=None, ge=0, description="10^9 bytes of features for a month")


class ReportConfig(Section):
    """The use of a report once it is written."""

    after: str | None = Field(
        default=None, min_length=1, description="what gets it: python:module:function, or a command"
    )
    trust_code: bool = Field(default=False, description="run the code that after names")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.after is not None and not self.trust_code:
            raise ValueError(f"report.after = {self.after!r} runs code; set report.trust_code=true if you trust it")
        return self
