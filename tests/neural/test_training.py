"""Training from the lake: killed and resumed it comes to the same weights, and so it does on two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import safetensors
import torch

import lake

PROGRAM = Path(__file__).with_name("run_training.py")
ROOT = PROGRAM.parents[2]
ROWS = 128  # 8 steps an epoch, 24 in all


def train(folder: Path, *options: str) -> int:
    """Run the program; what it exits with."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), str(folder), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
    return done.returncode


def weights(path: Path) -> tuple[dict[str, torch.Tensor], int]:
    """The weights that a run kept, and its steps."""
    with safetensors.safe_open(path, "pt") as kept:
        return {name: kept.get_tensor(name) for name in kept.keys()}, int(kept.metadata()["steps"])  # noqa: SIM118


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lake, and the weights of a run that was killed and resumed and of one that nothing disturbed.

    It was killed in the second epoch, one step after a checkpoint.
    """
    folder = tmp_path_factory.mktemp("training")
    x = np.random.default_rng(0).standard_normal((ROWS, 6), dtype=np.float32)
    table = pa.table(
        {"x": pa.FixedShapeTensorArray.from_numpy_ndarray(x), "label": (x[:, 0] > 0).astype(int)}
    )
    lake.open(folder / "lake", cache_dir=folder / "cache").commit(
        "rows", table, key=None, shard_bytes="16KiB"
    )
    assert train(folder, "--kill-after", "13") == -signal.SIGKILL
    assert not (folder / "resumed").exists()
    assert train(folder, "--resume") == 0
    return folder


def test_killed_and_resumed_training_gives_the_same_weights(trained: Path) -> None:
    """Bit for bit."""
    (whole, steps), (resumed, told) = weights(trained / "whole"), weights(trained / "resumed")

    assert steps == told == 24
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []


def test_two_processes_train_as_one_does(trained: Path) -> None:
    """Two ranks of half the batch each take the same rows to each step; sums differ by rounding alone."""
    assert train(trained, "--devices", "2") == 0

    (whole, steps), (several, told) = weights(trained / "whole"), weights(trained / "several")
    assert steps == told == 24
    for name, tensor in whole.items():
        assert torch.allclose(tensor, several[name], rtol=1e-4, atol=1e-5), name
