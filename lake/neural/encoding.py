"""Datasets to datasets of codes and back, with the model in their lineage."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from lake.asked import listed
from lake.errors import SchemaError
from lake.neural import weights
from lake.neural.codes import CodeType, Floats, Quantiser
from lake.neural.models import Autoencoder
from lake.scan.columns import Columns, shape_of
from lake.torch import Form, Tensors

if TYPE_CHECKING:
    from lake.dataset import Dataset

CODE = "code"


def encode(
    ds: Dataset,
    model: Autoencoder,
    field: str,
    name: str,
    *,
    dtype: CodeType = "int8",
    columns: Sequence[str] | None = None,
    batch_size: int = 256,
    message: str | None = None,
) -> Dataset:
    """The dataset `name` with the codes of a tensor column, in the column `code`, and the other `columns`.

    The model's weights are committed as `<name>.model`; the recipe names that version and the one that was encoded.
    The model is in eval mode meanwhile, on whatever device it is; each sample is seen once, and codes wait in a
    temporary file until the scale of each dimension is known.

    Args:
        field: a fixed-shape tensor or list of numbers, as the model takes it.
        dtype: "int8", with a scale for each dimension in `meta["codes"]`, or "float16".
        columns: what goes along. None: the key and what is as small as a label: numbers, booleans, classes.

    Raises:
        SchemaError: no such column, one of values that are no tensors as the model takes them, or one called `code`.
        ValueError: `name` is that of `ds`.
    """
    _check_name(ds, name)
    if not isinstance(model, Autoencoder):
        raise TypeError(f"encode() takes a model of lake.neural, not {type(model).__name__}")
    kept = _companions(ds, field) if columns is None else listed("columns", columns)
    _check_field(ds, field, model.shape)
    if CODE in kept:
        raise SchemaError(
            f"column {CODE!r} of {ds.name!r} has the name of the codes: leave it out of columns="
        )
    with _spilled(ds, model, field, kept, batch_size) as (batches, largest):
        quantiser = Quantiser.fitted(dtype, largest)
        version = weights.save(ds.lake, f"{name}.model", model, message=message)
        recipe = {
            "operation": "lake.neural.encode",
            "source": {"dataset": ds.name, "version": ds.version, "data": ds.snapshot.document.data},
            "model": {"dataset": version.name, "version": version.id, "data": version.data},
            "field": field,
            "type": str(_number_type(ds, field)),
        }
        made = ds.lake.commit(
            name,
            _quantised(batches, quantiser),
            key=ds.key if ds.key in kept else None,
            meta={"codes": quantiser.meta()},
            recipe=recipe,
            message=message,
        )
    return ds.lake.dataset(f"{name}@{made.id}")


@overload
def decode(
    codes: Dataset, model: Autoencoder | None = None, *, name: None = None, batch_size: int = 256
) -> Iterator[Tensor]: ...


@overload
def decode(
    codes: Dataset, model: Autoencoder | None = None, *, name: str, batch_size: int = 256
) -> Dataset: ...


def decode(
    codes: Dataset, model: Autoencoder | None = None, *, name: str | None = None, batch_size: int = 256
) -> Iterator[Tensor] | Dataset:
    """What a dataset of codes stands for: tensors [B, *shape], in order, or with `name` a dataset of that name.

    Without `model` it is the one of the recipe. The dataset has the column that was encoded, of its own type (of
    integers rounded and kept in range), in the place of `code`; its recipe names the codes.
    """
    chosen = model_of(codes) if model is None else model
    if not isinstance(chosen, torch.nn.Module):
        raise TypeError(f"decode() takes the model that encoded, not {type(chosen).__name__}")
    if name is None:
        return (decoded for _, decoded in _decoded(codes, chosen, [], batch_size))
    _check_name(codes, name)
    field, type_ = codes.recipe["field"], np.dtype(codes.recipe["type"])
    kept = [column for column in codes.schema.names if column != CODE]
    recipe = {
        "operation": "lake.neural.decode",
        "source": {"dataset": codes.name, "version": codes.version, "data": codes.snapshot.document.data},
    }
    made = codes.lake.commit(
        name,
        _reader(
            _with_tensor(batch, field, _as(type_, decoded.numpy()))
            for batch, decoded in _decoded(codes, chosen, kept, batch_size)
        ),
        key=codes.key,
        recipe=recipe,
    )
    return codes.lake.dataset(f"{name}@{made.id}")


def model_of(codes: Dataset) -> Autoencoder:
    """The model with which a dataset was encoded.

    Raises:
        ValueError: `encode` did not make it.
    """
    recipe = codes.recipe
    if not isinstance(recipe, dict) or recipe.get("operation") != "lake.neural.encode":
        raise ValueError(f"{codes.name!r} holds no codes: lake.neural.encode makes such datasets")
    return weights.load(codes.lake.dataset(f"{recipe['model']['dataset']}@{recipe['model']['version']}"))


# --- inside -------------------------------------------------------------------------------------


def _check_name(source: Dataset, name: str) -> None:
    if name == source.name:
        raise ValueError(f"{name!r} is the dataset that is read: name= is one for what is made of it")


@contextmanager
def _spilled(
    ds: Dataset, model: Autoencoder, field: str, kept: Sequence[str], batch_size: int
) -> Iterator[tuple[pa.RecordBatchFileReader, Floats]]:
    """The kept columns and codes in single precision, in a file, and the largest size of each code number."""
    largest = np.zeros(model.latent_dim, np.float32)
    with tempfile.TemporaryDirectory(prefix="lake-codes-") as folder:
        path = Path(folder) / "codes.arrow"
        with _frozen(model), pa.OSFile(str(path), "wb") as sink:
            writer = None
            for batch, codes in _encoded(ds, model, field, kept, batch_size):
                largest = np.maximum(largest, np.abs(codes).max(0, initial=0))
                whole = _with_tensor(batch, CODE, codes)
                writer = writer or pa.ipc.new_file(sink, whole.schema)
                writer.write_batch(whole)
            if writer is None:
                raise ValueError(f"{ds.name!r} has no rows to encode")
            writer.close()
        with pa.memory_map(str(path)) as source:
            yield pa.ipc.open_file(source), largest


def _encoded(
    ds: Dataset, model: Autoencoder, field: str, kept: Sequence[str], batch_size: int
) -> Iterator[tuple[pa.RecordBatch, Floats]]:
    convert, device = Tensors(Form(), key=ds.key), _device(model)
    for batch in ds.scan(columns=[*kept, field], batch_size=batch_size):
        samples = convert(Columns.of(batch.select([field])))[field]
        codes = model.encode(samples.to(device)).float().cpu().numpy()
        if not np.isfinite(codes).all():
            raise ValueError(f"the model makes codes of {ds.name!r} that are not finite")
        yield batch.select(list(kept)), codes


def _decoded(
    codes: Dataset, model: Autoencoder, kept: Sequence[str], batch_size: int
) -> Iterator[tuple[pa.RecordBatch, Tensor]]:
    convert, quantiser, device = Tensors(Form()), Quantiser.of(codes), _device(model)
    with _frozen(model):
        for batch in codes.scan(columns=[*kept, CODE], batch_size=batch_size):
            stored = convert(Columns.of(batch.select([CODE])))[CODE]
            yield batch.select(list(kept)), model.decode(quantiser.values(stored).to(device)).cpu()


def _quantised(batches: pa.RecordBatchFileReader, quantiser: Quantiser) -> pa.RecordBatchReader:
    def one(number: int) -> pa.RecordBatch:
        batch = batches.get_batch(number)
        codes = batch.column(CODE).to_numpy_ndarray()
        at = batch.schema.get_field_index(CODE)
        return batch.set_column(at, CODE, quantiser.stored(codes))

    return _reader(one(number) for number in range(batches.num_record_batches))


def _reader(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    first = next(batches, None)
    if first is None:
        raise ValueError("there are no rows")

    def chained() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    return pa.RecordBatchReader.from_batches(first.schema, chained())


def _with_tensor(batch: pa.RecordBatch, name: str, values: Any) -> pa.RecordBatch:
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
    return pa.RecordBatch.from_arrays([*batch.columns, tensor], [*batch.schema.names, name])


def _as(type_: np.dtype[Any], values: Floats) -> np.ndarray[Any, Any]:
    if type_.kind not in "iu":
        return values.astype(type_)
    bounds = np.iinfo(type_)
    return np.clip(np.rint(values), bounds.min, bounds.max).astype(type_)


def _companions(ds: Dataset, field: str) -> list[str]:
    def small(type_: pa.DataType) -> bool:
        return bool(pa.types.is_primitive(type_) or pa.types.is_dictionary(type_))

    return [one.name for one in ds.schema if one.name != field and (one.name == ds.key or small(one.type))]


def _check_field(ds: Dataset, field: str, shape: tuple[int, ...]) -> None:
    if field not in ds.schema.names:
        raise SchemaError(f"no column {field!r} in {ds.name!r}: {', '.join(ds.schema.names)}")
    found = shape_of(ds.schema.field(field).type)
    if found is None or not found[1]:
        raise SchemaError(
            f"column {field!r} of {ds.name!r} is {ds.schema.field(field).type}; a model takes tensors of one shape: "
            "lk.add_columns(name, fn) adds a column of them, such as pixels of encoded images"
        )
    _, stored, order = found
    given = stored if order is None else tuple(stored[axis] for axis in order)
    if given != shape:
        raise SchemaError(f"column {field!r} of {ds.name!r} is {list(given)}; the model takes {list(shape)}")


def _number_type(ds: Dataset, field: str) -> np.dtype[Any]:
    found = shape_of(ds.schema.field(field).type)
    assert found is not None
    return found[0]


def _device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


@contextmanager
def _frozen(model: torch.nn.Module) -> Iterator[None]:
    """The model in eval mode, without gradients; afterwards in the mode it was."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)
