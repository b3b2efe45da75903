"""Codes in the lake: stored small, decoded as the model would, with the model in their lineage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import lake
from lake import neural
from lake.dataset import Dataset
from lake.neural import Quantiser


@pytest.fixture
def lk(tmp_path: Path) -> lake.Lake:
    return lake.open(tmp_path / "lake", cache_dir=tmp_path / "cache")


@pytest.fixture
def images(lk: lake.Lake) -> Dataset:
    """Noise of 8x8, with a key, a class, a number and two columns too large to go along."""
    pixels = np.random.default_rng(0).integers(0, 256, (70, 3, 8, 8), dtype=np.uint8)
    table = pa.table(
        {
            "key": [f"{i:03}" for i in range(70)],
            "image": pa.FixedShapeTensorArray.from_numpy_ndarray(pixels),
            "label": pa.array([f"class {i % 3}" for i in range(70)]).dictionary_encode(),
            "weight": np.arange(70.0),
            "file": [bytes(300)] * 70,
        }
    )
    lk.commit("images", table)
    return lk.dataset("images")


def pixels_of(ds: Dataset) -> torch.Tensor:
    return torch.tensor(ds.scan().to_table()["image"].combine_chunks().to_numpy_ndarray())


@pytest.fixture
def model(images: Dataset) -> neural.ImageAutoencoder:
    model = neural.ImageAutoencoder(16, 3, image_size=8)
    model.calibrate([pixels_of(images)])
    return model


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_codes_are_the_models_to_half_a_step(
    dtype: str, images: Dataset, model: neural.ImageAutoencoder
) -> None:
    """Stored in so many bits, with what is as small as a label beside them, in order."""
    codes = neural.encode(images, model, "image", "codes", dtype=dtype, batch_size=16)  # type: ignore[arg-type]

    table = codes.scan().to_table()
    assert table.schema.names == ["key", "label", "weight", "code"]
    assert table["key"].to_pylist() == images.scan().to_table()["key"].to_pylist()
    assert codes.schema.field("code").type == pa.fixed_shape_tensor(pa.type_for_alias(dtype), [16])
    assert codes.vocab("label") == images.vocab("label")
    with torch.inference_mode():
        wanted = model.eval().encode(pixels_of(images))
    stored = torch.tensor(table["code"].combine_chunks().to_numpy_ndarray())
    values = Quantiser.of(codes).values(stored)
    step = torch.tensor(Quantiser.of(codes).scale) if dtype == "int8" else wanted.abs() * 2**-10
    assert ((values - wanted).abs() <= step * 0.501 + 1e-6).all()
    if dtype == "int8":
        assert (stored.abs().amax(0) == 127).all()


def test_the_model_is_in_the_lineage(lk: lake.Lake, images: Dataset, model: neural.ImageAutoencoder) -> None:
    """The recipe names source and weights by version; the weights are safetensors and build the same model."""
    codes = neural.encode(images, model, "image", "codes", message="small")

    recipe = codes.recipe
    assert recipe["source"] == {
        "dataset": "images",
        "version": images.version,
        "data": images.snapshot.document.data,
    }
    weights = lk.dataset(f"codes.model@{recipe['model']['version']}")
    assert set(weights.get("weights")) == {"key", "safetensors"}
    again = neural.model_of(codes)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    repeated = neural.encode(images, model, "image", "codes")
    assert repeated.version == codes.version
    assert len(lk.log("codes")) == len(lk.log("codes.model")) == 1


def test_other_weights_are_another_version(images: Dataset, model: neural.ImageAutoencoder) -> None:
    """Codes of before keep the model that made them."""
    before = neural.encode(images, model, "image", "codes")
    with torch.no_grad():
        model.encoder[-1].bias.add_(1)

    after = neural.encode(images, model, "image", "codes")

    assert before.version != after.version
    assert before.recipe["model"] != after.recipe["model"]
    assert not torch.equal(neural.model_of(before).encoder[-1].bias, neural.model_of(after).encoder[-1].bias)


def test_decoding_gives_tensors_or_a_dataset(images: Dataset, model: neural.ImageAutoencoder) -> None:
    """What the model makes of the codes; a dataset holds it as what was encoded, rounded and in range."""
    codes = neural.encode(images, model, "image", "codes")

    decoded = torch.cat(list(neural.decode(codes, batch_size=32)))
    back = neural.decode(codes, name="back", batch_size=32)

    stored = torch.tensor(codes.scan().to_table()["code"].combine_chunks().to_numpy_ndarray())
    with torch.inference_mode():
        wanted = model.eval().decode(Quantiser.of(codes).values(stored))
    assert torch.allclose(decoded, wanted, atol=1e-3)
    assert back.schema.field("image").type == images.schema.field("image").type
    assert torch.equal(pixels_of(back), decoded.round().clamp(0, 255).to(torch.uint8))
    assert back.recipe["source"]["version"] == codes.version
    assert back.scan().to_table()["key"].equals(images.scan().to_table()["key"])


def test_encoding_leaves_the_models_mode_alone(images: Dataset, model: neural.ImageAutoencoder) -> None:
    """A model in training goes on training, with gradients."""
    model.train()

    neural.encode(images, model, "image", "codes", columns=[])

    assert model.training
    model(pixels_of(images)[:2]).code.sum().backward()
    assert model.encoder[-1].bias.grad is not None


def test_what_cannot_be_encoded_is_named(images: Dataset, model: neural.ImageAutoencoder) -> None:
    """Columns that are no tensors, models that cannot be built again, datasets without codes."""

    class Mine(neural.ImageAutoencoder):
        pass

    with pytest.raises(lake.SchemaError, match="'file' of 'images' is large_binary; a model takes tensors"):
        neural.encode(images, model, "file", "codes")
    with pytest.raises(lake.SchemaError, match="no column 'pixels'"):
        neural.encode(images, model, "pixels", "codes")
    with pytest.raises(ValueError, match="'float16' or 'int8'"):
        neural.encode(images, model, "image", "codes", dtype="int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Mine is none of lake's models"):
        neural.encode(images, Mine(16, 3, image_size=8), "image", "codes")
    with pytest.raises(ValueError, match="'images' holds no codes"):
        neural.model_of(images)
    with pytest.raises(ValueError, match="'images' holds no model"):
        neural.load(images)
    with pytest.raises(ValueError, match="'images' holds no codes"):
        next(iter(neural.decode(images, model)))
    with pytest.raises(OverflowError, match="65,504"):
        Quantiser("float16").stored(np.full((1, 2), 1e6, np.float32))


def test_what_is_read_is_not_replaced_by_what_is_made_of_it(
    lk: lake.Lake, images: Dataset, model: neural.ImageAutoencoder
) -> None:
    """Codes under the name of their images, or images under that of the codes, are refused; nothing is committed."""
    codes = neural.encode(images, model, "image", "codes")
    before = [len(lk.log(ds.name)) for ds in (images, codes)]

    with pytest.raises(ValueError, match="is the dataset that is read"):
        neural.encode(images, model, "image", images.name)
    with pytest.raises(ValueError, match="is the dataset that is read"):
        neural.decode(codes, name="codes")

    assert [len(lk.log(ds.name)) for ds in (images, codes)] == before


def test_rates_are_bits_per_value_and_decibels(images: Dataset, model: neural.ImageAutoencoder) -> None:
    """16 bytes of 192 values are 2/3 of a bit each; files that lose nothing have no noise; JPEG trades."""
    codes = neural.encode(images, model, "image", "codes")
    pixels = pixels_of(images).numpy()

    mine = neural.code_rate(images, codes)
    files = {rate.codec: rate for rate in neural.file_rates(pixels, qualities=(5, 90))}

    decoded = torch.cat(list(neural.decode(codes))).round().clamp(0, 255)
    assert mine.bits == 8 * 16 / 192
    assert mine.psnr == pytest.approx(neural.psnr(pixels, decoded.numpy()))
    assert files["PNG"].psnr == files["zstd"].psnr == float("inf")
    assert files["PNG"].bits > 8
    assert files["JPEG 5"].bits < files["JPEG 90"].bits
    assert files["JPEG 5"].psnr < files["JPEG 90"].psnr
    assert neural.psnr([0.0, 0.0], [255.0, 255.0]) == 0


def test_columns_and_models_that_do_not_fit_are_named(
    lk: lake.Lake, images: Dataset, model: neural.ImageAutoencoder
) -> None:
    """Before anything is read, or a model of another kind fails inside of torch."""
    with pytest.raises(lake.SchemaError, match=r"column 'image' of 'images' is \[3, 8, 8\]; the model takes"):
        neural.encode(images, neural.ImageAutoencoder(), "image", "codes")
    with pytest.raises(TypeError, match="columns are a list of names"):
        neural.encode(images, model, "image", "codes", columns="label")
    with pytest.raises(TypeError, match=r"a model of lake.neural, not int"):
        neural.encode(images, 3, "image", "codes")
    lk.add_columns("images", pa.table({"key": images.scan(["key"]).to_table()["key"], "code": range(70)}))
    with pytest.raises(lake.SchemaError, match="column 'code' of 'images' has the name of the codes"):
        neural.encode(lk.dataset("images"), model, "image", "codes")
    codes = neural.encode(images, model, "image", "codes", columns=["key"])
    with pytest.raises(TypeError, match="the model that encoded, not int"):
        next(neural.decode(codes, 3))
    with pytest.raises(ValueError, match=r"\[B, 8\], not \[70, 16\]"):
        next(neural.decode(codes, neural.ImageAutoencoder(8, image_size=8)))


def test_rates_are_of_what_can_be_compared(images: Dataset, model: neural.ImageAutoencoder) -> None:
    """Arrays of one shape, images of bytes, codes of those very images."""
    codes = neural.encode(images, model, "image", "codes", columns=["key"])
    assert neural.code_rate(images, codes).psnr > 0
    for ask in (lambda: neural.code_rate(images, images), lambda: neural.code_rate(codes, codes)):
        with pytest.raises(ValueError, match=r"holds (no )?codes"):
            ask()
    for one, other in ((np.ones(3), np.ones(1)), ([], [])):
        with pytest.raises(ValueError, match="arrays of one shape are compared"):
            neural.psnr(one, other)
    for bad in (np.zeros((2, 3, 8, 8)), np.zeros((2, 2, 8, 8), np.uint8), np.zeros((0, 3, 8, 8), np.uint8)):
        with pytest.raises(ValueError, match=r"images are \[n, C, H, W\] of uint8"):
            neural.file_rates(bad)


def test_training_names_the_column_that_is_not_there(images: Dataset, model: neural.ImageAutoencoder) -> None:
    """Also where classes are texts, and epochs no number."""
    scan = images.scan(["image", "file"], batch_size=8)
    for task, says in (
        (
            neural.AutoencoderTask(model, "picture"),
            "trains on the column 'picture'; the scan has image, file",
        ),
        (neural.AutoencoderTask(model, "image", label="label"), "trains on the column 'label'"),
        (
            neural.AutoencoderTask(model, "image", label="file"),
            "column 'file' is .*binary; classes are whole numbers",
        ),
    ):
        with pytest.raises(lake.SchemaError, match=says):
            neural.fit(task, scan, epochs=1, accelerator="cpu")
    with pytest.raises(TypeError, match=r"epochs is a whole number, not 1.5"):
        neural.fit(neural.AutoencoderTask(model, "image"), scan, epochs=1.5)
