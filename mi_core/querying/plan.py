"""The queries of an encoder for every image: what is asked, how often, in which batches and precision."""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.checks import ConfigError, check_choice, check_range
from mi_core.features import asked, consumes, parse_need, queries_per_image
from mi_core.features.loss_gradient import CAPTION_GRADIENT, OF_WEIGHTS
from mi_core.features.sequential import FIRST, StoppingRule
from mi_core.querying.precision import PRECISIONS

_KNOWN = ("views", "clean", "patches", "parts", "neighbours", *OF_WEIGHTS)  # sets of queries that no answer changes


@dataclass(frozen=True)
class QueryPlan:
    """The queries of an encoder for every image.

    Args:
        needs: membership features to compute, for example ``("pairwise:cosine", "norm:2")``.
        outputs: which embeddings, of ``backbone`` and ``projection``.
        views: augmented views V per image, spent only when a need consumes views.
        batch_views: queries sent to the encoder in one call, at most (memory); see `Extractor.fit_batch` for CUDA.
        precision: of the encoder's forward pass, one of `precision.PRECISIONS`.
        rule: when to stop asking for the views of an image; for the need ``sequential``.
    """

    needs: tuple[str, ...]
    outputs: tuple[str, ...]
    views: int = 10
    batch_views: int = 640
    precision: str = "float32"
    rule: StoppingRule | None = None

    def __post_init__(self) -> None:
        check_range("views", self.views, 1)
        check_range("batch_views", self.batch_views, 1)
        check_choice("precision", self.precision, PRECISIONS)
        for need in self.needs:
            only = parse_need(need)[0].output
            if only not in (None, *self.outputs):
                raise ConfigError(f"{need} is read off the output {only!r}, the outputs are {', '.join(self.outputs)}")

    @property
    def sets(self) -> tuple[str, ...]:
        """Sets of queries of every image, each once: ``views``, ``clean``, ``patches:3x3``, ..."""
        return tuple(dict.fromkeys(asked(need) for need in self.needs))

    @property
    def searches(self) -> bool:
        """Whether queries depend on the answers to earlier ones."""
        return any(kind.partition(":")[0] not in _KNOWN for kind in self.sets)

    @property
    def captioned(self) -> bool:
        """Whether any need consumes captions."""
        return any(consumes(need) in ("caption", CAPTION_GRADIENT) for need in self.needs)

    @property
    def labelled(self) -> bool:
        """Whether any need consumes the true class."""
        return any(consumes(need) == "boundary" for need in self.needs)

    @property
    def queries_per_image(self) -> int:
        """Queries spent on one image, at most: the search for a boundary, or a rule, may end with fewer."""
        return queries_per_image(self.needs, self.views)

    @property
    def at_once_per_image(self) -> int:
        """Queries of one image that are in memory together: some are asked one after the other."""
        together = (need for need in self.needs if consumes(need) not in ("boundary", "sequential"))
        first = FIRST if any(consumes(need) == "sequential" for need in self.needs) else 0
        return queries_per_image(together, self.views) + first or 1

    @property
    def images_at_once(self) -> int:
        """Images whose queries go to the encoder in one call."""
        return max(1, self.batch_views // self.at_once_per_image)
