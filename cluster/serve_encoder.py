"""A reference server: an encoder of a run folder behind HTTP, in all the shapes that `endpoint:` encoders can ask.

    python cluster/serve_encoder.py --encoder RUN/seed-0/encoders/target --port 8000

POST /json and /multipart answer with every output of the encoder; the other paths with the one that ``model`` names,
the backbone by default. For tests and demonstrations: it has no access control and one process.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import numpy as np
import torch

from mi_core.image_files import ImageError, load_image

MOST_BYTES = 512 * 2**20
Embed = Callable[[torch.Tensor], Mapping[str, torch.Tensor]]
"""Images (B, C, H, W) in [0, 1] to (B, D) by output: an encoder."""


class Reply(NamedTuple):
    """What is answered to a request."""

    status: int
    content: Any
    headers: Mapping[str, str] = {}


class BadRequestError(ValueError):
    """The request is not of the shape that its path takes."""


class EncoderServer(ThreadingHTTPServer):
    """Serves one encoder until it is shut down.

    Args:
        address: host and port; port 0 takes a free one.
        embed: the encoder.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], embed: Embed) -> None:
        super().__init__(address, _Handler)
        self._embed = embed
        self._one = threading.Lock()

    @property
    def url(self) -> str:
        """Where it answers, without a path."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def respond(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """The answer to one POST request."""
        try:
            path = path.partition("?")[0]
            parse = _PARSERS.get(path)
            if parse is None:
                return Reply(404, {"error": f"no {path}; there are {', '.join(_PARSERS)}"})
            images, model = parse(headers, body)
            return Reply(200, _SHAPES[path](self.answer(images), model))
        except BadRequestError as error:
            return Reply(400, {"error": str(error)})

    def answer(self, images: Sequence[bytes]) -> dict[str, list[list[float]]]:
        """Embeddings of image files, by output."""
        pixels = torch.from_numpy(np.stack(_decoded(images))).float() / 255
        with self._one, torch.inference_mode():
            embeddings = self._embed(pixels.contiguous(memory_format=torch.channels_last))
        return {output: rows.float().tolist() for output, rows in embeddings.items()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open
    wbufsize = -1  # head and body leave in one packet
    disable_nagle_algorithm = True
    server: EncoderServer

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        if length > MOST_BYTES:
            self.close_connection = True
            self._send(Reply(413, {"error": f"more than {MOST_BYTES} bytes"}))
            return
        self._send(self.server.respond(self.path, dict(self.headers.items()), self.rfile.read(length)))

    def _send(self, reply: Reply) -> None:
        content = reply.content if isinstance(reply.content, bytes) else json.dumps(reply.content).encode()
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged."""


