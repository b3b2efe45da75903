"""The same with Lightning: its checkpoints hold the loader's position, and a run goes on in the middle of an epoch.

A `lake.torch.loader` has `state_dict` and `load_state_dict`, and Lightning keeps what such loaders say beside model
and optimiser. `ModelCheckpoint` writes and keeps the newest three; a callback writes metrics as JSON lines. A
schedule takes its number of steps from `len(loader)`: `trainer.estimated_stepping_batches` has Lightning set the loader
up before the checkpoint is loaded, and the position is dropped.

    python examples/with_lightning.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn

import lake


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.layers(batch["pixels"]), batch["label"])
        self.log("loss", loss, batch_size=len(batch["label"]))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 3e-3)


class JsonLines(Callback):
    """A line for each step, with all that was logged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        with self.path.open("a") as file:
            file.write(json.dumps({"step": trainer.global_step, **metrics}) + "\n")


def main(folder: Path, *, steps: int = 200) -> None:
    """Train up to so many steps, from the newest checkpoint if there is one."""
    lk = lake.open(folder / "lake")
    digits = load_digits()
    pixels = (digits.data / 16).astype("float32")
    lk.commit(
        "digits",
        [(f"{n:04}", {"pixels": pixels[n], "label": int(digits.target[n])}) for n in range(len(pixels))],
    )

    loader = lake.torch.loader(
        lk.dataset("digits").scan(["pixels", "label"], batch_size=32, shuffle=True, seed=0)
    )
    lightning.seed_everything(0, verbose=False)
    kept = ModelCheckpoint(
        folder / "run", "{step:08}", every_n_train_steps=10, save_top_k=3, monitor="step", mode="max"
    )
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[kept, JsonLines(folder / "metrics.jsonl")],
    )  # fmt: skip
    newest = max((folder / "run").glob("*.ckpt"), default=None)
    trainer.fit(Digits(), loader, ckpt_path=newest)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "with_lightning"))
