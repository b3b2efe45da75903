"""Models as datasets of one row: the weights in the format of safetensors, and what it takes to build the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import safetensors.torch

from lake.neural.models import KINDS, Autoencoder

if TYPE_CHECKING:
    from lake.dataset import Dataset
    from lake.repo import Lake
    from lake.snapshot import Version


def save(lk: Lake, name: str, model: Autoencoder, *, message: str | None = None) -> Version:
    """Commit a model's weights as the next version of `name`; the same weights are the same version.

    Raises:
        ValueError: a model of another class, which could not be built again.
    """
    if type(model) not in KINDS.values():
        raise ValueError(f"{type(model).__name__} is none of lake's models: pass it wherever it is needed")
    state = {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    table = pa.table({"key": ["weights"], "safetensors": [safetensors.torch.save(state)]})
    meta = {"model": {"kind": model.kind, "arguments": model.arguments}}
    return lk.commit(name, table, meta=meta, message=message)


def load(dataset: Dataset) -> Autoencoder:
    """The model that a version of such a dataset holds, ready to encode and decode. Nothing is unpickled.

    Raises:
        ValueError: it holds no model.
    """
    made = dataset.meta.get("model")
    if not isinstance(made, dict) or made.get("kind") not in KINDS:
        raise ValueError(f"{dataset.name!r} holds no model: lake.neural.save makes such datasets")
    arguments = {
        name: tuple(value) if isinstance(value, list) else value for name, value in made["arguments"].items()
    }
    model = KINDS[made["kind"]](**arguments)
    model.load_state_dict(safetensors.torch.load(dataset.get("weights")["safetensors"]))
    model.eval()
    return model
