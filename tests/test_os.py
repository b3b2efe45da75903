"""Each difference between systems, on this one: the ways it has, and the fallbacks of those it has not."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake import _os

needs_hard_links = pytest.mark.skipif(sys.platform == "win32", reason="Windows renames")


@pytest.mark.parametrize("way", _os.WAYS, ids=lambda way: way.__name__)
def test_each_way_gives_a_name_once(tmp_path: Path, way: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is gone after success, and still there after FileExistsError; the target never changes."""
    monkeypatch.setattr(_os, "WAYS", (way,))
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"first")
    _os.link_new(str(source), str(target))
    assert not source.exists()

    source.write_bytes(b"second")
    with pytest.raises(FileExistsError):
        _os.link_new(str(source), str(target))

    assert source.read_bytes() == b"second"
    assert target.read_bytes() == b"first"
    with pytest.raises(FileNotFoundError):
        _os.link_new(str(source), str(tmp_path / "nowhere" / "target"))
    with pytest.raises(FileNotFoundError):
        _os.link_new(str(tmp_path / "nothing"), str(tmp_path / "new"))


@needs_hard_links
@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_without_hard_links_it_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """FAT answers EPERM, others ENOTSUP: the next way is taken, and refuses a taken name like the first."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")

    _os.link_new(str(tmp_path / "a"), str(tmp_path / "new"))
    with pytest.raises(FileExistsError):
        _os.link_new(str(tmp_path / "b"), str(tmp_path / "new"))

    assert (tmp_path / "new").read_bytes() == b"a"


@needs_hard_links
def test_a_refused_link_is_not_worked_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EACCES is about rights, not about hard links."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").touch()

    with pytest.raises(PermissionError):
        _os.link_new(str(tmp_path / "a"), str(tmp_path / "new"))

    assert not (tmp_path / "new").exists()


def test_without_any_way_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a rename that could replace."""
    monkeypatch.setattr(_os, "WAYS", ())
    (tmp_path / "a").touch()

    with pytest.raises(OSError, match="neither") as caught:
        _os.link_new(str(tmp_path / "a"), str(tmp_path / "new"))

    assert caught.value.errno == errno.ENOTSUP
    assert (tmp_path / "a").exists()


@needs_hard_links
def test_a_link_that_an_nfs_server_made_before_counts(tmp_path: Path) -> None:
    """The first reply was lost, the repeated call finds its own link: that is success."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x")
    os.link(source, target)

    _os.link_new(str(source), str(target))

    assert not source.exists()
    assert target.read_bytes() == b"x"


@pytest.mark.parametrize(
    ("code", "tolerated"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)]
)
@needs_hard_links
def test_directories_that_cannot_be_synced_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, tolerated: bool
) -> None:
    """ "Not supported" is no failure; a real one is raised."""

    def refuse(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    if tolerated:
        _os.fsync_dir(str(tmp_path))
    else:
        with pytest.raises(OSError, match="error"):
            _os.fsync_dir(str(tmp_path))


@pytest.mark.parametrize("portable", [False, True])
def test_reading_at_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portable: bool) -> None:
    """The same bytes with and without the system's positioned reads."""
    if portable:
        monkeypatch.delattr(os, "pread", raising=False)
        monkeypatch.delattr(os, "preadv", raising=False)
    (tmp_path / "f").write_bytes(bytes(range(100)))
    fd = os.open(tmp_path / "f", os.O_RDONLY | _os.OPEN_FLAGS)
    try:
        buffer = bytearray(20)
        assert _os.read_at(fd, 10, 50) == bytes(range(50, 60))
        assert _os.read_at(fd, 10, 95) == bytes(range(95, 100))
        assert _os.read_into(fd, memoryview(buffer), 90) == 10
        assert buffer[:10] == bytes(range(90, 100))
    finally:
        os.close(fd)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6))))
def test_the_steady_clock_follows_the_faster_one(steps: list[tuple[float, float]]) -> None:
    """However the wall clock jumps and the boot clock stands still, it never goes back nor falls behind."""
    wall, boot = [1.7e9], [1000.0]
    clock = _os.SteadyClock(lambda: wall[0], lambda: boot[0])
    before = clock()
    for jump, slept in steps:
        wall[0] += jump
        boot[0] += slept
        now = clock()
        assert now >= wall[0] - 1e-3
        assert now - before >= slept - 1e-3
        assert now - before >= -1e-6
        before = now


@pytest.mark.parametrize("missing", [[], ["CLOCK_BOOTTIME"], ["CLOCK_BOOTTIME", "CLOCK_MONOTONIC"]])
def test_every_boot_clock_runs(monkeypatch: pytest.MonkeyPatch, missing: list[str]) -> None:
    """The best that the system has; one that stops in sleep where there is nothing better."""
    for name in missing:
        monkeypatch.delattr(time, name, raising=False)

    first = _os.boot_clock()
    time.sleep(0.002)

    assert _os.boot_clock() > first


def test_a_lease_is_between_descriptors(tmp_path: Path) -> None:
    """Two of one process exclude each other like strangers; unlocking lets the other in."""
    path = tmp_path / "lease"
    one, two = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        assert _os.lock(one, exclusive=True)
        assert not _os.lock(two, exclusive=True, wait=False)
        assert not _os.lock(two, exclusive=False, wait=False)
        _os.unlock(one)
        assert _os.lock(two, exclusive=True, wait=False)
        _os.unlock(two)
    finally:
        os.close(one)
        os.close(two)


def test_disk_is_told_for_places_that_are_not_yet(tmp_path: Path) -> None:
    """The free bytes of the disk on which a path will be."""
    assert _os.available_disk(tmp_path / "not" / "yet") > 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_file_that_is_open_for_writing_is_told(tmp_path: Path) -> None:
    """By any descriptor, of this process too; readers do not count, and asking disturbs nobody."""
    path = tmp_path / "x"
    with path.open("wb") as writer:
        assert _os.being_written(str(path)) in (True, None)
        writer.write(b"1")
    with path.open("rb") as reader:
        assert _os.being_written(str(path)) in (False, None)
        assert reader.read() == b"1"
    assert _os.being_written(str(tmp_path / "none")) is None