def _decoded(images: Sequence[bytes]) -> list[np.ndarray]:
    if not images:
        raise BadRequestError("no images")
    found = []
    for number, data in enumerate(images):
        try:
            image = load_image(data).image
        except ImageError as error:
            raise BadRequestError(f"image {number} is no image file: {error}") from error
        if image.mode not in ("L", "RGB"):
            raise BadRequestError(f"image {number} has the mode {image.mode}, allowed: L (grey), RGB")
        pixels = np.asarray(image)
        found.append(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
    if len({pixels.shape for pixels in found}) > 1:
        raise BadRequestError("images of one request are of one size")
    return found


def _content(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError("the body is no JSON") from error
    if not isinstance(content, dict):
        raise BadRequestError("the body is no JSON object")
    return content


def _base64(texts: Any) -> list[bytes]:
    try:
        return [base64.b64decode(text, validate=True) for text in texts]
    except (TypeError, ValueError) as error:
        raise BadRequestError("images are a list of base64 texts") from error


def _json_images(headers: Mapping[str, str], body: bytes) -> tuple[list[bytes], str | None]:
    content = _content(body)
    return _base64(content.get("images")), content.get("model")


def _multipart_images(headers: Mapping[str, str], body: bytes) -> tuple[list[bytes], str | None]:
    kind = headers.get("Content-Type", headers.get("content-type", ""))
    form = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    if not form.is_multipart():
        raise BadRequestError("the body is no multipart form")
    files = [part for part in form.iter_parts() if part.get_param("name", header="content-disposition") == "images"]
    return [bytes(part.get_payload(decode=True)) for part in files], None


def _openai_images(headers: Mapping[str, str], body: bytes) -> tuple[list[bytes], str | None]:
    content = _content(body)
    if not isinstance(content.get("input"), list):
        raise BadRequestError("input is a list of data URLs, or of Jina's images")
    texts = [one.get("image") if isinstance(one, dict) else _after_base64(one) for one in content["input"]]
    return _base64(texts), content.get("model")


def _by_output(embeddings: dict[str, list[list[float]]], model: str | None) -> Any:
    return {"embeddings": embeddings}


def _openai(embeddings: dict[str, list[list[float]]], model: str | None) -> Any:
    rows = _one_output(embeddings, model)
    entries = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    return {"object": "list", "model": model or "backbone", "data": entries}


def _voyage_images(headers: Mapping[str, str], body: bytes) -> tuple[list[bytes], str | None]:
    content = _content(body)
    try:
        urls = [part["image_base64"] for one in content["inputs"] for part in one["content"]]
    except (KeyError, TypeError) as error:
        raise BadRequestError("inputs are a list of contents with one image_base64 each") from error
    return _base64([_after_base64(url) for url in urls]), content.get("model")


def _cohere_images(headers: Mapping[str, str], body: bytes) -> tuple[list[bytes], str | None]:
    content = _content(body)
    if content.get("input_type") != "image" or not isinstance(content.get("images"), list):
        raise BadRequestError('input_type is "image", and images is a list of data URLs')
    return _base64([_after_base64(url) for url in content["images"]]), content.get("model")


def _one_image(*way: str | int) -> Callable[[Mapping[str, str], bytes], tuple[list[bytes], str | None]]:
    def parse(headers: Mapping[str, str], body: bytes) -> tuple[list[bytes], str | None]:
        found: Any = _content(body)
        try:
            for part in way:
                found = found[part]
        except (LookupError, TypeError) as error:
            raise BadRequestError(f"the image stands under {way}") from error
        return _base64([found]), None

    return parse


def _after_base64(url: Any) -> str:
    if not isinstance(url, str) or not url.startswith("data:"):
        raise BadRequestError("images are data URLs")
    return url.partition("base64,")[2]


def _one_output(embeddings: dict[str, list[list[float]]], model: str | None) -> list[list[float]]:
    if (model or "backbone") not in embeddings:
        raise BadRequestError(f"model = {model!r}, allowed: {', '.join(embeddings)}")
    return embeddings[model or "backbone"]


def _cohere(embeddings: dict[str, list[list[float]]], model: str | None) -> Any:
    return {"embeddings": {"float": _one_output(embeddings, model)}}


_TITAN = "/model/amazon.titan-embed-image-v1/invoke"
_VERTEX = "/v1/publishers/google/models/multimodalembedding@001:predict"
_GEMINI = "/v1beta/models/gemini-embedding-2:embedContent"
_PARSERS = {
    "/json": _json_images,
    "/multipart": _multipart_images,
    "/v1/embeddings": _openai_images,
    "/v1/multimodalembeddings": _voyage_images,
    "/v2/embed": _cohere_images,
    _TITAN: _one_image("inputImage"),
    _VERTEX: _one_image("instances", 0, "image", "bytesBase64Encoded"),
    _GEMINI: _one_image("content", "parts", 0, "inline_data", "data"),
}
_SHAPES = {
    "/json": _by_output,
    "/multipart": _by_output,
    "/v1/embeddings": _openai,
    "/v1/multimodalembeddings": _openai,
    "/v2/embed": _cohere,
    _TITAN: lambda embeddings, model: {"embedding": _one_output(embeddings, model)[0]},
    _VERTEX: lambda embeddings, model: {"predictions": [{"imageEmbedding": _one_output(embeddings, model)[0]}]},
    _GEMINI: lambda embeddings, model: {"embedding": {"values": _one_output(embeddings, model)[0]}},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until Ctrl-C."""
    from mi_core.encoders.batch_norm import for_queries
    from pipelines.encoders.stored import StoredEncoder
    from pipelines.files import storage

    parser = argparse.ArgumentParser(description="Serve an encoder of a run folder over HTTP.")
    parser.add_argument("--encoder", required=True, help="its folder, RUN/seed-K/encoders/NAME")
    parser.add_argument("--epoch", type=int, help="a kept epoch; default the last")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    chosen = parser.parse_args(arguments)
    path = f"{chosen.encoder}/encoder.json"
    if not storage.exists(path):
        parser.error(f"--encoder {chosen.encoder} holds no encoder.json")
    stored = StoredEncoder(chosen.encoder, storage.read_json(path))
    epoch = stored.epochs[-1] if chosen.epoch is None else chosen.epoch
    if epoch not in stored.epochs:
        parser.error(f"--epoch {epoch}, allowed: {', '.join(map(str, stored.epochs))}")
    with EncoderServer((chosen.host, chosen.port), for_queries(stored.load(epoch), "cpu")) as server:
        sys.stdout.write(f"serving {chosen.encoder} at epoch {epoch} on {server.url}{{{','.join(_PARSERS)}}}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
