"""``plan.json``: the plans of a run as they are registered, before the first query.

Every item stands once, under its key, with its fields and the keys of its inputs. So anybody can take the keys anew: a
field that is changed afterwards no longer has the key that the registration binds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.files import storage
from pipelines.plan.items import VERSION, Item, Plan, items_in, key_of

PLAN_FILE = "plan.json"


def write_plans(folder: str, plans: Sequence[Plan]) -> None:
    """Write the file of a run, unless it says the same.

    It has ``version``, ``plans`` (seed to key), and ``items`` (key to kind and fields).
    """
    items = {item.key: item for plan in plans for item in items_in(plan, Item)}
    told = {key: {"kind": type(item).__name__, **item.fields} for key, item in items.items()}
    content = {"version": VERSION, "plans": plan_digest(plans), "items": json.loads(json.dumps(told))}  # no tuples
    path = f"{folder}/{PLAN_FILE}"
    if storage.read_json_or(path, None) != content:
        storage.write_json(path, content)


def plan_digest(plans: Sequence[Plan]) -> dict[str, str]:
    """The part of the plans that a registration binds: the key of each, by seed."""
    return {str(plan.seed): plan.key for plan in plans}


def faults_of_plan(folder: str, registered: Mapping[str, str]) -> list[str]:
    """The faults of the file of a run; none where its plans have the ``registered`` keys, as `plan_digest` has them."""
    content = storage.read_json_or(f"{folder}/{PLAN_FILE}", None)
    if content is None:
        return [f"{PLAN_FILE} is missing"]
    if content["version"] != VERSION:
        return [f"{PLAN_FILE} is of version {content['version']}, and this program reads version {VERSION}"]
    items: Mapping[str, Mapping[str, Any]] = content["items"]
    faults = []
    for key, item in items.items():
        if key_of(item["kind"], {name: value for name, value in item.items() if name != "kind"}) != key:
            faults.append(f"{PLAN_FILE}: the {item['kind']} {key} was changed: its fields have another key")
    if dict(content["plans"]) != dict(registered) or not set(registered.values()) <= items.keys():
        faults.append(f"{PLAN_FILE} holds other plans than were registered")
    return faults
