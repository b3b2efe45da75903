"""A small language model of bytes: documents packed into rows, attention kept within each document.

The text is Python's own standard library. Tokens are derived once: a second run finds them in the lake.

    python examples/text.py [FOLDER]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import lake

LENGTH, WIDTH, HEADS = 128, 96, 4
END = 0  # between documents


def tokens_of(sample: Any) -> tuple[str, dict[str, np.ndarray]]:
    key, fields = sample
    return key, {"tokens": np.frombuffer(fields["text"].encode(), "uint8")}


def stacked(rows: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.stack([row[name] for row in rows])).long() for name in rows[0]}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.each = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        parts = self.mixed(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, attn_mask=mask[:, None])
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.each(self.after(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 256)

    def loss(self, row: dict[str, torch.Tensor]) -> torch.Tensor:
        """Nats for each byte, of those that are not the first of their document."""
        tokens, segments = row["tokens"], row["segment_ids"]
        same = segments[:, :, None] == segments[:, None, :]
        mask = same & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        x = self.token(tokens) + self.place(row["positions"] % LENGTH)
        for block in self.blocks:
            x = block(x, mask)
        counted = same.diagonal(1, 1, 2)  # the next byte is of the same document
        return functional.cross_entropy(self.head(x[:, :-1])[counted], tokens[:, 1:][counted])


def main(folder: Path, *, documents: int = 150, steps: int = 300) -> list[float]:
    """The losses, step by step."""
    lk = lake.open(folder / "lake")
    paths = sorted(Path(os.__file__).parent.glob("*.py"))[:documents]
    lk.commit("library", [(path.name, {"text": path.read_text("utf-8", "replace")}) for path in paths])
    tokens = lk.derive("library-bytes", lk.dataset("library").samples().map(tokens_of))

    packed = tokens.samples().shuffle(seed=0).pack(LENGTH, field="tokens", eos=END)
    loader = lake.torch.loader(packed.shuffle(2000, seed=1).batch(16, collate=stacked, drop_last=True))
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    losses: list[float] = []
    while len(losses) < steps:
        for _, row in zip(range(steps - len(losses)), loader, strict=False):
            loss = model.loss(row)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


if __name__ == "__main__":
    found = main(Path(sys.argv[1] if len(sys.argv) > 1 else "text"))
    print(f"nats for each byte: {found[0]:.2f} at first, {sum(found[-20:]) / 20:.2f} in the end")
