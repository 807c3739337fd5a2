"""Clients of object stores: one for all requests to a bucket, in the bucket's region, patient with a busy store."""

from __future__ import annotations

import pytest
from pyarrow import fs

from pipelines.errors import UserError
from pipelines.files import storage
from pipelines.files.conditional import Conditional
from pipelines.files.stores import ATTEMPTS, store_of
from tests.conftest import S3_BUSY


def test_requests_to_a_bucket_share_a_client(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, place = store_of(f"{s3}/a%20folder/one.tar/")
    assert place == "bucket/a folder/one.tar"
    assert store_of(f"{s3}/two.tar")[0] is first
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert store_of(f"{s3}/two.tar")[0] is not first  # those credentials may see something else


def test_a_busy_store_is_asked_again(s3: str) -> None:
    """More often than pyarrow by itself, which gives up after three attempts within a second."""
    storage.write_atomic(f"{s3}/busy", b"x")
    try:
        for act in (lambda: storage.read_bytes(f"{s3}/busy"), lambda: storage.write_atomic(f"{s3}/busy", b"y")):
            S3_BUSY.extend([None] * 4)
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
    assert Conditional("s3://near/run/.lock?region=eu-west-1").store.config["region"] == "eu-west-1"


def test_settings_of_an_address_are_known() -> None:
    with pytest.raises(UserError, match="s3://bucket: unknown setting endpoint; an address may have region, scheme"):
        store_of("s3://bucket/x?endpoint=localhost")
