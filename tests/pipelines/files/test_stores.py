"""Clients of object stores: one for all requests to a bucket, in the bucket's region, patient with a busy store."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
from pyarrow import fs

from pipelines.errors import UserError
from pipelines.files import storage, stores
from pipelines.files.conditional import Conditional
from pipelines.files.stores import ATTEMPTS, Address, store_of
from tests.conftest import S3_BUSY
from tests.pipelines.files.keys import ODD, check_key


def test_requests_to_a_bucket_share_a_client(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, place = store_of(f"{s3}/a%20folder/one.tar/")
    assert place == "bucket/a%20folder/one.tar"
    assert store_of(f"{s3}/two.tar")[0] is first
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert store_of(f"{s3}/two.tar")[0] is not first  # those credentials may see something else


def test_a_busy_store_is_asked_again(s3: str) -> None:
    """More often than pyarrow by itself, which gives up after three attempts within a second."""
    storage.write_atomic(f"{s3}/busy", b"x")
    try:
        for act in (lambda: storage.read_bytes(f"{s3}/busy"), lambda: storage.write_atomic(f"{s3}/busy", b"y")):
            S3_BUSY.extend([None] * 3)
            act()
            assert not S3_BUSY
    finally:
        S3_BUSY.clear()
    assert ATTEMPTS > 4
    assert storage.read_bytes(f"{s3}/busy") == b"y"


def test_every_client_works_in_the_region_of_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere S3 answers with a redirection, which the client for conditional writes takes for a refusal."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setattr(fs, "resolve_s3_region", {"far": "eu-north-1"}.__getitem__)
    assert store_of("s3://far/run")[0].region == "eu-north-1"
    assert Conditional("s3://far/run/.lock").store.config["region"] == "eu-north-1"


@pytest.mark.parametrize("name", ODD)
def test_a_key_is_read_and_written_as_it_stands(name: str, s3: str, s3_server: str) -> None:
    """By the client that reads and by the one that writes on condition alike; the store holds that key and no other."""
    import boto3

    check_key(s3, name)
    assert storage.create(f"{s3}/odd {name}/{name}.bin", b"1")
    client = boto3.client("s3", endpoint_url=s3_server)
    assert client.get_object(Bucket="bucket", Key=f"odd {name}/{name}.bin")["Body"].read() == b"1"


@pytest.mark.parametrize(
    "address",
    [
        *("s3://AKIA:hush@bucket/x", "s3://hush@bucket/x", "gs://hush@bucket/x", "https://hush@host/x.tar"),
        *("s3://bucket/x?sas=hush", "az://box/x?sv=1&sig=hush/a=", "s3://bucket/x#access_token=hush"),
        *("s3://bucket/sk-proj-hush" + "a1" * 10, "https://host/ghp_hush" + "a1" * 16 + "/x.tar"),
        *("https://x.blob.core.windows.net/c;sig=hush" + "a1" * 20, "s3://b/hf_hush" + "a1" * 16 + "/x.tar"),
        *("https://host/x.tar?hush", "https://host/x.tar#hush", "hf://datasets/a/b?jwt=hush", "s3://bucket?code=hush"),
    ],
)
def test_an_address_that_may_hold_a_secret_is_refused_and_not_shown(address: str) -> None:
    for act in (storage.absolute, store_of, storage.read_bytes):
        with pytest.raises(UserError, match=f"^{address.partition(':')[0]}://... holds a key, user or query") as caught:
            act(address)
        assert "hush" not in str(caught.value)


def test_harmless_addresses_pass() -> None:
    for address in (
        "gs://anonymous@b/x",
        "abfss://box@account.dfs.core.windows.net/a b%20c",
        "s3://b/x-?/day=1/*.tar",
        "s3://b/sk-learn-digits-000001/global-step-000100-weights",
        "https://host/" + "a1" * 20 + "/x.tar",
    ):
        assert storage.absolute(address) == address
    for address, place in (("gs://anonymous@b/x y/", "b/x y"), ("s3://b", "b"), ("s3://b/a%2Fb", "b/a%2Fb")):
        assert Address.parse(address).place == place


def test_an_empty_part_of_a_key_is_refused(s3: str) -> None:
    with pytest.raises(UserError, match=r"has an empty part \(//\)"):
        storage.read_bytes(f"{s3}/a//b")


def test_a_store_of_google_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(stores, "PATIENCE", timedelta(seconds=2))
    with pytest.raises(UserError, match="gs://anonymous@bucket: .*; check the network, and the credentials"):
        storage.read_bytes("gs://anonymous@bucket/x")


def test_another_address_in_the_environment_is_another_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ACCOUNT_NAME", "CLOUD_STORAGE_EMULATOR_ENDPOINT"):
        before = stores._surroundings()
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        assert stores._surroundings() != before


def test_a_store_that_never_answers_hears_an_interrupt() -> None:
    code = """
import os, signal, socket, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
listener = socket.create_server(("127.0.0.1", 0))  # takes connections, says nothing
os.environ["CLOUD_STORAGE_EMULATOR_ENDPOINT"] = f"http://127.0.0.1:{listener.getsockname()[1]}"
from pipelines.files import storage
threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    storage.read_bytes("gs://anonymous@bucket/x")
except KeyboardInterrupt:
    print("heard", time.monotonic() - start < 5, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "heard True\n"
