"""An encoder behind an API, audited over a live server: as if it were here, every image paid for once, faults told."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections import Counter
from dataclasses import fields
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cluster.serve_encoder import Reply
from mi_core.augmentations import AUGMENTATIONS
from mi_core.encoders.batch_norm import for_queries
from mi_core.encoders.remote.encoder import png_bytes
from mi_core.encoders.remote.meter import Limits, Meter
from mi_core.encoders.remote.parameters import IDENTITY, EndpointParameters
from mi_core.features.embedding import LpNorm
from mi_core.features.pairwise_similarity import PairwiseSimilarity
from mi_core.querying.extractor import Extractor
from mi_core.querying.plan import QueryPlan
from mi_core.report.contents import schema
from mi_core.streams import pixel_streams
from pipelines.audit import run as audit
from pipelines.config.run_config import RunConfig
from pipelines.config.sections.parameters import build
from pipelines.data.draw.draw import draw
from pipelines.data.draw.images import load_images
from pipelines.data.draw.splits import Splits
from pipelines.data.scan.scan import scan
from pipelines.encoders.access import Access
from pipelines.encoders.adopt import CHECKED, REPEATED, try_out
from pipelines.encoders.stored import describe
from pipelines.errors import UserError, fault_of_user
from pipelines.estimate.run import estimate, lines
from pipelines.plan.load import parse
from pipelines.run.folder import FREE, RunFolder
from tests.conftest import small_config
from tests.endpoints import FaultyServer, status
from tests.pipelines.served import ASKED, AUDITED, PROBE, ROLES, charged, config_of, features, raw_config, trained

pytestmark = pytest.mark.ray


class Rounded(torch.nn.Module):
    """An encoder that sees what a PNG of 8 bits holds."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder, self.size = encoder, encoder.size

    def forward(self, images: torch.Tensor) -> Any:
        return self.encoder((images * 255).round() / 255)


def asked_since(server: FaultyServer, before: Counter[bytes]) -> int:
    """Different images that arrived since; each did once, but for those that show whether it is the same encoder."""
    since = server.images - before
    assert sum(since.values()) == len(since) + CHECKED
    return len(since)


