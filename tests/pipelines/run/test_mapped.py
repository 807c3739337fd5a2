"""Calling a function on many arguments as Ray tasks."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.errors import UserError
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
