"""Writers, collectors and expirers on one store, interleaved in thousands of ways: scenes beyond the model's."""

from __future__ import annotations

import pytest

from tests import scenes


@pytest.fixture(autouse=True)
def _one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes.one_thread_each(monkeypatch)


@pytest.mark.parametrize("scene", scenes.FURTHER)
def test_nothing_is_lost_however_processes_interleave(scene: str) -> None:
    """Suspended writers and sweepers, crashes, lost replies, late and repeated deletes among them."""
    scenes.try_all(scene)
