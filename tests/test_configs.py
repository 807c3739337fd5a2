"""Every config that is shipped loads; the papers' recipes hold the papers' settings; extending merges as it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import yaml

from mi_core.encoders import build_backbone
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.encoders import TrainedConfig
from pipelines.data.read.attributes import Attributes
from pipelines.data.read.samples import Sample
from pipelines.errors import UserError
from pipelines.plan.items import Query, items_in
from pipelines.plan.load import loaded_from, read_values
from pipelines.plan.rules import ThreatModel
from pipelines.report.attacks import knowledge
from pipelines.run.folder import RunFolder
from pipelines.run.points import Point, points
from tests.pipelines.undrawn import plan_in
from tests.raising import refused

CONFIGS = Path(__file__).parents[1] / "configs"
WHOLE = sorted(path for path in CONFIGS.rglob("*.yaml") if "cpu" not in path.parent.parts)
PUBLISHED = ("clip-mia-bench", "dov4mm", "salmubench")  # large models of others: no version for two cores
RECIPES = [
    path
    for path in WHOLE
    if path.parent.name == "papers" and not path.stem.endswith("-cpu") and path.stem not in PUBLISHED
]
SMALL = [path for path in WHOLE if path.stem.endswith("-cpu")]
EQUAL = [path for path in WHOLE if path.stem.startswith(("encodermi-", "lpla-", "alm-"))]
TEST_SPLIT = 10_000  # images of CIFAR-10, CIFAR-100 and Tiny-ImageNet


@cache
def size_of(backbone: str) -> int:
    return sum(weights.numel() for weights in build_backbone(backbone, 3, 32).parameters())


@cache
def loaded(path: Path) -> RunConfig:
    """The config, its missing paths filled in."""
    raw = read_values(str(path), ())
    missing = [name for name, source in raw["data"]["sources"].items() if source["kind"] in ("shards", "imagefolder")]
    return loaded_from(raw, str(path), [f"data.sources.{name}.path=somewhere" for name in missing])


@cache
def points_of(path: Path) -> list[Point]:
    """The points of the config's sweeps."""
    return points(loaded(path), RunFolder("x"))


def trained(config: RunConfig, name: str = "target") -> TrainedConfig:
    encoder = config.encoders[name]
    assert isinstance(encoder, TrainedConfig)
    return encoder


def judged(config: RunConfig) -> set[tuple[int, int]]:
    """Members and non-members that each attack is judged on, without those that it is fitted on."""
    roles = config.data.roles
    sizes = {name: role.count or round(TEST_SPLIT * (role.fraction or 0)) for name, role in roles.items()}
    found = set()
    for attack in config.attacks:
        known = {roles[role].source_name: sizes[role] for role in ThreatModel(config).roles_fitted_on_target(attack)}
        left = [
            min(attack.count or sizes[role], sizes[role]) - known.get(role, 0)
            for role in ThreatModel(config).audited_roles
        ]
        found.add((left[0], left[1]))
    return found


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_it_loads(path: Path) -> None:
    config = loaded(path)
    assert config.name == path.stem
    if path.stem in ("quickstart", "cifar10", "cifar10-resnet18"):
        assert trained(config, "shadow").epochs == trained(config).epochs
        assert trained(config, "shadow").train_on == ("shadow-member",)
    named = set(config.validity.references)  # an attack that asks one of them does without
    beside = [attack for attack in config.attacks if not named & {attack.target, attack.before}]
    assert beside and all(map(ThreatModel(config).references_of, beside))  # a verdict is possible
    asked = items_in(plan_in(config), Query)
    for name, encoder in config.encoders.items():
        if isinstance(encoder, TrainedConfig):
            assert name in {query.encoder.name for query in asked}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_has_a_sibling_for_cpus(path: Path) -> None:
    large, small = loaded(path), loaded(path.with_name(f"{path.stem}-cpu.yaml"))
    assert small.resources.train_gpus == small.resources.gpus_per_actor == 0
    assert set(small.encoders) == set(large.encoders)
    for name, encoder in large.encoders.items():
        if isinstance(encoder, TrainedConfig):
            own = trained(small, name)
            assert (own.objective, own.start) == (encoder.objective, encoder.start)
            assert own.train_on == tuple(role for role in encoder.train_on if role != "unjudged-member")
            members = sum(small.data.roles[role].count or 0 for role in own.train_on)
            assert members * own.epochs <= 300_000  # images, what two cores train on in minutes
    tried = [Counter((attack.attack, attack.target) for attack in config.attacks) for config in (small, large)]
    assert tried[0] == tried[1]


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_two_cores_train_small_networks_alone(path: Path) -> None:
    """Also at the points of the sweeps that a config takes over from its recipe.

    In float32: a CPU without instructions for bfloat16 is many times slower with it.
    """
    config = loaded(path)
    for point in (config, *(point.config for point in points_of(path))):
        made = [encoder for encoder in point.encoders.values() if isinstance(encoder, TrainedConfig)]
        found = {encoder.backbone for encoder in made}
        assert all(size_of(backbone) < 1_000_000 for backbone in found), found
        assert {encoder.precision for encoder in made} <= {"float32"}


