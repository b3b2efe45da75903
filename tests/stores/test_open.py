"""URLs become stores; probes find out whether a store keeps two writers apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lake.errors import StoreError
from lake.stores import LocalStore, Store, open_store, probe, probe_identical
from lake.stores.base import Buffer
from lake.stores.wrappers import CountingStore, FaultStore


def test_spellings_of_one_bucket_are_one_store(s3_url: str) -> None:
    """Slashes too many, and at the end, change neither the URL nor a key."""
    open_store(s3_url).put_new("a/b", b"v")
    bucket, prefix = s3_url.removeprefix("s3://").split("/")
    for url in (f"{s3_url}/", f"s3://{bucket}//{prefix}", f"s3://{bucket}/{prefix}//"):
        store = open_store(url)
        assert store.url == s3_url
        assert [found.key for found in store.list()] == ["a/b"]
    assert open_store(f"s3://{bucket}").url == open_store(f"s3://{bucket}/").url == f"s3://{bucket}"


def test_spellings_of_one_folder_are_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative, absolute, with the home's sign, as a URL with escapes, as a Path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "my lake"
    urls: list[Any] = [
        "my lake",
        "./my lake/",
        f"{folder}//",
        folder,
        folder.as_uri(),
        "file://localhost" + folder.as_uri()[7:],
    ]
    if sys.platform != "win32":
        urls.append("~/my lake")

    assert {open_store(url).url for url in urls} == {str(folder.resolve())}


@pytest.mark.parametrize("url", ["http://x/y", "s3://", "s3:///prefix", "gs://bucket/x", "file://host/share"])
def test_what_is_no_store_is_a_value_error(url: str) -> None:
    """The message shows the URL and what it may look like."""
    with pytest.raises(ValueError, match=url):
        open_store(url)


def test_options_reach_the_bucket(s3_server: str) -> None:
    """Endpoint, region, anonymity and concurrency are the store's; a prefix is optional."""
    store: Any = open_store(
        "s3://b",
        endpoint_url=s3_server,
        region="eu-north-1",
        anonymous=True,
        concurrency=3,
        single_writer=True,
    )

    assert (store.endpoint_url, store.region, store.anonymous) == (s3_server, "eu-north-1", True)
    assert (store.concurrency, store.single_writer) == (3, True)


def test_a_folder_needs_no_boto() -> None:
    """Opening a local lake does not pay for the S3 client's import."""
    code = "import sys, lake.stores; lake.stores.open_store('x'); sys.exit('boto3' in sys.modules)"

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class Forgetful(CountingStore):
    """Replaces what is there, as stores do that have never heard of conditions."""

    def put_new(self, key: str, data: Buffer) -> bool:
        self.store.put(key, data)
        return True


class Sloppy(CountingStore):
    """Refuses a create once the key is there, but lets two racing ones both win."""

    def put_new(self, key: str, data: Buffer) -> bool:
        if bytes(data) == b"late":
            return super().put_new(key, data)
        self.store.put(key, data)
        return True


@pytest.mark.parametrize("kind", [Forgetful, Sloppy])
def test_a_store_that_replaces_does_not_pass(kind: Any, local_store: LocalStore) -> None:
    """The error says what happens otherwise and the way out; nothing stays in `tmp/`."""
    with pytest.raises(StoreError, match="single_writer=True"):
        probe(kind(local_store))

    assert list(local_store.list()) == []


def test_a_second_identical_create_must_be_refused(local_store: LocalStore) -> None:
    """Whether it was is seen without changing anything."""
    local_store.put_new("lake.json", b"{}")

    probe_identical(local_store, "lake.json", b"{}")
    with pytest.raises(StoreError, match="single_writer=True"):
        probe_identical(Forgetful(local_store), "lake.json", b"{}")

    assert local_store.get("lake.json") == b"{}"


def test_a_probe_passes_the_store_s_own_errors_on(local_store: LocalStore) -> None:
    """A store that cannot be written to has not failed the probe."""
    store: Store = FaultStore(local_store, dict.fromkeys(range(3), "503"))

    with pytest.raises(StoreError, match="503") as caught:
        probe(store)

    assert caught.value.retryable
