"""An image classifier: PNG files in a lake, decoded and jittered on the way, checkpoints of everything.

The images are the 1,797 handwritten digits that scikit-learn ships. Run it again after stopping it, and it goes on
after the batch that it stopped at.

    python examples/images.py [FOLDER]
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoint import Checkpoints
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

import lake


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray((pixels * 15).astype("uint8")).save(file, "png")
    return file.getvalue()


def gray(data: bytes) -> np.ndarray:
    return lake.codecs.image(data, mode="L")


def jittered(sample: Any, rng: np.random.Generator) -> tuple[torch.Tensor, int]:
    """The image moved by up to a pixel: another one in each epoch, the same one in each run."""
    _, fields = sample
    moved = np.roll(fields["png"], rng.integers(-1, 2, 2), (0, 1))
    return torch.from_numpy(moved.astype("float32") / 255)[None], fields["label"]


def stacked(batch: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*batch, strict=True)
    return torch.stack(images), torch.tensor(labels)


def network() -> nn.Module:
    layers = [
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 10),
    ]
    return nn.Sequential(*layers)


def main(folder: Path, *, epochs: int = 8) -> float:
    """The share of held-out digits that are recognised."""
    lk = lake.open(folder / "lake")
    digits = load_digits()
    images = [
        (f"digit-{n:04}", {"png": png(image), "label": int(digits.target[n])})
        for n, image in enumerate(digits.images)
    ]
    lk.commit("digits", images)
    ds = lk.dataset("digits")
    train, held = ds.split(0.8, 0.2, seed=0)

    pipeline = ds.samples(where=train).shuffle(seed=0).decode(png=gray)
    loader = lake.torch.loader(pipeline.map(jittered, rng=True, seed=0).batch(64, collate=stacked))
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    checkpoints = Checkpoints(folder / "run", model=model, optimizer=optimizer, loader=loader)
    step = checkpoints.restore()
    checkpoints.cut_log(step)
    while step < epochs * len(loader):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            checkpoints.log(step=step, loss=loss.item())
            if step % 10 == 0:
                checkpoints.save(step)

    with torch.no_grad():
        right = [
            int(model(torch.from_numpy(image[None, None] / np.float32(255))).argmax()) == label
            for image, label in ds.samples(where=held).decode(png=gray).to_tuple("png", "label")
        ]
    return sum(right) / len(right)


if __name__ == "__main__":
    print(f"recognised: {main(Path(sys.argv[1] if len(sys.argv) > 1 else 'images')):.1%}")
