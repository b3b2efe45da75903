"""`lake watch`: a folder becomes a dataset until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import lake
from tests.cli.conftest import ROOT


def test_watch_appends_until_it_is_interrupted(folder: Path):
    """Results on stdout only, exit code 0; the rows are there."""
    if sys.platform == "win32":
        pytest.skip("no such signals here")
    (folder / "camera").mkdir()
    (folder / "camera" / "a ü.jpg").write_bytes(b"1")
    call = [
        sys.executable,
        "-m",
        "lake",
        "watch",
        "camera",
        "--dataset",
        "cam",
        "--url",
        "./l",
        "--every",
        "100ms",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*call, "--settle", "100ms", "--delete", "--json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as watcher:  # fmt: skip
        deadline = time.monotonic() + 60
        while (folder / "camera" / "a ü.jpg").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        watcher.send_signal(signal.SIGINT)
        out, said = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, said
    assert json.loads(out) == {"batches": 1, "files": 1, "late": 0, "quarantined": 0}
    assert said.startswith("watching camera for cam in ")
    assert lake.open("./l").dataset("cam").get("a ü")["jpg"] == b"1"


def test_what_cannot_be_watched_is_said(run: Callable[..., Result], folder: Path):
    """A folder that is not there, an interval that is none."""
    assert run("watch", "none", "--dataset", "cam").exit_code == 7
    (folder / "camera").mkdir()
    assert run("watch", "camera").exit_code == 2
    result = run("watch", "camera", "--dataset", "cam", "--every", "often", "--url", "./l")
    assert (result.exit_code, "every='often'" in result.stderr) == (2, True)
