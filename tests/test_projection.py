"""What reading a few columns costs: labels and keys of images come without a byte of any image."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import lake
from lake.repo import Lake
from lake.stores import Store
from lake.stores.wrappers import CountingStore


def test_labels_and_keys_of_images_are_read_without_an_image_byte(s3_store: Store) -> None:
    """They lie in parts of their own: every object read is a light part, and all of them together are small."""
    rng = np.random.default_rng(0)
    rows = 2000
    images = pa.table(
        {
            "key": [f"{n:05d}" for n in range(rows)],
            "image": pa.array([rng.bytes(3000) for _ in range(rows)]),
            "label": pa.array(rng.integers(0, 10, rows)),
        }
    )
    counting = CountingStore(s3_store)
    lk = Lake(counting, lake.open(s3_store.url).settings, progress=False)
    lk.commit("images", images, shard_bytes="512KiB")
    ds = lk.dataset("images")
    shards = list(ds.snapshot.manifest.shards())
    light = {part.digest for shard in shards for part in shard.parts if "image" not in part.fields}
    assert len(light) == len(shards) > 5
    counting.reset()

    found = ds.scan(["key", "label"]).to_table()

    assert found.equals(images.select(["key", "label"]).cast(found.schema))
    parts = [key for _, key in counting.calls if key.startswith("shards/")]
    assert parts
    assert all(any(digest in key for digest in light) for key in parts)
    assert counting.bytes_read < 0.02 * images.nbytes
