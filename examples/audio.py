"""Which recording is this? Mel spectra, derived once and kept in the lake, and a classifier on them.

The recordings are those that pygame ships for its examples (`pip install pygame-ce`): two pieces of music and
four noises, from a tenth of a second to seven seconds long. The classifier learns from every other stretch of each,
as the wav files have it, and is asked about the stretches between. `draw` gives it each recording equally often.

    python examples/audio.py [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import torch
from torch import nn

import lake

RATE, WINDOW, HOP, BANDS = 11_025, 512, 256, 24


def stretches(sample: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """A recording in overlapping stretches of 46 ms, each as the logarithms of its mel bands."""
    key, fields = sample
    channels, rate = fields["wav"]
    sound = librosa.resample(channels.mean(0), orig_sr=rate, target_sr=RATE)
    energy = librosa.feature.melspectrogram(
        y=sound, sr=RATE, n_fft=WINDOW, hop_length=HOP, n_mels=BANDS, center=False
    )
    for number, bands in enumerate(np.log(energy + 1e-6).T.astype("float32")):
        yield f"{key}/{number:04}", {"mel": bands, "recording": key, "number": number}


def recordings() -> Path:
    """The folder of pygame's sounds; it is not imported."""
    [package] = find_spec("pygame").submodule_search_locations  # type: ignore[union-attr]
    return Path(package) / "examples" / "data"


def main(folder: Path, *, steps: int = 400) -> float:
    """The share of stretches that are given to the right recording; each recording counts alike."""
    lk = lake.open(folder / "lake")
    lk.commit(
        "sounds", [(path.stem, {"wav": path.read_bytes()}) for path in sorted(recordings().glob("*.wav"))]
    )
    sounds = lk.dataset("sounds").samples().decode(wav="audio")
    mel = lk.derive("sounds-mel", sounds.flat_map(stretches).shuffle(seed=0))
    names = sorted({row["recording"] for _, row in mel.samples(columns=["recording"])})

    def tensors(batch: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        bands = torch.from_numpy(np.stack([fields["mel"] for _, fields in batch]))
        return bands, torch.tensor([names.index(fields["recording"]) for _, fields in batch])

    drawn = mel.draw(32 * steps, by="recording", where="number % 2 = 0", seed=0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(BANDS), nn.Linear(BANDS, 64), nn.ReLU(), nn.Linear(64, len(names)))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for bands, wanted in lake.torch.loader(drawn.batch(32, collate=tensors)):
        loss = nn.functional.cross_entropy(model(bands), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    model.eval()
    bands, wanted = tensors(list(mel.samples(where="number % 2 = 1")))
    right = model(bands).argmax(1) == wanted
    return float(torch.stack([right[wanted == place].float().mean() for place in wanted.unique()]).mean())


if __name__ == "__main__":
    print(f"right: {main(Path(sys.argv[1] if len(sys.argv) > 1 else 'audio')):.1%}")
