"""Code and prose in one stream, three parts to one: counted in tokens, or in documents.

Code is Python's standard library; prose is how the installed packages describe themselves. A mixture of packed rows
keeps the ratio in tokens; a mixture of documents, packed afterwards, keeps it in documents, of which those of code
are longer.

    python examples/mixing.py [FOLDER]
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np

import lake
from lake import Pipeline

LENGTH, WEIGHTS = 256, [3, 1]
CODE = 1 << 8  # a token is a byte, and this if it is of code


def code(sample: Any) -> np.ndarray:
    return prose(sample) | CODE


def prose(sample: Any) -> np.ndarray:
    return np.frombuffer(sample[1]["text"].encode(), "uint8").astype("uint16")


def share(pipeline: Pipeline, rows: int) -> float:
    """How much of the first rows is code."""
    packed = [row["tokens"] for row in pipeline.take(rows)]
    return float((np.concatenate(packed) & CODE > 0).mean())


def main(folder: Path, *, files: int = 100, rows: int = 2000) -> tuple[float, float]:
    """The parts of tokens that are code, in a mixture of tokens and in one of documents."""
    lk = lake.open(folder / "lake")
    library = sorted(Path(os.__file__).parent.glob("*.py"))[:files]
    lk.commit("code", [(path.name, {"text": path.read_text("utf-8", "replace")}) for path in library])
    told = {each.name: each.read_text("METADATA") for each in distributions()}
    lk.commit("prose", [(name, {"text": text}) for name, text in sorted(told.items()) if text][:files])

    streams = [
        lk.dataset("code").samples().shuffle(seed=1).map(code).repeat(),
        lk.dataset("prose").samples().shuffle(seed=2).map(prose).repeat(),
    ]
    tokens = lake.mix([stream.pack(LENGTH) for stream in streams], WEIGHTS, seed=0)
    documents = lake.mix(streams, WEIGHTS, seed=0).pack(LENGTH)
    return share(tokens, rows), share(documents, rows)


if __name__ == "__main__":
    of_tokens, of_documents = main(Path(sys.argv[1] if len(sys.argv) > 1 else "mixing"))
    print(
        f"code is {of_tokens:.0%} of the tokens where tokens are mixed, {of_documents:.0%} where documents are"
    )
