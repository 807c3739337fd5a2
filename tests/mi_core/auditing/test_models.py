"""Encoders as programs have them; an untrained copy that kept nothing of what was learned."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mi_core.auditing.models import Preparation, given_reference, model_of, reinitialised
from mi_core.checks import ConfigError, ShapeError
from mi_core.encoders import build_backbone
from mi_core.encoders.checkpoint import Encoder, fingerprint, weights_bytes
from mi_core.encoders.remote.parameters import EndpointParameters

HOW = Preparation(16)


class Tokens(nn.Module):
    """A network with parameters of its own, as transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.full((1, 1, 8), 3.0) + torch.randn(1, 1, 8))
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("place", torch.arange(8.0))
        self.layer = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = self.layer(images).mean(dim=(2, 3))[:, None] * self.scale + self.token + self.place
        return self.attention(seen, seen, seen)[0][:, 0]


def test_fresh_weights_keep_nothing_that_was_learned() -> None:
    torch.manual_seed(1)
    network = Tokens()
    for _ in range(3):
        network.train()(torch.rand(4, 3, 16, 16))  # moves batch norm's statistics
    before = fingerprint(network)
    torch.manual_seed(0)
    fresh = reinitialised(network)
    assert fingerprint(network) == before
    for name, one in fresh.named_parameters():
        own = network.get_parameter(name)
        if own.ndim > 1:
            assert not torch.equal(one, own), name
            assert abs(float(np.corrcoef(one.detach().flatten(), own.detach().flatten())[0, 1])) < 0.9, name
    assert torch.equal(fresh.layer[1].running_mean, torch.zeros(8))  # type: ignore[index,union-attr]
    assert torch.equal(fresh.scale, network.scale) and torch.equal(fresh.place, network.place)  # type: ignore[arg-type]
    spreads = [one.get_parameter("token").detach().std() for one in (fresh, network)]
    assert 0.3 < float(spreads[0] / spreads[1]) < 3


class Stubborn(nn.Linear):
    def reset_parameters(self) -> None:
        """Keeps what it has, as a network that loads its weights anew."""


def test_a_network_that_cannot_be_built_anew_is_named() -> None:
    layer = Stubborn(4, 4)
    nn.init.normal_(layer.weight)
    with pytest.raises(ConfigError, match=r"1\.weight keeps its trained values"):
        reinitialised(nn.Sequential(nn.Flatten(), layer))


def test_a_network_and_its_fresh_copy_are_of_one_kind() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8))
    target = model_of(network, HOW)
    images = torch.rand(2, 3, 16, 16)
    answer = target.encoder(images)["backbone"]
    assert torch.equal(answer, network(images))
    first, again, other = (model_of(network, Preparation(16, seed=seed)).reference for seed in (0, 0, 1))
    assert first is not None and again is not None and other is not None
    assert torch.equal(first(images)["backbone"], again(images)["backbone"])  # of the seed alone
    for one in (answer, other(images)["backbone"]):
        assert not torch.equal(first(images)["backbone"], one)
    layer = Stubborn(3 * 16 * 16, 8, bias=False)
    nn.init.normal_(layer.weight)
    assert model_of(nn.Sequential(nn.Flatten(), layer), HOW).reference is None


def test_normalisation_reaches_the_network() -> None:
    target = model_of(lambda images: images.flatten(1), Preparation(2, mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 1.0)))
    answer = target.encoder(torch.ones(1, 3, 2, 2))["backbone"].reshape(3, 4)[:, 0]
    assert answer.tolist() == [2.0, 1.0, 0.5]


def test_a_function_has_no_weights_to_read_or_reset() -> None:
    def embed(images: torch.Tensor) -> Any:
        return images.mean(dim=(2, 3)).numpy()

    target = model_of(embed, HOW)
    assert (target.reference, target.part.load) == (None, "the Python function embed")


