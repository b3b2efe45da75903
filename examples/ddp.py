"""Data-parallel training on two processes, which goes on where it was killed as if nothing had happened.

Start it, kill it at any moment (Ctrl-C, kill -9), start it again: the losses in FOLDER/run/metrics.jsonl are those
of a run that nobody disturbed. One rank's checkpoint serves all, because ranks step together. `torchrun
--nproc-per-node 2 examples/ddp.py FOLDER` does the same.

    python examples/ddp.py [FOLDER] [STEPS]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from checkpoint import Checkpoints
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lake

RANKS, EVERY = 2, 8


def commit(folder: Path) -> None:
    """1,797 digits; done before the ranks begin."""
    from sklearn.datasets import load_digits  # which the ranks do not need

    digits = load_digits()
    pixels = (digits.data / 16).astype("float32")
    rows = [(f"{n:04}", {"pixels": pixels[n], "label": int(digits.target[n])}) for n in range(len(pixels))]
    lake.open(folder / "lake").commit("digits", rows)


def train(folder: Path, steps: int) -> None:
    """What each rank does."""
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    scan = lake.open(folder / "lake").dataset("digits").scan(batch_size=32, shuffle=True, seed=0)
    loader = lake.torch.loader(scan)  # finds its rank from torch.distributed
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    checkpoints = Checkpoints(folder / "run", model=model, optimizer=optimizer, loader=loader)
    step = checkpoints.restore()
    dist.barrier()
    if rank == 0:
        checkpoints.cut_log(step)
    while step < steps:
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["pixels"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            dist.all_reduce(loss := loss.detach())
            if rank == 0:
                checkpoints.log(step=step, loss=loss.item() / dist.get_world_size())
                if step % EVERY == 0:
                    checkpoints.save(step)
            if step == steps:
                return


def run(rank: int, folder: Path, steps: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    train(folder, steps)
    dist.destroy_process_group()


def main(folder: Path, steps: int = 120) -> None:
    commit(folder)
    with tempfile.TemporaryDirectory() as meeting:
        how = "fork" if sys.platform == "linux" else "spawn"  # which starts anew, and so takes longer
        arguments = folder, steps, f"{meeting}/here"
        torch.multiprocessing.start_processes(run, arguments, RANKS, start_method=how)


if __name__ == "__main__":
    given = Path(sys.argv[1] if len(sys.argv) > 1 else "ddp"), int(sys.argv[2]) if len(sys.argv) > 2 else 120
    if "RANK" in os.environ:  # torchrun made the processes
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            commit(given[0])
        dist.barrier()
        train(*given)
        dist.destroy_process_group()
    else:
        main(*given)
