"""Trains a small model on a dataset and keeps its weights: a program, which can be killed or be several processes.

    python run_training.py FOLDER [--devices N] [--kill-after STEPS] [--resume]

FOLDER holds the lake and the checkpoints, which are written every three steps. Weights go to FOLDER/resumed,
followed by those of a run from the beginning in FOLDER/whole, or to FOLDER/several.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import lightning
import safetensors.torch
import torch

import lake
from lake import neural

BATCH, EPOCHS = 16, 3


class Kill(lightning.Callback):
    """Ends the process after so many steps, as a power cut would."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.steps:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, out: str, *, devices: int, kill_after: int | None, resume: bool) -> None:
    """Train, and keep the weights of the first rank."""
    torch.manual_seed(0)
    ds = lake.open(folder / "lake", cache_dir=folder / "cache").dataset("rows")
    task = neural.AutoencoderTask(neural.TabularAutoencoder(6, 3, 2), "x", label="label")
    trainer = neural.fit(
        task,
        ds.scan(columns=["x", "label"], batch_size=BATCH // devices, shuffle=True, seed=1),
        epochs=EPOCHS,
        folder=folder / f"checkpoints-{devices}",
        every_n_steps=3,
        resume=folder / "checkpoints-1" / "last.ckpt" if resume else None,
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        callbacks=[Kill(kill_after)] if kill_after else [],
    )
    if trainer.is_global_zero:
        steps = {"steps": str(trainer.global_step)}
        safetensors.torch.save_file(task.model.state_dict(), folder / out, metadata=steps)


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--kill-after", type=int)
    parser.add_argument("--resume", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    out = "several" if asked.devices > 1 else "resumed"
    train(asked.folder, out, devices=asked.devices, kill_after=asked.kill_after, resume=asked.resume)
    if asked.resume:
        train(asked.folder, "whole", devices=1, kill_after=None, resume=False)


if __name__ == "__main__":
    main()
