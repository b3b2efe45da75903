"""Where a lake's bytes are: a folder, or a bucket that speaks S3. `open_store` makes either from a URL.

`lake.stores.base` says what a store can do; `probe` finds out whether one can keep two writers apart.
"""

from __future__ import annotations

import os
import threading
import uuid
from urllib.parse import unquote, urlsplit

from lake.errors import StoreError
from lake.stores.base import LEASE_KEY, Object, Staged, Store
from lake.stores.local import LocalStore

__all__ = ["LEASE_KEY", "LocalStore", "Object", "Staged", "Store", "open_store", "probe", "probe_identical"]

_ADVICE = "Two writers would undo each other's work; if there is ever only one: single_writer=True"


def open_store(
    url: str | os.PathLike[str],
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    anonymous: bool = False,
    concurrency: int = 16,
    single_writer: bool = False,
) -> Store:
    """The store at `url`: a path, `file:///path` or `s3://bucket/prefix`. Nothing is read or made yet.

    Slashes too many, or at the end, make no difference. `concurrency`: requests that it can carry at once.
    """
    text = os.fspath(url)
    scheme, found, rest = text.partition("://")
    if not found:
        return LocalStore(text, single_writer=single_writer)
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise ValueError(
                f"{text!r} names the host {parts.netloc!r}: a path after file:// begins with a third slash"
            )
        return LocalStore(unquote(parts.path), single_writer=single_writer)
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ValueError(f"no store: {text!r} (a path, file:///path or s3://bucket/prefix)")
    from lake.stores.s3 import S3Store  # boto3 takes its time, and a folder does not need it

    return S3Store(
        bucket,
        prefix,
        endpoint_url=endpoint_url,
        region=region,
        anonymous=anonymous,
        concurrency=concurrency,
        single_writer=single_writer,
    )


def probe(store: Store) -> None:
    """Make sure that of two racing creates of one key exactly one succeeds, and none after it.

    Writes below `tmp/` and takes it away again.

    Raises:
        StoreError: the store lets both win; it cannot keep two writers apart.
    """
    for _ in range(3):
        key = f"tmp/{uuid.uuid4().hex}"
        try:
            won = _race(store, key, [b"one", b"two"])
            late = store.put_new(key, b"late")
        finally:
            store.delete([key])
        if late or len(won) > 1:
            raise StoreError(f"{store.url} lets a key be created twice (If-None-Match is ignored). {_ADVICE}")
        if won:
            return
    raise StoreError(
        f"{store.url}: two creates of a new key both found it taken, three times over", retryable=True
    )


def probe_identical(store: Store, key: str, data: bytes) -> None:
    """Make sure that creating `key`, which holds exactly `data`, is refused. Changes nothing if it is not.

    Raises:
        StoreError: it is not refused; the store cannot keep two writers apart.
    """
    if store.put_new(key, data):
        raise StoreError(
            f"{store.url} let {key} be created a second time (If-None-Match is ignored). {_ADVICE}"
        )


def _race(store: Store, key: str, bodies: list[bytes]) -> list[bytes]:
    """Those of the bodies whose create succeeded when all were sent at once."""
    start = threading.Barrier(len(bodies))
    won: list[bytes] = []
    failed: list[BaseException] = []

    def create(body: bytes) -> None:
        start.wait()
        try:
            if store.put_new(key, body):
                won.append(body)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=create, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return won
