"""The queries of an encoder for every image: what is asked, how often, in which batches and precision."""

from __future__ import annotations

from dataclasses import dataclass

from mi_core.checks import ConfigError, check_choice, check_fields
from mi_core.features import Measure, queries_per_image
from mi_core.features.measure import by_query
from mi_core.querying.precision import PRECISIONS


@dataclass(frozen=True)
class QueryPlan:
    """The queries of an encoder for every image.

    Args:
        needs: membership features to compute, for example ``(PairwiseSimilarity(), LpNorm())``.
        outputs: which embeddings, of ``backbone`` and ``projection``.
        views: augmented views V per image, spent only where a measure shares them.
        batch_views: queries sent to the encoder in one call, at most (memory); see `Extractor.fit_batch` for CUDA.
        precision: of the encoder's forward pass, one of `precision.PRECISIONS`.
    """

    needs: tuple[Measure, ...]
    outputs: tuple[str, ...]
    views: int = 10
    batch_views: int = 640
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_fields(self, "views", "batch_views", low=1)
        check_choice("precision", self.precision, PRECISIONS)
        for measure in self.needs:
            if measure.output not in (None, *self.outputs):
                raise ConfigError(
                    f"{measure} is read off the output {measure.output!r}, the outputs are {', '.join(self.outputs)}"
                )

    @property
    def sets(self) -> tuple[str, ...]:
        """Sets of queries of every image, each once: ``views``, ``image``, ``patches:3x3``, ..."""
        return tuple(by_query(self.needs))

    @property
    def searches(self) -> bool:
        """True if queries depend on the answers to earlier ones."""
        return any(measure.searches for measure in self.needs)

    @property
    def captioned(self) -> bool:
        """True if any measure takes captions."""
        return any(measure.captions for measure in self.needs)

    @property
    def labelled(self) -> bool:
        """True if any measure takes the true class."""
        return any(measure.labels for measure in self.needs)

    @property
    def queries_per_image(self) -> int:
        """Queries spent on one image, at most: the search for a boundary may end with fewer."""
        return queries_per_image(self.needs, self.views)

    @property
    def at_once_per_image(self) -> int:
        """Queries of one image that are in memory together: some are asked one after the other."""
        return sum(measure.queries_at_once(self.views) for measure in by_query(self.needs).values()) or 1

    @property
    def images_at_once(self) -> int:
        """Images whose queries go to the encoder in one call."""
        return max(1, self.batch_views // self.at_once_per_image)
