"""Calling a function on many arguments as Ray tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pipelines.console import Bars
from pipelines.errors import UserError
from pipelines.run import ray_session
from pipelines.run.board import Note
from pipelines.run.ray_session import mapped

pytestmark = pytest.mark.ray


def test_results_keep_their_order_and_few_tasks_are_submitted_ahead(
    local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    waits: list[int] = []
    wait = ray.wait

    def counted(references: list[Any], **options: Any) -> Any:
        waits.append(len(references))
        return wait(references, **options)

    monkeypatch.setattr(ray, "wait", counted)
    assert mapped(lambda number: number**2, ((number,) for number in range(40)), "numbers", "squares") == [
        n**2 for n in range(40)
    ]
    assert waits == [8] * 33 + list(range(7, 0, -1))  # twice the four CPUs


def test_the_first_fault_of_the_user_ends_it(local_ray: None) -> None:
    def fails(number: int) -> int:
        if number == 3:
            raise UserError("shard 3 is no tar")
        return number

    with pytest.raises(UserError, match="shard 3 is no tar"):
        mapped(fails, [(number,) for number in range(20)], "shards", "reading")
    assert mapped(fails, [], "shards", "reading") == []


def test_a_fit_tells_of_its_epochs(local_ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the networks that a task fits, whoever looks sees the one under way, with the epochs left."""

    def fits(number: int) -> int:
        import time

        import numpy as np

        from mi_core import mlp

        for epochs in (40, 8):
            training = mlp.Training(1e-3, epochs, 4)
            slow = lambda batch, _: time.sleep(0.05) or batch  # noqa: E731
            network = lambda: mlp.layers(2, 1)  # noqa: E731
            mlp.fit(network, np.zeros((4, 2)), np.zeros(4, dtype=bool), training, seed=0, augment=slow)
        return number

    seen: dict[str, set[tuple[float, float]]] = {}
    show = ray_session._show

    def looked(progress: Bars, running: set[str], notes: Mapping[str, Note]) -> None:
        show(progress, running, notes)
        for piece in progress.pieces():
            assert piece.unit == ("fits" if piece.title == "fitting" else "epochs")
            seen.setdefault(piece.title, set()).add((piece.done, piece.total))

    monkeypatch.setattr(ray_session, "_show", looked)
    assert mapped(fits, [(0,), (1,)], "fits", "fitting", fits=["first", "second"]) == [0, 1]
    assert set(seen) == {"fitting", "first", "second"}
    assert {total for name in ("first", "second") for _, total in seen[name]} >= {40}
    assert all(0 < done <= total for name in ("first", "second") for done, total in seen[name])
    assert len(seen["first"]) > 1