@pytest.mark.slow
def test_an_audit_over_http_is_the_audit_itself(
    server: FaultyServer, folder: Path, trained_run: Path, finished_run: Path
) -> None:
    config = config_of(server, {"batch": 50, "price_per_image": 0.01})
    audit.run(config, str(folder), last="pretrain")
    assert server.asked == PROBE
    probe = Counter(server.images)
    time.sleep(1)  # starts are told apart by the second
    audit.run(config, str(folder))
    place = RunFolder(str(folder)).seed(0)

    loaded = load_images(config.data, Splits.load(place.path), ROLES)
    plain = Extractor(
        {"target": Rounded(trained(trained_run)), "here": trained(trained_run)},  # type: ignore[dict-item]
        QueryPlan((LpNorm(), PairwiseSimilarity()), ("backbone", "projection"), views=4),
        build(AUGMENTATIONS["simclr"], describe(place, "target").record.config["augmentation"]),
        torch.device("cpu"),
    )
    shown = torch.from_numpy(loaded.images)
    computed = plain(shown, pixel_streams("n", 0, "query", shown), loaded.ids)
    for output in ("backbone", "projection"):
        over_http = features(config, folder, output, 0)
        for need, values in over_http.items():
            column = f"{output}.{need}"
            np.testing.assert_allclose(values, computed["target"][column], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(values, computed["here"][column], rtol=0.02, atol=0.005)  # rounding to 8 bits

    report = json.loads((folder / "report.json").read_text())
    reference = json.loads((finished_run / "report.json").read_text())
    jsonschema.validate(report, schema())
    assert (report["validity"]["by"], reference["validity"]["by"]) == ("choice", "lot")
    aucs = {(row["attack"], row["output"]): row["auc"]["value"] for row in reference["attacks"] if row["epoch"] == 3}
    for row in report["attacks"]:
        assert row["auc"]["value"] == pytest.approx(aucs[row["attack"], row["output"]], abs=0.06)  # other views

    entries = [entry for entry in report["queries"]["entries"] if entry["encoder"] == "target"]
    assert {entry["role"]: entry["queries"] for entry in entries}["(probe)"] == PROBE + CHECKED
    assert sum(entry["queries"] for entry in entries) == PROBE + CHECKED + ASKED
    assert server.asked == PROBE + CHECKED + asked_since(server, probe)
    assert asked_since(server, probe) < ASKED, "some crops of 8 pixels are equal"
    assert charged(folder, server).images == server.asked
    assert charged(folder, server).requests == server.requests
    target = report["encoders"]["target"]
    assert target["spend"]["money"] == pytest.approx(0.01 * server.asked)
    assert target["answers"].startswith("answers with 128 numbers for the backbone, 32 numbers for the projection, and")
    assert target["answers"].endswith("and gives the same answer again (16 images sent twice)")
    html = (folder / "report.html").read_text()
    assert f"At most {server.requests} requests with " in html.replace(",", "")
    assert not (folder / "seed-0/encoders/target/epoch-0000.safetensors").exists()

    sent = server.asked  # a finished run asks nothing, another start with lost features only whether it is the same
    audit.run(config, str(folder))
    assert server.asked == sent
    for lost in ("features", "seed-0/attacks"):
        shutil.rmtree(folder / lost)
    audit.run(config, str(folder))
    assert server.asked == sent + CHECKED
    again = json.loads((folder / "report.json").read_text())
    assert [row["auc"] for row in again["attacks"]] == [row["auc"] for row in report["attacks"]]
    probed = [entry for entry in again["queries"]["entries"] if entry["role"] == "(probe)"]
    assert [entry["queries"] for entry in probed] == [PROBE + 2 * CHECKED]


@pytest.mark.slow
def test_errors_of_the_server_are_no_crashes_and_lose_nothing(server: FaultyServer, folder: Path) -> None:
    """After as many failures as a chunk may crash, it is still asked."""
    config = config_of(server, {"cache": False})
    audit.run(config, str(folder), last="pretrain")

    def refused(reply: Reply) -> Reply:
        check = len(reply.content["embeddings"]["backbone"]) == CHECKED
        return reply if check else status(400)(reply)

    server.always = refused
    for _ in range(4):
        with pytest.raises(UserError, match="status 400, .*check url, model and api_key_env"):
            audit.run(config, str(folder), last="extract")
    server.always = None
    audit.run(config, str(folder), last="extract")
    assert features(config, folder, "projection", 0)["norm:2"].shape == (AUDITED,)
    assert charged(folder, server).images == server.asked


@pytest.mark.slow
def test_other_weights_are_noticed(server: FaultyServer, folder: Path, trained_run: Path) -> None:
    config = config_of(server)
    audit.run(config, str(folder), last="pretrain")
    time.sleep(1)  # starts are told apart by the second
    first = describe(RunFolder(str(trained_run)).seed(0), "target").load(1)
    server._embed = for_queries(first, "cpu")
    with pytest.raises(Exception) as caught:
        audit.run(config, str(folder), last="extract")
    fault = fault_of_user(caught.value)
    assert fault is not None
    assert "encoders.target.endpoint: its answers have changed since adoption, by" in fault
    assert "redo with --force pretrain" in fault
    assert server.asked == charged(folder, server).images == PROBE + CHECKED
    server._embed = trained(trained_run)
    time.sleep(1)
    audit.run(config, str(folder), last="extract")
    tagged = config_of(server, {"weights_tag": "v2"})
    with pytest.raises(UserError, match="changed: encoders.target.endpoint.weights_tag"):
        audit.run(tagged, str(folder), last="extract")


def test_a_server_whose_answers_depend_on_the_batch_is_refused(server: FaultyServer, folder: Path) -> None:
    """Batch norm in training mode is this: every answer holds the mean of its batch."""
    answer = server._embed
    server._embed = lambda images: {name: rows - rows.mean(dim=0) for name, rows in answer(images).items()}
    with pytest.raises(Exception) as caught:
        audit.run(config_of(server), str(folder), last="pretrain")
    fault = fault_of_user(caught.value)
    assert fault is not None and "encoders.target.endpoint: the answer to an image depends on the other images" in fault


@pytest.mark.slow
def test_noise_and_unit_lengths_are_noticed_and_told(server: FaultyServer, folder: Path, trained_run: Path) -> None:
    """The server adds noise to the backbone, and normalises the projection and rounds it to half precision."""
    encoder = trained(trained_run)

    def disguised(images: torch.Tensor) -> dict[str, torch.Tensor]:
        backbone, projection = encoder(images).values()
        noise = 0.01 * backbone.norm(dim=1, keepdim=True) * F.normalize(torch.randn_like(backbone), dim=1)
        return {"backbone": backbone + noise, "projection": F.normalize(projection, dim=1).half().float()}

    server._embed = disguised
    audit.run(config_of(server), str(folder))
    report = json.loads((folder / "report.json").read_text())
    noise = describe(RunFolder(str(folder)).seed(0), "target").record.answers["noise"]
    assert noise["n"] == REPEATED
    assert 0.012 < noise["median"] <= noise["largest"] < 0.021  # two errors of 1 %, at random angles
    (caveat,) = (caveat for caveat in report["caveats"] if "sent twice" in caveat)
    assert "gives a different answer again" in caveat
    assert "the median difference is 0.01" in caveat
    assert [(row["attack"], row["output"]) for row in report["not_applicable"]] == [("lpla", "projection")]
    assert "normalised, and their length tells nothing" in report["not_applicable"][0]["reason"]
    assert "; embeddings of projection are scaled to length 1" in report["encoders"]["target"]["answers"]
    assert ("lpla", "backbone") in {(row["attack"], row["output"]) for row in report["attacks"]}


def test_an_estimate_counts_everything_and_asks_nothing(server: FaultyServer, local_ray: None, tmp_path: Path) -> None:
    config = config_of(server, {"requests_per_second": 2, "price_per_image": 0.5, "batch": 40})
    found = estimate([(config, RunFolder(str(tmp_path / "run")))], seconds=0.3)
    assert server.requests == 0
    assert found.encoders["target"]["queries"].value == PROBE + ASKED
    (told,) = [note for note in found.notes if "behind an API" in note]
    requests = -(-(PROBE + ASKED) // 40)
    assert f"at 2 requests per second its answers take {requests / 2 / 3600:.3g} h at least" in told
    assert f"they cost {0.5 * (PROBE + ASKED):.4g}," in told
    assert found.stages["extract"]["wall_hours"].low >= requests / 2 / 3600
    assert next(lines(found)).startswith("The run takes at least ")
    assert not list(tmp_path.iterdir())


def drawn(config: RunConfig) -> Splits:
    return draw(config.data, scan(config.data), 0)


def test_a_key_comes_from_the_environment(server: FaultyServer, folder: Path) -> None:
    config = config_of(server, {"api_key_env": "NO_SUCH_KEY"})
    with pytest.raises(UserError, match="encoders.target.endpoint.api_key_env = 'NO_SUCH_KEY': the environment variab"):
        audit.run(config, str(folder), last="extract")
    with pytest.raises(UserError, match="NO_SUCH_KEY"):
        list(try_out(config, drawn(config), 0))
    assert server.requests == 0
    assert dict(try_out(config_of(server), drawn(config), 0)) == {
        "target": "embeddings as json answers hold them, not queried here, outputs backbone, projection"
    }


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ({"adapter": "xml"}, "encoders.target: endpoint.adapter = 'xml', allowed: cohere, gemini, jina, json"),
        ({"bach": 3}, "unknown key encoders.target.endpoint.bach; did you mean batch? allowed: adapter, api_key_env"),
        ({"batch": "many"}, "encoders.target.endpoint.batch = 'many': "),
        ({"url": "host/x"}, "endpoint.url = 'host/x', allowed: http://... or https://..."),
        ({"max_spend": 3}, "endpoint.max_spend = 3.0 without a price"),
        ({"outputs": ["backbone"]}, "asks for 'projection', but the encoder 'target' has backbone"),
    ],
)
def test_mistakes_are_one_line(server: FaultyServer, endpoint: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config_of(server, endpoint)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_address_with_more_in_it_is_refused_and_shown_nowhere(tmp_path: Path) -> None:
    """Nor by the traceback that --debug shows."""
    config = small_config()
    for secret in ("?auth=hushed", "?pw=hushed", "#hushed"):
        config["encoders"]["target"] = {"endpoint": {"url": f"https://host/v1{secret}", "outputs": ["backbone"]}}
        with pytest.raises(
            UserError, match="url holds something after https://host/v1, which would be shown"
        ) as caught:
            parse(config, "served.yaml")
        assert "hushed" not in "".join(traceback.format_exception(caught.value))


def test_parameters_of_an_address_reach_the_server_and_secret_ones_nothing_else(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, code = date(2024, 2, 1), {"code": "VISION_CODE"}  # YAML reads such a version as a date
    config = config_of(server, {"query": {"api-version": version, "v": 3}, "query_env": code})
    parameters = config.encoders["target"].parameters()  # type: ignore[union-attr]
    with pytest.raises(UserError, match="endpoint.query_env.code = 'VISION_CODE': the environment variable is not set"):
        Access(str(tmp_path), None).client("target", parameters)
    monkeypatch.setenv("VISION_CODE", "hushed%")
    client = Access(str(tmp_path), None).client("target", parameters)
    client.account = Meter(Limits())
    client.embed(png_bytes(torch.rand(2, 1, 8, 8)))
    assert server.paths == ["/json?api-version=2024-02-01&v=3&code=hushed%25"]
    assert "hushed" not in str(config.model_dump()) + str(parameters.identity())
    assert parameters.identity()["query"] == {"api-version": "2024-02-01", "v": "3"}
    assert "query" not in config_of(server).encoders["target"].parameters().identity()  # type: ignore[union-attr]


@pytest.mark.parametrize(("own", "why"), [({}, "behind an API"), ({"load": "onnx", "weights": "w"}, "an ONNX file")])
def test_what_needs_weights_is_refused(server: FaultyServer, own: dict[str, str], why: str) -> None:
    config = raw_config(server, {"outputs": ["backbone", "logits"]})
    config["encoders"]["target"] = own or config["encoders"]["target"]
    config["encoders"]["other"] = {**config["encoders"]["shadow"], "objective": "supervised", "parameters": {}}
    config["attacks"] = [{"attack": "baseline-c", "target": "other", "reference": "target"}]
    with pytest.raises(UserError, match=f"'target' is {why}, but baseline-c crafts images by the gradients"):
        parse(config, "served.yaml")
    config["encoders"]["shadow"] |= {"start": "target"}
    with pytest.raises(UserError, match=f"shadow.start = 'target' is {why}: there are no weights"):
        parse(config, "served.yaml")
    config = raw_config(server)
    config["encoders"]["target"] |= {"backbone": "conv4"}
    with pytest.raises(UserError, match="unknown key encoders.target.backbone; "):
        parse(config, "served.yaml")


def test_only_what_answers_depend_on_makes_another_encoder() -> None:
    free = [field.name for field in fields(EndpointParameters) if field.name not in IDENTITY]
    allowed = [f"encoders.x.endpoint.{name}" for name in free]
    assert [key for key in allowed if any(fnmatchcase(key, one) for one in FREE)] == allowed
    assert not [name for name in IDENTITY if any(fnmatchcase(f"encoders.x.endpoint.{name}", one) for one in FREE)]
