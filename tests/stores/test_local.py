"""The folder store: what is forced to the disk and when, what a full disk and a hostile folder do."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake import _os
from lake.errors import NotFoundError, StoreError
from lake.stores import LocalStore
from lake.stores.local import LocalStaged

posix = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX file system")


def keys(store: LocalStore, *args: Any, **kwargs: Any) -> list[str]:
    return [found.key for found in store.list(*args, **kwargs)]


# --- durability -----------------------------------------------------------------------------


@pytest.fixture
def steps(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Every step towards the disk, with its place below the folder that holds the lake."""
    taken: list[tuple[str, str]] = []
    above = local_store.root.parent

    def record(name: str, place: int) -> None:
        real = getattr(_os, name)

        def step(*args: Any) -> None:
            path = Path(f"/proc/self/fd/{args[0]}").readlink() if name == "fsync" else args[place]
            real(*args)  # raises where it did not happen
            taken.append((name, str(Path(path).relative_to(above))))

        monkeypatch.setattr(_os, name, step)

    record("fsync", 0)
    record("fsync_dir", 0)
    record("link_new", 1)
    return taken


linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks /proc which file a descriptor is"
)


@linux
def test_a_name_appears_after_its_bytes_and_before_its_directories(
    local_store: LocalStore, steps: Any
) -> None:
    """File forced, then linked, then its directory and every new one above it; later its own only."""
    local_store.put_new("shards/ab/x", b"1")

    (first, file), second, *rest = steps
    assert (first, file.rpartition("/")[0]) == ("fsync", "lake/tmp")
    assert second == ("link_new", "lake/shards/ab/x")
    assert {name for name, _ in rest} == {"fsync_dir"}
    assert [path for _, path in rest] == ["lake/shards/ab", "lake/shards", "lake", "."]
    steps.clear()
    local_store.put_new("shards/ab/y", b"2")
    assert [name for name, _ in steps] == ["fsync", "link_new", "fsync_dir"]
    assert steps[-1] == ("fsync_dir", "lake/shards/ab")


@linux
def test_a_taken_name_is_forced_to_the_disk_too(local_store: LocalStore, steps: Any, tmp_path: Path) -> None:
    """Who relies on an object that another process just linked must not lose it to a power cut."""
    local_store.put_new("shards/ab/x", b"1")
    steps.clear()

    assert not LocalStore(tmp_path / "lake").put_new("shards/ab/x", b"1")

    assert [path for name, path in steps if name == "fsync_dir"] == ["lake/shards/ab", "lake/shards", "lake"]


@linux
def test_deletes_are_forced_to_the_disk_once_a_directory(local_store: LocalStore, steps: Any) -> None:
    """Documents go before what they name, also when the power does."""
    for i in range(5):
        local_store.put_new(f"d/{i}", b"")
    steps.clear()

    local_store.delete([f"d/{i}" for i in range(5)])

    assert steps == [("fsync_dir", "lake/d")]


def _die_in_the_middle(root: str) -> None:
    with LocalStore(root).stage() as staged:
        staged.write(b"x" * 1_000_000)
        os.kill(os.getpid(), signal.SIGKILL)


@posix
def test_a_killed_writer_leaves_only_tmp(local_store: LocalStore) -> None:
    """What it was writing is below `tmp/`, for gc to find by its age; no key stands for it."""
    child = multiprocessing.get_context("spawn").Process(
        target=_die_in_the_middle, args=(str(local_store.root),)
    )
    child.start()
    child.join(60)

    assert child.exitcode == -signal.SIGKILL
    assert [key.partition("/")[0] for key in keys(local_store)] == ["tmp"]


# --- a disk that will not ------------------------------------------------------------------


@pytest.fixture
def _full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStaged, "_create", lambda self: open("/dev/full", "wb", 1000))  # noqa: SIM115, PTH123


@pytest.mark.usefixtures("_full_disk")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_full_disk_is_one_clear_error(local_store: LocalStore, size: int) -> None:
    """Whether the write or the last flush meets it: path, reason, free bytes; nothing is published, ever."""
    with local_store.stage() as staged:
        with pytest.raises(
            StoreError, match=r"cannot write .*tmp/.*No space left.* bytes are free"
        ) as caught:
            assert staged.write(b"x" * size) and staged.publish("k", "")  # noqa: PT018
        assert not caught.value.retryable
        with pytest.raises((StoreError, ValueError)):
            staged.publish("k", "")

    assert local_store.head("k") is None