@pytest.mark.parametrize("path", EQUAL, ids=lambda path: path.stem)
def test_as_many_members_as_others_are_judged_on_the_papers_output(path: Path) -> None:
    """EncoderMI and LpLA attack the backbone; accuracies compare where guessing is right in half of the cases."""
    config = loaded(path)
    assert ThreatModel(config).primary_output == ("logits" if path.stem.startswith("alm-") else "backbone")
    for point in (config, *(point.config for point in points_of(path))):
        assert all(members == others > 0 for members, others in judged(point))


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "tiny-imagenet"])
def test_lpla_table_1(data: str) -> None:
    config = loaded(CONFIGS / "papers" / f"lpla-{data}.yaml")
    counts = {name: role.count for name, role in config.data.roles.items()}
    assert trained(config, "moco-v1").train_on == ("target-member", "unjudged-member")
    assert counts["target-member"] + counts["unjudged-member"] == 20_000
    assert counts["target-member"] - counts["known-member"] == counts["target-nonmember"] - counts["known-nonmember"]
    assert counts["target-nonmember"] == 10_000
    assert counts["known-member"] == counts["known-nonmember"] == counts["anchor"] == 2000
    assert config.utility.k == (20,)
    assert config.data.image_size == (64 if data == "tiny-imagenet" else 32)
    for version in (1, 2, 3):
        target = trained(config, f"moco-v{version}")
        assert target.objective == f"moco-v{version}"
        assert (target.epochs, target.batch_size) == (2000, 512 if version == 3 else 256)
        assert target.parameters.get("queue") == (None if version == 3 else 16_384)
        mine = {attack.attack for attack in config.attacks if attack.target == f"moco-v{version}"}
        assert mine == {"lpla", "encodermi-v", "sd-mi", "feature-mi"}
    assert {attack.reference for attack in config.attacks} == {"known"}
    assert all(
        ThreatModel(config).references_of(attack) == (f"stranger-{attack.target[5:]}",) for attack in config.attacks
    )
    norms = [
        point.config.attacks[0].parameters().p for point in points(config, RunFolder("x")) if point.sweep[-1] == "p"
    ]
    assert norms == [0, 1, 2, 3, 4, 5]  # figure 8


@pytest.mark.parametrize("name", ["lpla-cifar10", "lpla-tiny-imagenet", "lpla-cifar10-cpu", "lpla-tiny-imagenet-cpu"])
def test_lpla_with_random_pixels_as_known_nonmembers(name: str) -> None:
    """Section 4.2: they replace the real ones, alone, and as many images of either side are judged."""
    config = loaded(CONFIGS / f"papers/{name}.yaml")
    real, random = (p.config for p in points(config, RunFolder("x")) if p.sweep == "known non-members")
    assert real.plain() == config.plain()
    noise = random.data.roles["known-nonmember"]
    options = random.data.sources[noise.source_name].options
    assert (random.data.sources[noise.source_name].kind, options["size"]) == ("noise", config.data.image_size)
    assert options["count"] == noise.count == real.data.roles["known-nonmember"].count
    assert judged(random) == judged(real)
    assert (random.encoders, random.attacks) == (real.encoders, real.attacks)


def test_lpla_with_three_times_the_epochs() -> None:
    short, long = (loaded(CONFIGS / f"papers/lpla-cifar10-{name}.yaml") for name in ("cpu", "long-cpu"))
    before, after = trained(short, "moco-v3"), trained(long, "moco-v3")
    assert after.epochs == 3 * before.epochs
    assert set(before.kept_epochs) < set(after.kept_epochs)
    same = {"epochs": 1, "checkpoints": ()}
    assert after.model_copy(update=same) == before.model_copy(update=same)
    assert short.data == long.data
    assert {attack.target for attack in long.attacks} == {"moco-v3"}


