"""A folder to watch, and a watcher that tries again at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake.live import policy


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_FIRST_PAUSE", 0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "camera"
    made.mkdir()
    return made