def test_a_failed_fsync_is_final(local_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reports lost pages once; a second fsync that succeeds says nothing about them."""
    fsync = _os.fsync

    def fail_once(fd: int) -> None:
        monkeypatch.setattr(_os, "fsync", fsync)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(_os, "fsync", fail_once)
    with local_store.stage() as staged:
        staged.write(b"x")
        for _ in range(2):
            with pytest.raises(StoreError):
                staged.publish("k", "")

    assert keys(local_store) == []


@posix
def test_a_file_size_limit_is_one_clear_error(local_store: LocalStore) -> None:
    """A write that the system really refuses part-way is reported, and its remains go."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StoreError, match=r"File too large.*ulimit -f"):
            local_store.put_new("k", b"x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert keys(local_store) == []


@pytest.mark.parametrize(
    ("code", "words", "retryable"),
    [
        (errno.EACCES, "Permission denied", False),
        (errno.EROFS, "mount it writable", False),
        (errno.EMFILE, "ulimit -n", True),
        (errno.EXDEV, "one file system", False),
        (errno.ESTALE, "", True),
        (errno.EIO, "", False),
    ],
)
def test_the_system_s_words_come_with_a_way_out(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, words: str, retryable: bool
) -> None:
    """Path, reason, advice, and whether repeating may help."""

    def refuse(source: str, target: str) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(_os, "link_new", refuse)

    with pytest.raises(StoreError) as caught:
        local_store.put_new("a/k", b"v")

    assert str(local_store.root / "a" / "k") in str(caught.value)
    assert os.strerror(code) in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.retryable is retryable
    assert keys(local_store) == []


def test_what_is_in_the_way_is_an_error_not_a_taken_key(local_store: LocalStore) -> None:
    """A folder where an object belongs, or the other way round, is never reported as "exists"."""
    local_store.put_new("a/b", b"")

    with pytest.raises(StoreError, match="in the way"):
        local_store.put_new("a", b"")
    with pytest.raises(StoreError, match="a/b"):
        local_store.put_new("a/b/c", b"")
    with pytest.raises(StoreError, match="cannot write"):
        local_store.put("a", b"")


def test_a_root_that_is_a_file_is_no_store(tmp_path: Path) -> None:
    """Reading finds nothing there; writing says what is wrong."""
    (tmp_path / "file").write_bytes(b"mine")
    store = LocalStore(tmp_path / "file")

    assert not store.exists()
    assert keys(store) == []
    with pytest.raises(NotFoundError, match="folder exists: no"):
        store.get("lake.json")
    with pytest.raises(StoreError, match="cannot create"):
        store.put_new("lake.json", b"")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_opening_and_reading_make_nothing(tmp_path: Path) -> None:
    """A folder that is only read is not created."""
    store = LocalStore(tmp_path / "nowhere")
    with pytest.raises(NotFoundError, match="folder exists: no"):
        store.get("lake.json")
    assert store.head("lake.json") is None
    assert keys(store) == []
    assert store.delete(["x/y"]) == {}

    assert not (tmp_path / "nowhere").exists()


@linux
def test_directories_made_again_are_forced_to_the_disk_again(local_store: LocalStore, steps: Any) -> None:
    """What was seen onto the disk once says nothing about its successor of the same name."""
    local_store.put_new("a/b/1", b"1")
    shutil.rmtree(local_store.root / "a")
    steps.clear()

    local_store.put_new("a/b/1", b"2")

    assert [path for name, path in steps if name == "fsync_dir"][:3] == ["lake/a/b", "lake/a", "lake"]


def test_a_folder_removed_under_a_store_is_made_again(local_store: LocalStore) -> None:
    """What the process knew of directories is forgotten when one is found missing."""
    local_store.put_new("a/b/1", b"1")
    shutil.rmtree(local_store.root)

    assert local_store.put_new("a/b/1", b"2")
    local_store.put("c/head", b"3")
    assert local_store.get("a/b/1") == b"2"


# --- hostile folders ------------------------------------------------------------------------


@posix
def test_no_key_leads_out_through_a_symbolic_link(local_store: LocalStore, tmp_path: Path) -> None:
    """Linked files and directories are neither read, written, deleted through, nor descended into."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    local_store.put_new("a/real", b"")
    (local_store.root / "shards").symlink_to(outside)
    (local_store.root / "a" / "link").symlink_to(outside / "secret")

    for key in ("shards/secret", "a/link"):
        with pytest.raises(StoreError, match="symbolic link"):
            local_store.get(key)
    with pytest.raises(StoreError, match="symbolic link"):
        local_store.put_new("shards/new", b"")
    with pytest.raises(StoreError, match="symbolic link"):
        local_store.delete(["shards/secret"])
    with pytest.raises(StoreError, match="symbolic link"):
        keys(local_store, "shards/")
    assert keys(local_store) == ["a/link", "a/real", "shards"]
    local_store.put("a/link", b"mine")
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


@posix
def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    """Where a user keeps a lake is the user's business."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    store = LocalStore(tmp_path / "link")

    assert store.put_new("k", b"v")
    assert (tmp_path / "disk" / "k").read_bytes() == b"v"


@posix
def test_a_pipe_does_not_hold_a_reader_up(local_store: LocalStore) -> None:
    """What is no file is not found; opening it does not wait for a writer."""
    local_store.put_new("a/x", b"")
    os.mkfifo(local_store.root / "a" / "pipe")

    with pytest.raises(NotFoundError):
        local_store.get("a/pipe")


# --- listing against a model ----------------------------------------------------------------

parts = st.text(alphabet="ab-.0/é🦆", min_size=1, max_size=6)
key_sets = st.lists(parts, max_size=12).map(
    lambda found: sorted({key for key in found if not {"", ".", ".."} & set(key.split("/"))})
)


def _without_clashes(found: list[str]) -> list[str]:
    """A folder cannot have a file and a directory of one name."""
    return [key for key in found if not any(other.startswith(key + "/") for other in found)]


@settings(max_examples=60, deadline=None)
@given(key_sets.map(_without_clashes), st.one_of(st.just(""), parts), st.one_of(st.none(), parts))
def test_listing_is_filtering_the_sorted_keys(found: list[str], prefix: str, after: str | None) -> None:
    """For any keys, prefix and starting point, whatever the nesting of folders."""
    if {"", ".", ".."} & set(prefix.removesuffix("/").split("/")):
        prefix = ""
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(folder)
        for key in found:
            path = store.local_path(key)
            assert path is not None
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

        expected = [key for key in found if key.startswith(prefix) and (after is None or key > after)]
        assert keys(store, prefix, start_after=after) == expected


def test_folders_before_the_start_are_not_read(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going on after a key opens no directory that sorts before it."""
    for i in range(20):
        local_store.put_new(f"d/{i:02}/x", b"")
    opened: list[str] = []
    scandir = os.scandir

    def record(path: str) -> Any:
        opened.append(Path(path).name)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", record)

    assert keys(local_store, "d/", start_after="d/17/x") == ["d/18/x", "d/19/x"]
    assert opened == ["d", "17", "18", "19"]


def test_what_is_deleted_while_listing_is_no_error(local_store: LocalStore) -> None:
    """Files and directories that go between reading a directory and coming to them are left out."""
    for key in ("a/1", "a/2", "b/3", "c/4"):
        local_store.put_new(key, b"")
    listing = local_store.list()

    assert next(listing).key == "a/1"
    local_store.delete(["a/2"])
    shutil.rmtree(local_store.root / "b")

    assert [found.key for found in listing] == ["c/4"]


# --- creating without hard links ------------------------------------------------------------


def test_a_folder_that_cannot_tell_two_writers_apart_is_refused(
    local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither links nor a rename that never replaces: the way out is named, and works."""
    monkeypatch.setattr(_os, "WAYS", ())

    with pytest.raises(StoreError, match="single_writer=True"):
        local_store.put_new("k", b"v")
    single = LocalStore(local_store.root, single_writer=True)
    assert single.put_new("k", b"v")
    assert not single.put_new("k", b"w")
    assert single.get("k") == b"v"
    assert keys(single) == ["k"]


# --- leases ---------------------------------------------------------------------------------


def _hold(root: str, ready: Any) -> None:
    with LocalStore(root).root_lease():
        ready.set()
        signal.pause()


@pytest.fixture
def holder(local_store: LocalStore) -> Iterator[Any]:
    """Another process that holds the shared lease until it is killed."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    child = context.Process(target=_hold, args=(str(local_store.root), ready))
    child.start()
    assert ready.wait(60)
    yield child
    child.kill()
    child.join(60)


def _can_lease(store: LocalStore, *, exclusive: bool) -> bool:
    fd = os.open(store.root / "gc" / "lease", os.O_RDWR)
    try:
        return _os.lock(fd, exclusive=exclusive, wait=False)
    finally:
        os.close(fd)


@posix
def test_an_exclusive_lease_waits_for_shared_ones_and_death_ends_them(
    local_store: LocalStore, holder: Any
) -> None:
    """A writer between clock test and link keeps the sweep out; a killed one does not."""
    assert _can_lease(local_store, exclusive=False)
    assert not _can_lease(local_store, exclusive=True)

    holder.kill()
    holder.join(60)

    with local_store.root_lease(exclusive=True):
        assert not _can_lease(local_store, exclusive=False)
    assert _can_lease(local_store, exclusive=True)


@posix
def test_a_forked_child_does_not_keep_a_lease(local_store: LocalStore) -> None:
    """The lease ends with the block, whatever processes were started inside it."""
    with local_store.root_lease():
        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
    try:
        assert _can_lease(local_store, exclusive=True)
    finally:
        child.kill()
        child.join(60)