def test_lpla_with_transformers() -> None:
    """As MoCo v3 trains them: AdamW, 1.5e-4 x batch / 256, tau .2, three layers, fixed patches."""
    config = loaded(CONFIGS / "papers/lpla-cifar100-vit.yaml")
    by_label = {p.label: p.config for p in points(config, RunFolder("x")) if p.sweep == "backbone"}
    for label, point in by_label.items():
        assert {trained(point, name).backbone for name in point.encoders} == {f"{label}/4"}
    assert list(by_label) == ["vit-s", "vit-b"]
    for version in (1, 2, 3):
        encoder = trained(config, f"moco-v{version}")
        assert encoder.objective == f"moco-v{version}"
        assert encoder.optimizer["name"] == "adamw"
        assert encoder.optimizer["learning_rate"] == pytest.approx(1.5e-4 * encoder.batch_size / 256)
    heads = {"temperature": 0.2, "projection_layers": 3, "prediction_norm": True, "freeze_patches": True}
    assert trained(config, "moco-v3").parameters | heads == trained(config, "moco-v3").parameters


def test_lpla_on_the_official_weights() -> None:
    config = loaded(CONFIGS / "papers/lpla-official.yaml")
    assert {attack.attack for attack in config.attacks} == {"lpla"}
    assert {ThreatModel(config).references_of(attack) for attack in config.attacks} == {("fresh",)}
    assert {name: encoder.fresh for name, encoder in config.encoders.items()} == {
        "moco-v2": False, "moco-v3": False, "fresh": True,
    }  # fmt: skip
    assert [point.value for point in points(config, RunFolder("x"))] == [0, 1, 2, 3]  # table 4
    sides = [config.data.roles[role].source_name for role in ThreatModel(config).audited_roles]
    assert sides == ["train", "test"]  # other data, a shift, which the header says


