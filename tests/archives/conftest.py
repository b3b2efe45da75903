"""A cache of one's own, wherever a test opens archives."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake.cache import Cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 64 << 20)


@pytest.fixture(autouse=True)
def _configured_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_CACHE_DIR", str(tmp_path / "configured"))
    monkeypatch.setenv("LAKE_CACHE_BUDGET", "64MiB")