NAMED, API = "checkpoint:conv4", "https://a.example/json"


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("resnet50", {}, "model = 'resnet50': give kind:architecture"),
        ("checkpoint:resnet18", {}, "needs weights; give weights=FILE"),
        ("python:m:f", {}, "runs code of others; give trust_code=True"),
        (7, {}, "model is a int"),
        (API, {"mean": (0.5,) * 3}, "mean is given, but model is an API"),
        (API, {"weights": "file"}, "weights is given, but model is an API"),
        (NAMED, {"key": "secret"}, "key is given, but model is a named encoder"),
        (nn.Flatten(), {"weights": "file"}, "weights is given, but model is a Python network"),
        (nn.Flatten(), {"weights_key": "ema"}, "weights_key is given, but model is a Python network"),
        (nn.Flatten(), {"endpoint": {"batch": 2}}, "endpoint is given, but model is a Python network"),
        (Encoder(nn.Flatten(), {}, *2 * [torch.ones(1)]), {"std": (1.0,)}, "std is given, but model is an encoder of"),
        (lambda images: images.sum(), {}, "expected an embedding"),
        (lambda images: (images, images), {}, r"returned a tuple of 0, 1; .*lambda x: model\(x\)\[0\]"),
    ],
)
def test_what_is_no_encoder_or_has_no_use_for_an_argument(model: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ShapeError), match=message):
        model_of(model, Preparation(16, **settings))


def test_a_reference_gets_nothing_of_the_audited_encoder(tmp_path: Path) -> None:
    """Neither its weights, which would make the reference the target, nor its key, which is another host's."""
    files = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        files.append(tmp_path / f"{seed}.safetensors")
        surroundings = torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1)
        files[-1].write_bytes(weights_bytes(Encoder(build_backbone("conv4", 3, 16), {}, *surroundings)))
    how = Preparation(16, files[0], (0.1,) * 3, (0.2,) * 3)
    target, other = model_of("checkpoint:conv4", how), given_reference(("checkpoint:conv4", files[1]), how, 0)
    assert other.part.fingerprint == model_of("checkpoint:conv4", Preparation(16, files[1])).part.fingerprint
    assert other.part.fingerprint != target.part.fingerprint
    assert other.settings == {"load": "checkpoint:conv4", "weights": str(files[1])}
    with pytest.raises(ConfigError, match=r"references\[2\] = 'checkpoint:conv4' needs weights; give the pair"):
        given_reference("checkpoint:conv4", how, 2)


def test_the_entry_of_a_file_is_chosen_and_stands_in_the_config(tmp_path: Path) -> None:
    torch.manual_seed(0)
    raw, average = build_backbone("conv4", 3, 16), build_backbone("conv4", 3, 16)
    file = tmp_path / "both.pth"
    torch.save({"state_dict": raw.state_dict(), "model_ema": average.state_dict()}, file)
    taken = model_of("checkpoint:conv4", Preparation(16, file, weights_key="model_ema"))
    assert fingerprint(taken.encoder.backbone) == fingerprint(average)
    assert taken.settings == {"load": "checkpoint:conv4", "weights": str(file), "weights_key": "model_ema"}
    usual = model_of("checkpoint:conv4", Preparation(16, file))
    assert usual.part.fingerprint != taken.part.fingerprint and "weights_key" not in (usual.settings or {})
    with pytest.raises(ConfigError, match="weights_key = 'ema', but the file has state_dict, model_ema"):
        model_of("checkpoint:conv4", Preparation(16, file, weights_key="ema"))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (".metadata", "is a folder of torch.distributed.checkpoint; write python -m .* dcp_to_torch"),
        ("zero_to_fp32.py", "is a folder of DeepSpeed"),
        ("config.json", "is a folder of a model; give the file in it"),
        ("other", "is no file"),
    ],
)
def test_a_folder_in_place_of_a_file_is_named_for_what_it_is(tmp_path: Path, file: str, message: str) -> None:
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(ConfigError, match=message):
        model_of("checkpoint:conv4", Preparation(16, tmp_path))


