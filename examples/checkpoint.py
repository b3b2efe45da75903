"""Checkpoints of a training run: model, optimiser and loader together, whole or not at all; metrics as JSON lines.

A checkpoint is `step-<n>.pt`. It is written beside its place, forced to the disk and renamed, so that a crash
leaves the one before it. The newest `keep` stay. `metrics.jsonl` has a line for each step: when a run goes on, the
lines after its checkpoint are cut off, because those steps are made again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch


class Checkpoints:
    """Saves and restores whatever has `state_dict` and `load_state_dict`: `Checkpoints(folder, model=model, ...)`."""

    def __init__(self, folder: Path, *, keep: int = 3, **parts: Any) -> None:
        self.folder, self.keep, self.parts = folder, keep, parts
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, step: int) -> None:
        """Write all parts as they are after `step` steps."""
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state["random"] = torch.get_rng_state()
        place, beside = self.folder / f"step-{step:08}.pt", self.folder / "unfinished"
        with beside.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(place)
        for old in self._there()[: -self.keep]:
            old.unlink()

    def restore(self) -> int:
        """Put all parts where the newest checkpoint says; how many steps were made then, 0 without one."""
        step = 0
        if there := self._there():
            step = int(there[-1].stem.removeprefix("step-"))
            state = torch.load(there[-1], weights_only=True)
            torch.set_rng_state(state.pop("random"))
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
        return step

    def log(self, **metrics: Any) -> None:
        """Add a line to the metrics."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(metrics) + "\n")

    def cut_log(self, step: int) -> None:
        """Leave no lines of steps after `step`; a line that a crash tore goes too."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        path.write_text("".join(kept))

    def _there(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.pt"))
