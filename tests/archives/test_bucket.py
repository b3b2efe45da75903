"""Archives in a bucket: what is asked of it, byte by byte."""

from __future__ import annotations

import pickle
import random

import pytest

import lake
from lake.archives import place as places
from lake.errors import ArchiveError, NotFoundError
from lake.stores import open_store
from lake.stores.wrappers import CountingStore
from tests.archives.packing import KINDS, packed, some, tar_of, zip_of

MEMBERS = some()
SLACK = 64 << 10


@pytest.fixture
def counted(s3_url, monkeypatch) -> CountingStore:
    """The bucket behind every archive that is opened."""
    store = CountingStore(open_store(s3_url.rpartition("/")[0]))
    monkeypatch.setattr(places, "open_store", lambda *_, **__: store)
    return store


def upload(s3_url: str, name: str, data: bytes) -> str:
    open_store(s3_url).put(name, data)
    return f"{s3_url}/{name}"


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_in_a_bucket_is_like_one_on_disk(s3_url, kind):
    """Sequential and shuffled, pickled too."""
    opened = lake.archive(upload(s3_url, f"x.{kind}", packed(kind, MEMBERS)), cache_bytes=30_000)
    order = random.Random(0).sample(range(len(MEMBERS)), len(MEMBERS))

    assert list(opened) == [data for _, data in MEMBERS]
    assert [opened[i] for i in order] == [MEMBERS[i][1] for i in order]
    assert pickle.loads(pickle.dumps(opened)).read_many(order) == [MEMBERS[i][1] for i in order]


def test_one_member_costs_little_more_than_itself(s3_url, counted):
    """Of a 20 MB zip: its directory, the member, and at most 64 KB."""
    draw = random.Random(0)
    members = [(f"m{i}", draw.randbytes(50_000)) for i in range(400)]
    data = zip_of(members)
    directory = len(data) - data.index(b"PK\1\2")
    url = upload(s3_url, "large.zip", data)
    assert len(data) > 20_000_000

    opened = lake.archive(url)
    assert counted.bytes_read <= directory + SLACK // 2
    assert opened.read("m123") == members[123][1]
    assert counted.bytes_read <= 50_000 + directory + SLACK
    assert counted.counts == {"head": 1, "get_range": 3 if directory > 32 << 10 else 2}
    assert opened.read("m123") == members[123][1]
    assert counted.counts["get_range"] <= 3, "what was read is kept"


def test_neighbours_share_a_request(s3_url, counted):
    """All of a small archive, in any order, is one read; of a far part of a large one nothing is fetched."""
    for kind, data in (("zip", zip_of(MEMBERS)), ("tar", tar_of(MEMBERS))):
        opened = lake.archive(upload(s3_url, f"x.{kind}", data))
        counted.reset()
        order = random.Random(1).sample(range(len(MEMBERS)), len(MEMBERS))
        assert opened.read_many(order) == [MEMBERS[i][1] for i in order]
        assert counted.counts["get_range"] == 1
        assert counted.bytes_read <= len(data)


def test_a_large_directory_is_read_page_by_page(s3_url, counted):
    """A thousand small requests it is not."""
    members = [(f"folder/{i:06d}", b"x") for i in range(3000)]
    opened = lake.archive(upload(s3_url, "many.zip", zip_of(members)))

    assert opened.names == tuple(name for name, _ in members)
    assert counted.counts["get_range"] <= 2


def test_what_goes_wrong_names_bucket_and_key(s3_url):
    """Absent, and shorter than it was."""
    with pytest.raises(NotFoundError, match=r"s3://lake-tests/.*nothing\.zip.*bucket exists: yes"):
        lake.archive(f"{s3_url}/nothing.zip")
    opened = lake.archive(upload(s3_url, "x.zip", zip_of(MEMBERS)), cache_bytes=0)
    upload(s3_url, "x.zip", zip_of(MEMBERS)[:100])
    with pytest.raises((ArchiveError, lake.StoreError), match=r"x\.zip"):
        opened[50]
    with pytest.raises(ValueError, match="no archive"):
        lake.archive("gopher://x/y.zip")
