"""Training on two processes with torch alone, Lightning, Accelerate and the Trainer of Hugging Face."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lake.dataset import Dataset
from tests.torch.conftest import ROWS

PROGRAM = Path(__file__).parent / "glue.py"
SECONDS = 300


def run(program: str, ds: Dataset, out: Path) -> list[list[list[int]]]:
    """What each of two ranks trained on, step by step."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        launcher = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": 1,
            "HF_HUB_OFFLINE": 1, "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip
        command = [sys.executable, str(PROGRAM), program, str(ds.snapshot.refs.store.url), str(out)]
        environment = os.environ | {name: str(value) for name, value in launcher.items()}
        ranks.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        for rank in ranks:
            _, said = rank.communicate(timeout=SECONDS)
            assert rank.returncode == 0, said[-3000:]
    finally:
        for rank in ranks:
            rank.kill()
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("program", ["ddp", "fsdp", "lightning", "accelerate", "trainer"])
def test_two_processes_see_every_row_once_in_as_many_steps(ds: Dataset, tmp_path: Path, program: str) -> None:
    """Though the rows do not divide: every step has both ranks in it, so that nothing waits for ever."""
    package = {"trainer": "transformers", "ddp": "torch", "fsdp": "torch"}.get(program, program)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    seen = run(program, ds, tmp_path / "seen")
    times = 2 if program == "ddp" else 1

    assert len(seen[0]) == len(seen[1])
    assert sorted(n for rank in seen for step in rank for n in step) == sorted([*range(ROWS)] * times)


def test_ranks_stop_together_where_counts_are_unknown(ds: Dataset, tmp_path: Path) -> None:
    """With the first that is dry; rows are used once; a seed that nobody chose is the same on both."""
    seen = run("stop", ds, tmp_path / "seen")
    rows = [n for rank in seen for step in rank for n in step]

    assert len(seen[0]) == len(seen[1]) > 4
    assert len(rows) == len(set(rows)) <= sum(1 for n in range(ROWS) if n % 4 or n > 60)