def clients_of(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What clients of APIs are made with from here on."""
    made: list[dict[str, Any]] = []

    def client(parameters: EndpointParameters, meter: Any, **secrets: Any) -> Any:
        made.append(secrets)
        return SimpleNamespace(parameters=parameters)

    monkeypatch.setattr("mi_core.auditing.models.Client", client)
    return made


def test_a_reference_behind_an_api_gets_no_key_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made = clients_of(monkeypatch)
    how = Preparation(16, endpoint={"model": "a", "adapter": "openai"}, key="secret")
    remote = given_reference("https://b.example/json", how, 0)
    assert remote.settings == {"endpoint": {"url": "https://b.example/json"}}
    assert "secret" not in str(made)


def test_secrets_of_an_api_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    made, url = clients_of(monkeypatch), "https://a.example/json"
    monkeypatch.setenv("VISION_KEY", "one")
    monkeypatch.setenv("VISION_CODE", "two")
    endpoint = {"api_key_env": "VISION_KEY", "query_env": {"code": "VISION_CODE"}}
    model_of(url, Preparation(16, endpoint=endpoint))
    model_of(url, Preparation(16, endpoint=endpoint, key="given"))
    assert made == [{"key": key, "query": {"code": "two"}} for key in ("one", "given")]
    monkeypatch.delenv("VISION_KEY")
    with pytest.raises(ConfigError, match=r"endpoint\.api_key_env = 'VISION_KEY': the environment variable is not set"):
        model_of(url, Preparation(16, endpoint=endpoint))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_images_reach_a_network_in_its_own_precision(dtype: torch.dtype) -> None:
    """The embedding is close to that of float32; the network stays as it was."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 8))
    images = torch.rand(2, 3, 16, 16)
    exact = network.eval()(images)
    found = model_of(network.to(dtype), HOW)
    answer = found.encoder(images)["backbone"]
    assert answer.dtype == torch.float32 and network[0].weight.dtype == dtype
    torch.testing.assert_close(answer, exact, rtol=0.05, atol=0.02)
    assert found.answers.words() == f"images reach it as {str(dtype)[6:]}, in which it computes"
    assert found.reference is not None
    assert model_of(network.float(), HOW).answers.words() == ""


def test_a_network_whose_first_layer_alone_is_half_gets_half() -> None:
    """As CLIP's networks in half precision, whose tokens and norms stay float32."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.ones(8))
            self.layer = nn.Conv2d(3, 8, 16).half()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.layer(images).flatten(1).float() + self.token

    assert "float16" in model_of(Mixed(), HOW).answers.words()


class Odd(nn.Conv2d):
    def reset_parameters(self, scheme: str = "") -> None:
        if hasattr(self, "made"):
            raise KeyError(scheme)
        self.made = True
        super().reset_parameters()


def uncopied(fault: str) -> nn.Module:
    network = nn.Sequential(Odd(3, 4, 3) if fault == "reset" else nn.Conv2d(3, 4, 3), nn.Flatten())
    if fault == "lock":
        network.lock = threading.Lock()  # type: ignore[assignment]
    if fault == "weight norm":
        network[0] = nn.utils.weight_norm(network[0])  # type: ignore[arg-type]
        network[0](torch.rand(1, 3, 16, 16))
    return network


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("fault", ["lock", "reset", "weight norm"])
def test_a_network_that_cannot_be_copied_or_reset_is_audited_without_an_untrained_one(fault: str) -> None:
    found = model_of(uncopied(fault), HOW)
    assert found.reference is None
    assert found.encoder(torch.rand(2, 3, 16, 16))["backbone"].shape == (2, 4 * 14 * 14)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_quantised_network_is_one_line_and_its_function_is_audited() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8)).eval()
    quantised = torch.ao.quantization.quantize_dynamic(network, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ConfigError, match="model is a quantised network, .*; give its forward, a function$"):
        model_of(quantised, Preparation(16))
    assert model_of(quantised.forward, Preparation(16)).reference is None
