"""Every store, and every wrapper around one, keeps the promises of `tests/contracts/store.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake import _os
from lake.stores import LocalStore, Store, open_store
from lake.stores.s3 import S3Store
from lake.stores.wrappers import CountingStore, PrefixStore
from tests.contracts.store import StoreContract


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, local_store: LocalStore) -> Store:
        return local_store


class TestLocalStoreWithoutHardLinks(StoreContract):
    @pytest.fixture
    def store(self, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setattr(_os, "WAYS", (_os._rename,))
        return local_store


class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, s3_store: Store) -> Store:
        return s3_store


class TestS3StoreInParts(StoreContract):
    """Everything above a few bytes goes by multipart upload and multipart copy, from a file on disk."""

    more_than_a_page = 10  # the bucket's pages are tested above

    @pytest.fixture
    def store(self, s3_url: str) -> Store:
        bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
        small = {
            "spool_in_memory": 1000,
            "multipart_above": 10,
            "copy_multipart_above": 10,
            "part_bytes": 5 << 20,
        }
        return S3Store(bucket, prefix, **small)


class TestPrefixStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return PrefixStore(open_store(tmp_path / "lake"), "some/where/")


class TestCountingStore(StoreContract):
    @pytest.fixture
    def store(self, local_store: LocalStore) -> Store:
        return CountingStore(local_store)
