"""Keys of items: what changes them, with everything that depends on it, and what changes none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mi_core.features.embedding import LpNorm
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.plan.items import (
    Beside,
    Encoder,
    Fit,
    Item,
    Judge,
    Plan,
    Protocol,
    Query,
    Reading,
    Role,
    Samples,
    Score,
    Utility,
    Views,
    items_in,
    key_of,
)
from pipelines.plan.load import parse
from pipelines.plan.resolve import resolve, roles_in_config
from tests.conftest import small_config
from tests.pipelines.undrawn import plan_in

ROOT = Path(__file__).parents[3]


def planned(change: Callable[[dict[str, Any]], None] = lambda raw: None) -> Plan:
    """The plan of the small config, in which something is changed."""
    raw = small_config(checkpoints="last")
    change(raw)
    return plan_in(parse(raw, "x"))


def named(item: Item) -> str:
    """An item by words that no change of its settings moves."""
    match item:
        case Encoder():
            return item.name
        case Query():
            role = "+".join(role.name for role in item.samples.roles)
            return f"{item.encoder.name} {item.output} {item.measure.kind} {role}"
        case Reading():
            roles = "+".join(role.name for role in (*item.samples.roles, *item.samples.without))
            kinds = "+".join(sorted({query.measure.kind for query in item.queries}))
            return f"{item.encoder.name} {item.queries[0].output} {kinds} {roles}"
        case Fit():
            return f"{item.attack.attack}: {named(item.readings[0])}"
        case Score():
            return named(item.fit)
        case Beside():
            return named(item.reading)
        case Judge():
            return item.name
        case Utility():
            return item.encoder.name
        case Role():
            return item.name
    return type(item).__name__


def keys_of(plan: Plan) -> dict[str, str]:
    """The keys of all items of a plan, by kind and name."""
    keys = {}
    for item in items_in(plan, Item):
        if not isinstance(item, Samples | Views):  # which have no names
            name = f"{type(item).__name__} {named(item)}"
            assert keys.setdefault(name, item.key) == item.key, f"two items are called {name}"
    return keys


def moved(change: Callable[[dict[str, Any]], None]) -> set[str]:
    """The items that have another key after a change; none comes or goes."""
    before, after = keys_of(planned()), keys_of(planned(change))
    assert before.keys() == after.keys()
    return {name for name, key in before.items() if after[name] != key}


def set_field(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        *parents, last = place.split(".")
        inner: Any = raw
        for parent in parents:
            inner = inner[int(parent)] if isinstance(inner, list) else inner.setdefault(parent, {})
        inner[last] = value

    return change


def test_equal_items_have_equal_keys() -> None:
    one, two = planned(), planned()
    assert one is not two and one == two and hash(one) == hash(two)
    assert keys_of(one) == keys_of(two)
    assert len({item.key for item in items_in(one, Item)}) == len(items_in(one, Item))
    for item in items_in(one, Item):
        assert item.key == key_of(type(item).__name__, item.fields)


def test_a_kind_is_part_of_a_key() -> None:
    assert key_of("Blind", {"seed": 0}) != key_of("Semantic", {"seed": 0})
    assert Samples((), 0) != Views()


def test_a_setting_of_an_encoder_moves_all_that_is_read_of_it_and_nothing_else() -> None:
    of_shadow = moved(set_field("encoders.shadow.optimizer", {"learning_rate": 0.001}))
    every = keys_of(planned())
    queries = {name for name in every if name.startswith(("Encoder shadow", "Query shadow", "Reading shadow"))}
    assert len(queries) > 8
    fits = {name for name in every if name.startswith("Fit") and ": shadow" in name}
    assert {name.partition(":")[0] for name in fits} == {"Fit encodermi-t", "Fit lpla"}  # and LpLA on the reference
    beside = {name for name in every if name.startswith("Beside shadow")}
    judged = {name for name in every if name.startswith(("Score", "Judge"))}  # each has the shadow as its reference
    assert of_shadow == {*queries, *fits, *beside, *judged, "Utility shadow", "Plan Plan"}
    unmoved = every.keys() - of_shadow
    assert {"Encoder target", "Utility target", "Blind Blind"} <= unmoved
    known = "target-member+target-nonmember"
    assert {f"Query target projection pairwise {role}" for role in known.split("+")} <= unmoved
    assert any(name.startswith("Fit lpla: target") for name in unmoved)


def test_a_setting_of_an_encoder_moves_those_that_start_from_it() -> None:
    def with_tuned(raw: dict[str, Any]) -> None:
        raw["encoders"]["tuned"] = {"like": "target", "start": "target"}
        raw["encoders"]["other"] = {"like": "target"}
        raw["encoders"]["tuned"]["optimizer"] = raw["encoders"]["other"]["optimizer"] = {"learning_rate": 0.002}

    def changed(raw: dict[str, Any]) -> None:
        with_tuned(raw)
        raw["encoders"]["target"]["optimizer"] = {"learning_rate": 0.001}
        raw["encoders"]["shadow"]["optimizer"] = {"learning_rate": 0.005}

    before, after = keys_of(planned(with_tuned)), keys_of(planned(changed))
    differ = {name for name, key in before.items() if after[name] != key and name.startswith("Encoder")}
    assert differ == {"Encoder target", "Encoder tuned"}


def test_a_parameter_of_an_attack_moves_its_fit_and_what_is_judged_by_it() -> None:
    def with_vector(raw: dict[str, Any]) -> None:
        raw["attacks"] = [{"attack": "encodermi-t"}, {"attack": "encodermi-v", "epochs": 20}]

    def longer(raw: dict[str, Any]) -> None:
        with_vector(raw)
        raw["attacks"][1]["epochs"] = 30

    before, after = keys_of(planned(with_vector)), keys_of(planned(longer))
    differ = {name for name, key in before.items() if after[name] != key}
    assert {name.partition(" ")[0] for name in differ} == {"Fit", "Score", "Judge", "Plan"}
    assert all("encodermi-v" in name for name in differ - {"Plan Plan"})


def test_the_order_of_a_norm_is_another_measure() -> None:
    differ = moved(set_field("attacks.1.p", 1))
    assert {name.partition(" ")[0] for name in differ} == {
        "Query", "Reading", "Fit", "Beside", "Score", "Judge", "Plan",
    }  # fmt: skip
    told = {name for name in differ if name.startswith(("Query", "Reading", "Fit", "Score", "Beside", "Judge"))}
    assert all("norm" in name or "lpla" in name for name in told)


def test_the_number_of_views_moves_what_is_read_off_views() -> None:
    differ = moved(set_field("queries.views", 6))
    queries = {name for name in differ if name.startswith("Query")}
    assert queries == {name for name in keys_of(planned()) if name.startswith("Query") and " pairwise " in name}
    assert not {name for name in differ if name.startswith(("Encoder", "Utility", "Blind"))}


@pytest.mark.parametrize("field", [{"nonce": "dice"}, {"repeats": 2}, {"feature_precision": "float16"}])
def test_how_answers_are_taken_moves_every_query_and_no_encoder(field: dict[str, Any]) -> None:
    differ = moved(lambda raw: raw["queries"].update(field))
    every = keys_of(planned())
    queries = {name for name in every if name.startswith("Query")}
    assert queries <= differ
    assert not {name for name in differ if name.startswith(("Encoder", "Role", "Blind"))}


def test_another_draw_moves_what_is_about_its_role() -> None:
    config = parse(small_config(checkpoints="last"), "x")
    roles = roles_in_config(config)
    other = resolve(config, 0, roles | {"shadow-nonmember": replace(roles["shadow-nonmember"], digest="other")})
    before, after = keys_of(plan_in(config)), keys_of(other)
    differ = {name for name, key in before.items() if after[name] != key}
    queries = {name for name in differ if name.startswith("Query")}
    assert queries == {name for name in before if name.startswith("Query") and name.endswith(" shadow-nonmember")}
    assert {name for name in differ if name.startswith("Fit")} == {
        name for name in before if name.startswith("Fit encodermi-t")
    }
    assert not {name for name in differ if name.startswith(("Encoder", "Judge lpla", "Blind"))}


def test_another_seed_is_another_draw_of_everything_random() -> None:
    config = parse(small_config(checkpoints="last"), "x")
    before, after = keys_of(plan_in(config)), keys_of(plan_in(config, seed=1))
    same = {name for name, key in before.items() if after[name] == key}
    assert {name.partition(" ")[0] for name in same} == {"Role", "Protocol"}


def test_what_classes_mean_moves_what_reads_them() -> None:
    def task(values: list[int]) -> Callable[[dict[str, Any]], None]:
        def change(raw: dict[str, Any]) -> None:
            halves = {"low": values, "high": [digit for digit in range(10) if digit not in values]}
            raw["data"] |= {"attributes": {"task": {"from": "class", "values": halves}}, "label": "task"}
            raw["encoders"]["head"] = {
                "objective": "supervised", "backbone": "conv4", "train_on": "target-member", "epochs": 3,
                "batch_size": 30, "parameters": {"classes": 2},
            }  # fmt: skip
            raw["attacks"] = [{"attack": "encodermi-t"}]

        return change

    before, after = keys_of(planned(task([0, 1, 2, 3, 4]))), keys_of(planned(task([0, 1])))
    differ = {name for name, key in before.items() if after[name] != key}
    encoders = {name for name in differ if name.startswith("Encoder")}
    assert encoders == {"Encoder head"}  # SimCLR reads no class
    assert {name for name in differ if name.startswith("Query")} == {name for name in before if "Query head" in name}
    assert {"Utility target", "Utility shadow", "Utility head"} <= differ
    assert {name for name in before if name.startswith("Judge")} <= differ  # tables are made by classes


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("queries.batch_views", 64),
        ("queries.chunk", 16),
        ("validity", {"attack": 1}),
        ("resources", {"encoder_actors": 2}),
        ("data.max_rejected", 0.5),
    ],
)
def test_what_changes_no_result_moves_no_key(place: str, value: Any) -> None:
    differ = moved(set_field(place, value))
    assert differ <= {"Plan Plan"}  # a plan has the whole section of the data


def test_fields_that_are_not_keyed_move_no_key() -> None:
    plan = planned()
    role, judge, protocol = plan.roles[0], plan.judges[0], items_in(plan, Protocol)[0]
    for item, changed in (
        (role, replace(role, count=role.count + 1)),
        (role, replace(role, part_of="another")),
        (judge, replace(judge, primary=not judge.primary)),
        (protocol, replace(protocol, batch_views=1)),
    ):
        assert changed.key == item.key
        assert changed == item
    assert replace(role, digest="another").key != role.key
    assert replace(judge, last=not judge.last).key != judge.key
    assert replace(protocol, repeats=2).key != protocol.key


def test_a_default_that_is_spelled_out_moves_no_key() -> None:
    assert Samples((), 0, None, (), "all").key == Samples((), 0).key
    assert Protocol("d", "", "float32", 1, "float32").key == Protocol("d").key

    def spelled(raw: dict[str, Any]) -> None:
        raw["attacks"][1] |= {"p": 2, "target": "target"}
        raw["queries"] |= {"repeats": 1, "feature_precision": "float32", "batch_views": 640}
        raw["encoders"]["target"]["objective"] = "simclr"
        raw["encoders"]["target"]["optimizer"] |= {"weight_decay": decay}

    encoder = parse(small_config(), "x").encoders["target"]
    assert isinstance(encoder, TrainedConfig)
    decay = encoder.optimizer["weight_decay"]
    assert LpNorm() == LpNorm(2)
    assert moved(spelled) == set()


def test_limits_of_an_api_move_no_key_and_its_address_does() -> None:
    def served(**settings: Any) -> Callable[[dict[str, Any]], None]:
        def change(raw: dict[str, Any]) -> None:
            shadow = raw["encoders"]["target"] | {"train_on": "shadow-member"}
            endpoint = {"url": "http://127.0.0.1:9/embed", "outputs": ["backbone", "projection"]} | settings
            raw["encoders"] = {"target": {"endpoint": endpoint}, "shadow": shadow}

        return change

    keys = keys_of(planned(served()))
    patient = keys_of(planned(served(timeout_s=7.0, concurrency=1, batch=3, price_per_image=1, max_spend=9)))
    assert patient == keys
    other = keys_of(planned(served(url="http://127.0.0.1:9/other")))
    assert {"Encoder target"} == {name for name, key in keys.items() if other[name] != key and "Encoder" in name}


def test_keys_are_equal_where_a_plan_is_sent() -> None:
    """As Ray sends it to a worker, which takes the keys anew."""
    from ray import cloudpickle

    code = """
import pickle, sys
from pipelines.plan.items import Item, items_in
items = items_in(pickle.load(sys.stdin.buffer), Item)
for item in items:
    vars(item).pop("key", None)
print(*(item.key for item in items))
"""
    plan = planned()
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, input=cloudpickle.dumps(plan), capture_output=True, check=True
    )
    assert told.stdout.decode().split() == [item.key for item in items_in(plan, Item)]
