"""Noise on the head: its distribution, what it depends on, what it leaves alone, and that it survives being stored."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torch import nn

from mi_core.checks import ConfigError, NumericError
from mi_core.defenses import additive_noise
from mi_core.defenses.additive_noise import (
    QUANTILES,
    AdditiveGaussian,
    AdditiveLaplace,
    AdditiveLogistic,
    AdditiveNoise,
    NoiseParameters,
)
from mi_core.defenses.base import ProviderData, numbers
from mi_core.defenses.convex_head import sensitivity_bound, solve_head
from mi_core.defenses.head import head_inputs
from mi_core.defenses.privacy import NORMS, calibrated, guarantee, present_or_not, random_dp_gamma, standard_deviation
from mi_core.defenses.sensitivity import HeadTraining, draw_pairs, pair_distance, train_head
from mi_core.encoders.checkpoint import Encoder, fingerprint, load_weights, weights_bytes
from mi_core.hashing import digest64
from mi_core.training.optimizers import OptimizerParameters
from tests.mi_core.defenses.classifiers import classifier, digits
from tests.mi_core.defenses.test_privacy import slow_epsilon
from tests.raising import refused

NOISES: list[type[AdditiveNoise]] = [AdditiveLogistic, AdditiveLaplace, AdditiveGaussian]
DISTRIBUTIONS = {"logistic": stats.logistic, "laplace": stats.laplace, "gaussian": stats.norm}
REPORTED = {"report.scale", "report.standard_deviation", "report.weights"}


@pytest.fixture(params=NOISES, ids=lambda method: method.name)
def method(request: pytest.FixtureRequest) -> type[AdditiveNoise]:
    chosen: type[AdditiveNoise] = request.param
    return chosen


def flat(state: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    return np.concatenate([state["logits.weight"].ravel(), state["logits.bias"]]).astype(np.float64)


def test_quantiles_are_those_of_scipy_and_finite_at_the_ends_of_the_uniforms(
    method: type[AdditiveNoise], monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution = DISTRIBUTIONS[method.mechanism]
    probabilities = np.array([2.0**-49, 1e-6, 0.2, 0.5, 0.7, 1 - 1e-6, 1 - 2.0**-49])
    found = QUANTILES[method.mechanism](probabilities)
    np.testing.assert_allclose(found, distribution.ppf(probabilities), rtol=1e-12, atol=1e-15)
    for number, probability in ((0.0, 2.0**-49), (1 - 2.0**-24, 1 - 2.0**-49)):
        ends = torch.full((1, 6), number)
        monkeypatch.setattr(additive_noise, "uniforms", lambda *_, ends=ends, **__: ends)
        drawn = method(NoiseParameters(scale=2.0)).noise("head", 3)
        np.testing.assert_allclose(drawn, 2 * distribution.ppf(probability), rtol=1e-12)


def test_it_is_a_function_of_seed_scale_head_and_position(method: type[AdditiveNoise]) -> None:
    first = method(NoiseParameters(scale=0.5), seed=3)
    torch.manual_seed(0)
    drawn = first.noise("head", 1000)
    torch.manual_seed(1)
    np.testing.assert_array_equal(method(NoiseParameters(scale=0.5), seed=3).noise("head", 1000), drawn)
    np.testing.assert_array_equal(first.noise("head", 400), drawn[:400])
    others = [
        first.noise("another", 1000),
        method(NoiseParameters(scale=0.5), seed=4).noise("head", 1000),
        method(NoiseParameters(scale=1.0), seed=3).noise("head", 1000),
        *(other(NoiseParameters(scale=0.5), seed=3).noise("head", 1000) for other in NOISES if other is not method),
    ]
    for other in others:
        assert abs(stats.spearmanr(other, drawn).statistic) < 4.5 / np.sqrt(1000)


def test_the_weights_get_the_noise_and_nothing_else_changes(method: type[AdditiveNoise]) -> None:
    encoder, data = classifier(), digits()
    before, images = fingerprint(encoder), data.images[:20].float() / 255
    clean = flat({f"logits.{name}": tensor.numpy() for name, tensor in encoder.heads["logits"].state_dict().items()})
    defense = method(NoiseParameters(scale=0.05), seed=2)
    state = defense.fit(encoder, data)
    served = defense.defended(encoder, state)
    noise = defense.noise(fingerprint(encoder.heads["logits"]), 1290)
    np.testing.assert_array_equal(flat(state), (clean + noise).astype(np.float32))
    assert fingerprint(encoder) == before != fingerprint(served)
    with torch.no_grad():
        expected, found = encoder(images), served(images)
    assert list(found) == ["backbone", "projection", "logits"]
    assert torch.equal(found["projection"], expected["projection"])
    weight, bias = (torch.from_numpy(state[f"logits.{name}"]) for name in ("weight", "bias"))
    torch.testing.assert_close(found["logits"], nn.functional.linear(expected["projection"], weight, bias))
    assert not torch.equal(found["logits"], expected["logits"])
    assert served.backbone is encoder.backbone
    assert not served.training
    assert numbers(state) == {
        "scale": 0.05,
        "standard_deviation": standard_deviation(method.mechanism, 0.05),
        "weights": 1290.0,
    }


def test_no_noise_changes_no_bit(method: type[AdditiveNoise]) -> None:
    encoder, data = classifier(), digits()
    with torch.no_grad():
        encoder.heads["logits"].bias[0] = -0.0  # adding 0 would turn it into +0
    defense = method(NoiseParameters(scale=0))
    state = defense.fit(encoder, data)
    served = defense.defended(encoder, state)
    assert fingerprint(served) == fingerprint(encoder)
    assert not np.shares_memory(state["logits.bias"], encoder.heads["logits"].bias.detach().numpy())
    assert torch.equal(served(data.images[:9] / 255)["logits"], encoder(data.images[:9] / 255)["logits"])


def test_a_defended_encoder_survives_being_stored(method: type[AdditiveNoise]) -> None:
    encoder, data = classifier(), digits()
    defense = method(NoiseParameters(scale=0.1), seed=5)
    state = defense.fit(encoder, data)
    served = defense.defended(encoder, state)
    stored = io.BytesIO()
    np.savez(stored, **state)
    stored.seek(0)
    with np.load(stored, allow_pickle=False) as arrays:
        again = method().defended(encoder, dict(arrays))
    assert fingerprint(again) == fingerprint(served)
    fresh = classifier(seed=9)
    load_weights(fresh, weights_bytes(served))
    assert torch.equal(fresh(data.images[:9] / 255)["logits"], served(data.images[:9] / 255)["logits"])


def test_every_layer_of_a_deeper_head_gets_noise() -> None:
    head = nn.Sequential(nn.Linear(128, 16, bias=False), nn.ReLU(), nn.Linear(16, 10))
    encoder = classifier(head=head)
    defense = AdditiveLaplace(NoiseParameters(scale=0.1))
    state = defense.fit(encoder, digits())
    assert set(state) - REPORTED == {"logits.0.weight", "logits.2.weight", "logits.2.bias"}
    served = defense.defended(encoder, state).heads["logits"].state_dict()
    for name, tensor in head.state_dict().items():
        assert ((served[name] - tensor).abs() > 0).float().mean() > 0.99
    assert numbers(state)["weights"] == 128 * 16 + 170


def test_mistakes_are_named() -> None:
    data, noise = digits(), AdditiveLogistic(NoiseParameters(scale=1e5))
    refused(ConfigError, r"scale = -1, allowed: \[0, inf\]", NoiseParameters, -1)
    bare = classifier()
    del bare.heads["logits"]
    refused(ConfigError, "the defense additive-logistic needs a classifier", noise.fit, bare, data)
    refused(ConfigError, "the head logits has no weights to defend", noise.fit, classifier(head=nn.Identity()), data)
    with pytest.raises(ConfigError, match=r"keeps statistics of its training data \(1\.running_mean\)"):
        noise.fit(classifier(head=nn.Sequential(nn.Linear(128, 10), nn.BatchNorm1d(10))), data)
    with pytest.raises(NumericError, match=r"scale = 100000\.0: the weight of the head overflows; lower scale"):
        noise.fit(classifier(head=nn.Linear(128, 10).half()), data)
    state = noise.fit(classifier(), data)
    refused(ConfigError, "weights do not fit the encoder", noise.defended, classifier(width=64), state)
    refused(ConfigError, "additive-logistic takes NoiseParameters, got int", AdditiveLogistic, 3)


SAMPLED = {"pairs": 6, "epochs": 30, "learning_rate": 0.5}


def labelled() -> ProviderData:
    data = digits()
    return ProviderData(data.images[:80], data.labels[:80])


def test_what_is_guaranteed_is_about_the_head_that_is_served(method: type[AdditiveNoise]) -> None:
    """The clean head is what the sampled training gives on all members, and the distances are those of its pairs."""
    encoder, data = classifier(), labelled()
    silent = method(NoiseParameters(scale=0, **SAMPLED), seed=4)
    prepared = silent.prepare(encoder, data)
    inputs, seed = head_inputs(encoder, data.images).numpy(), digest64("head", fingerprint(encoder))
    training = HeadTraining(
        10, epochs=30, batch_size=0, optimizer=OptimizerParameters("sgd", 0.5, weight_decay=0.0, warmup=0.0)
    )
    labels = data.labels.numpy()
    train = partial(train_head, training=training, seed=seed)
    expected = train(inputs, labels, np.ones(80, dtype=bool))
    state = silent.release(encoder, prepared)
    np.testing.assert_array_equal(flat(state), expected.astype(np.float32))
    distances = [pair_distance(pair, inputs, labels, train) for pair in draw_pairs(80, 6, seed=seed)]
    sensitivity = max(distance[NORMS[method.mechanism] - 1] for distance in distances)
    told = numbers(method(NoiseParameters(scale=0.3, **SAMPLED), seed=4).release(encoder, prepared))
    promised = guarantee(method.mechanism, 0.3, sensitivity)
    assert (told["sensitivity"], told["epsilon"]) == pytest.approx((sensitivity, promised.epsilon))
    assert told.get("delta", 0.0) == promised.delta
    assert (told["pairs"], told["gamma"], told["pairs_for_gamma_5_percent"]) == (6, random_dp_gamma(6), 1305)
    assert "epsilon" not in numbers(state)  # without noise nothing is guaranteed
    wanted = method(NoiseParameters(epsilon=0.8, **SAMPLED), seed=4).release(encoder, prepared)
    assert numbers(wanted)["epsilon"] == pytest.approx(0.8)
    assert numbers(wanted)["scale"] == pytest.approx(calibrated(method.mechanism, 0.8, sensitivity).scale)
    assert not np.allclose(flat(wanted), flat(state))


def test_what_is_prepared_serves_all_mechanisms_scales_and_seeds() -> None:
    encoder, data = classifier(), labelled()
    first = AdditiveLogistic(NoiseParameters(scale=0.1, **SAMPLED), seed=1).prepare(encoder, data)
    asked: list[int] = []

    def spread(function: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
        asked.append(len(arguments))
        return [function(one) for one in reversed(arguments)]

    again = AdditiveGaussian(NoiseParameters(epsilon=2.0, **SAMPLED), seed=2).prepare(encoder, data, spread=spread)
    assert asked == [6]
    assert first.keys() == again.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert AdditiveLogistic(NoiseParameters(scale=0.1)).prepare(encoder, data) == {}


def test_a_sensitivity_needs_classes_and_one_layer() -> None:
    data = labelled()
    sampled = AdditiveLogistic(NoiseParameters(**SAMPLED))
    refused(ConfigError, "needs classes of the training images", sampled.fit, classifier(), ProviderData(data.images))
    with pytest.raises(ConfigError, match="the sensitivity is sampled of one linear layer, not of Sequential"):
        sampled.fit(classifier(head=nn.Sequential(nn.Linear(128, 10), nn.ReLU())), data)
    refused(ConfigError, r"epsilon = 1 needs a sensitivity; set pairs", NoiseParameters, epsilon=1)


CONVEX = {"head": "convex", "penalty": 0.05}


def test_a_convex_head_is_the_optimum_and_what_it_guarantees_is_proved(method: type[AdditiveNoise]) -> None:
    """No gamma: the sensitivity holds for every pair. Sampled pairs, where asked for, are closer than that."""
    encoder, data = classifier(), labelled()
    best = solve_head(head_inputs(encoder, data.images).numpy(), data.labels.numpy(), classes=10, penalty=0.05)
    state = method(NoiseParameters(scale=0, **CONVEX), seed=4).fit(encoder, data)
    np.testing.assert_array_equal(state["logits.weight"], best.astype(np.float32))
    assert "logits.bias" not in state
    sensitivity = sensitivity_bound(0.05, 80, weights=None if method.mechanism == "gaussian" else best.size)
    told = numbers(method(NoiseParameters(epsilon=2.0, pairs=3, **CONVEX), seed=4).fit(encoder, data))
    assert told["sensitivity"] == pytest.approx(sensitivity)
    assert told["scale"] == pytest.approx(calibrated(method.mechanism, 2.0, sensitivity).scale)
    assert told["epsilon"] == pytest.approx(2.0)
    assert 0 < told["sampled_sensitivity"] < sensitivity
    assert "gamma" not in told
    assert told["weights"] == best.size


def test_the_epsilon_of_an_image_that_is_there_or_not_is_told(method: type[AdditiveNoise]) -> None:
    """A scale for 80 images differs from that for 79, and shows the number in every weight."""
    encoder, data = classifier(), labelled()
    settings = NoiseParameters(epsilon=1.0, **CONVEX)
    told = numbers(method(settings, seed=4).fit(encoder, data))
    fixed = numbers(method(NoiseParameters(scale=told["scale"], **CONVEX), seed=4).fit(encoder, data))
    assert "epsilon_leave_one_out" not in fixed
    unscaled = method(NoiseParameters(scale=1.0, **CONVEX))
    assert present_or_not(unscaled.adjacencies, fixed) == pytest.approx((1.0, fixed.get("delta", 0.0)))
    if method.mechanism != "gaussian":
        assert "epsilon_leave_one_out" not in told
        assert present_or_not(method(settings).adjacencies, told) is None
        return
    scales = [calibrated("gaussian", 1.0, sensitivity_bound(0.05, images)).scale for images in (80, 79)]
    expected = slow_epsilon(scales, sensitivity_bound(0.05, 80), int(told["weights"]), 1e-5)
    assert told["epsilon_leave_one_out"] == pytest.approx(expected, rel=1e-6)
    assert expected > 2
    assert present_or_not(method(settings).adjacencies, told) == (told["epsilon_leave_one_out"], 1e-5)


def test_a_convex_head_is_served_on_unit_lengths_and_survives_being_stored(method: type[AdditiveNoise]) -> None:
    encoder, data = classifier(), labelled()
    defense = method(NoiseParameters(scale=0.1, **CONVEX), seed=4)
    state = defense.fit(encoder, data)
    served = defense.defended(encoder, state)
    images = data.images[:5].float() / 255
    with torch.inference_mode():
        inputs = nn.functional.normalize(head_inputs(encoder, data.images[:5]), dim=1)
        expected = inputs @ torch.tensor(state["logits.weight"]).T
        torch.testing.assert_close(served(images)["logits"], expected)
        assert isinstance(encoder.heads["logits"], nn.Linear)  # the plain encoder keeps its own
        again = defense.defended(classifier(), state)
        load_weights(again, weights_bytes(served))
        torch.testing.assert_close(again(images)["logits"], expected)


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize("parameters", [{}, CONVEX], ids=["gradient", "convex"])
def test_a_served_encoder_keeps_its_device_its_text_tower_and_what_else_its_class_does(
    parameters: dict[str, Any],
) -> None:
    class Doubled(Encoder):
        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            return {name: 2 * answer for name, answer in super().forward(images).items()}

    encoder, data = classifier(), labelled()
    tower = nn.Identity()
    rich = Doubled(encoder.backbone, encoder.heads, encoder.mean, encoder.std, text=tower).eval()
    defense = AdditiveGaussian(NoiseParameters(scale=0.1, **parameters), seed=4)
    state = defense.fit(encoder, data)
    served = defense.defended(rich, state)
    assert served.text is tower
    assert not any(part.training for part in served.heads.values())
    images = data.images[:5].float() / 255
    with torch.inference_mode():
        torch.testing.assert_close(served(images)["logits"], 2 * defense.defended(encoder, state)(images)["logits"])
    elsewhere = defense.defended(classifier().to("meta"), state)
    assert {part.device.type for part in elsewhere.parameters()} == {"meta"}


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_a_delta_that_promises_nothing_is_refused_before_anything_is_trained(delta: float) -> None:
    refused(ConfigError, "delta", NoiseParameters, delta=delta)


def test_a_convex_head_wants_replace_one_and_a_penalty() -> None:
    with pytest.raises(ConfigError, match="adjacency = leave-one-out: the sensitivity of a convex head"):
        NoiseParameters(adjacency="leave-one-out", **CONVEX)
    refused(ConfigError, "penalty", NoiseParameters, head="convex", penalty=0)