def test_encodermi_on_other_data() -> None:
    """Table 1 without labels has no baseline B; STL-10's downstream task is CIFAR-10; figure 2 is on STL-10."""
    baselines = loaded(CONFIGS / "papers/encodermi-stl10-baselines.yaml")
    ours, others = {"encodermi-v", "encodermi-s", "encodermi-t"}, {"baseline-a", "baseline-c"}
    assert {attack.attack for attack in baselines.attacks} == ours | others | {"feature-mi", "patch-similarity"}
    for name in ("baselines", "knowledge"):
        config = loaded(CONFIGS / f"papers/encodermi-stl10-{name}.yaml")
        assert config.data.roles["target-member"].source_name == "train"
        assert config.data.roles["target-nonmember"].fraction == 1
        assert ThreatModel(config).utility_roles("target") == (("downstream-train",), ("downstream-test",))
        assert {config.data.roles[role].source_name for role in ("downstream-train", "downstream-test")} == {"other"}
    sizes = points_of(CONFIGS / "papers/encodermi-stl10-ablations.yaml")
    assert {point.sweep for point in sizes} == {"pre-training size", "shadow size"}
    for sweep in ("pre-training size", "shadow size"):
        assert [p.value for p in sizes if p.sweep == sweep] == [5000, 10_000, 15_000, 20_000, 25_000]
    for data in ("cifar10", "stl10", "tiny-imagenet"):
        assert loaded(CONFIGS / f"papers/encodermi-{data}-knowledge.yaml").data.image_size == 32


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("celeba", "000001.jpg", {"gender": "male"}),
        ("utkface", "25_0_2_20170116.jpg", {"gender": "male", "race": "asian", "age": "18 to 30"}),
        ("defenses-utkface", "61_1_4_20170116.jpg", {"gender": "female", "race": "other"}),
        ("places100", "a/airfield/1.jpg", {"indoor": "outdoor", "scene": "airfield"}),
        ("places50", "a/alley/1.jpg", {"indoor": "outdoor", "scene": "alley"}),
        ("places20", "a/alley/1.jpg", {"indoor": "outdoor", "scene": "alley"}),
        ("defenses-places100", "a/alley/1.jpg", {"indoor": "outdoor", "scene": "alley"}),
    ],
)
@pytest.mark.parametrize("suffix", ["", "-cpu"])
def test_attributes_of_data_that_is_not_here(
    name: str, key: str, values: dict[str, str], suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of files and lines of tables as the data sets have them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list_attr_celeba.txt").write_text("1\nBald Male Young \n000001.jpg -1  1 -1\n")
    (tmp_path / "IO_places365.txt").write_text("/a/airfield 2\n/a/alley 2\n/b/bakery/shop 1\n")
    config = loaded(CONFIGS / f"papers/contrastiveleaks-{name}{suffix}.yaml")
    numbers = Attributes(config.data.attributes).values_of(Sample(key, b"", None))
    assert {one: config.data.attributes[one].names[number] for one, number in numbers.items()} == values
    assert config.data.label in values
    inferred = {inference.attribute for inference in config.attribute_inference}
    assert inferred == set(values) - {config.data.label}
    hidden = {e.attribute for e in config.encoders.values() if isinstance(e, TrainedConfig) and e.attribute}
    assert hidden == (inferred if name.startswith("defenses") else set())


@pytest.mark.parametrize(("data", "classes"), [("cifar10", 10), ("cifar100", 100), ("stl10", 10)])
def test_noise_on_a_head_has_the_papers_sizes(data: str, classes: int) -> None:
    config = loaded(CONFIGS / f"papers/alm-{data}.yaml")
    assert trained(config).parameters["classes"] == classes
    assert config.data.roles["target-member"].count == (5000 if data == "stl10" else 10_000)  # table 1
    mechanisms = {defense.defense for defense in config.defenses}
    assert {"additive-logistic", "additive-laplace", "additive-gaussian"} <= mechanisms


@pytest.mark.parametrize("data", ["cifar10", "stl10", "tiny-imagenet"])
def test_encodermis_eight_kinds_of_knowledge(data: str) -> None:
    for name in (f"encodermi-{data}-knowledge", f"encodermi-{data}-knowledge-cpu"):
        config = loaded(CONFIGS / "papers" / f"{name}.yaml")
        found = [knowledge(ThreatModel(config), attack) for attack in config.attacks]
        rows = {astuple(one) for one in found if one is not None}
        assert rows == set(product([True, False], repeat=3))
        crops = {
            attack.reference: ThreatModel(config).recipe_of(attack).settings["flip"] == 0 for attack in config.attacks
        }
        assert {reference for reference, alone in crops.items() if alone} == {
            "unknown-t", "unknown-pt", "unknown-et", "unknown-pet",
        }  # fmt: skip


def test_encodermis_figures_as_sweeps() -> None:
    config = loaded(CONFIGS / "papers/encodermi-cifar10-ablations.yaml")
    found = points(config, RunFolder("x"))
    sizes = [p.config.data.roles["target-member"].count for p in found if p.sweep == "pre-training size"]
    assert sizes == [5000, 10_000, 15_000, 20_000, 25_000]
    shared = [p.config for p in found if p.sweep == "augmentations shared"]
    names = ["grayscale", "flip", "jitter_probability"]
    gained = [[name for name in names if trained(one).augmentation[name]] for one in shared]
    assert gained == [names[:count] for count in (0, 1, 1, 2, 3)]
    assert [next(iter(trained(one).augmentation["crop_scale"])) for one in shared] == [1, 1, 0.2, 0.2, 0.2]
    for one in shared:  # the inferrer's views stay
        assert trained(one, "shadow").augmentation == trained(config, "shadow").augmentation
        assert ThreatModel(one).recipe_of(one.attacks[0]).settings == trained(config, "shadow").augmentation


def test_encodermi_and_contrastiveleaks() -> None:
    config = loaded(CONFIGS / "papers/encodermi-cifar10-moco-v1.yaml")
    target = trained(config)
    assert len(target.kept_epochs) == 4  # figure 5
    assert len(trained(loaded(CONFIGS / "papers/encodermi-cifar10-moco-v1-cpu.yaml")).kept_epochs) == 3
    assert (target.epochs, config.data.roles["target-member"].count) == (1600, 10_000)
    assert target.parameters | {"queue": 4096, "momentum": 0.99, "temperature": 0.1} == target.parameters
    assert {attack.attack for attack in config.attacks} == {"encodermi-v", "encodermi-s", "encodermi-t"}
    config = loaded(CONFIGS / "papers/contrastiveleaks-stl10-simclr.yaml")
    assert [trained(config, name).start for name in ("base", "target", "target-classifier", "target-supervised")] == [
        None, "base", "target", None,
    ]  # fmt: skip
    assert trained(config, "target-classifier").parameters["freeze_backbone"]
    assert not trained(config, "target-supervised").parameters["freeze_backbone"]
    assert ThreatModel(config).members_of("target-classifier") == {"unlabeled-images", "target-member"}
    assert ThreatModel(config).classifier_roles("target-classifier")[0] == ("target-member",)
    assert {encoder.epochs for encoder in config.encoders.values() if isinstance(encoder, TrainedConfig)} == {100}


@pytest.mark.parametrize("name", ["cifar10-classes", "stl10", "cifar10-classes-cpu", "stl10-cpu"])
def test_contrastiveleaks_task_of_ten_classes(name: str) -> None:
    config = loaded(CONFIGS / f"papers/contrastiveleaks-{name}.yaml")
    assert (config.data.label, config.data.attributes, config.attribute_inference) == (None, {}, ())
    parts = ("target-member", "target-nonmember", "shadow-member", "shadow-nonmember")
    assert len({config.data.roles[role].count for role in parts}) == 1
    metrics = {f"metric-{metric}" for metric in ("conf", "loss", "corr", "ent", "ment")}
    for kind in ("classifier", "supervised"):
        assert trained(config, f"target-{kind}").parameters["classes"] == 10
        tried = [attack for attack in config.attacks if attack.target == f"target-{kind}"]
        assert {attack.attack for attack in tried} == {*metrics, "posterior-nn", "posterior-mlp", "label-only"}
        assert {attack.reference for attack in tried} == {f"shadow-{kind}"}
    tops = [
        {attack.parameters().top for attack in point.config.attacks if attack.attack == "posterior-nn"}
        for point in points(config, RunFolder("x"))
        if point.sweep == "attacks.*.top"
    ]
    assert tops == [{2}, {3}, {5}, {10}]


@pytest.mark.parametrize(
    ("name", "widths"),
    [("cifar10", [512, 1280, 2048]), ("cifar10-classes", [512, 1280, 2048]), ("cifar10-embedding-cpu", [32, 128, 256])],
)
def test_contrastiveleaks_widths_of_the_embedding(name: str, widths: list[int]) -> None:
    """Every encoder of a point has the width that its label says; else classifiers would not fit, or not compare."""
    found = [p for p in points_of(CONFIGS / f"papers/contrastiveleaks-{name}.yaml") if p.sweep == "embedding"]
    assert [point.value for point in found] == widths
    for point in found:
        (backbone,) = {trained(point.config, name).backbone for name in point.config.encoders}
        assert build_backbone(backbone, 3, 32).width == point.value


def test_auditing_an_encoder_from_elsewhere() -> None:
    config = loaded(CONFIGS / "audit-encoder.yaml")
    assert ThreatModel(config).audited_roles == ("candidate", "control")
    assert ThreatModel(config).groups_by == "choice" and ThreatModel(config).audits_others
    names = tuple(f"reference-{number}" for number in range(4))
    assert ThreatModel(config).references_of(config.attacks[0]) == ThreatModel(config).classifying_references == names
    for number, name in enumerate(names):
        one = trained(config, name)
        assert (one.half, one.train_on, one.size) == (number, ("candidate", "control"), 32)


def test_extending(tmp_path: Path) -> None:
    for name, content in {
        "a.yaml": {"x": {"one": 1, "two": 2}, "list": [1, 2], "gone": 3},
        "b.yaml": {"x": {"two": 3}},
        "c.yaml": {"extends": ["a.yaml", "b.yaml"], "x": {"three": None}, "list": [4], "gone": None},
        "circle.yaml": {"extends": "circle.yaml"},
        "lost.yaml": {"extends": "nowhere.yaml"},
    }.items():
        (tmp_path / name).write_text(yaml.safe_dump(content))
    assert read_values(f"{tmp_path}/c.yaml", ()) == {"x": {"one": 1, "two": 3, "three": None}, "list": [4]}
    refused(UserError, r"goes in a circle: .*circle.yaml -> .*circle.yaml", read_values, f"{tmp_path}/circle.yaml", ())
    refused(UserError, "nowhere.yaml is no file", read_values, f"{tmp_path}/lost.yaml", ())
