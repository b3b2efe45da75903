"""`lake archive`: list, describe, print, check, recompress."""

from __future__ import annotations

import json

import pytest

from lake.cli.app import Exit
from tests.archives.packing import KINDS, pack, zip_of

MEMBERS = [("a/1.jpg", b"j" * 5000), ("a/2.jpg", b"k"), ("README", b"\xff\0 binary")]


@pytest.mark.parametrize("kind", KINDS)
def test_ls_and_info_say_what_is_in_it(folder, answer, run, kind):
    """Names, sizes, types; for people and as JSON."""
    path = str(pack(folder, kind, MEMBERS))

    listed = answer("archive", "ls", path)
    assert [(row["name"], row["size"]) for row in listed] == [(name, len(data)) for name, data in MEMBERS]
    info = answer("archive", "info", path)
    assert (info["members"], info["raw_bytes"], info["bytes"]) == (3, 5010, (folder / path).stat().st_size)
    assert info["types"][0] == {"type": "jpg", "members": 2, "bytes": 5001}
    assert "a/2.jpg" in run("archive", "ls", path).stdout
    assert "jpg" in run("archive", "info", path).stdout


def test_cat_prints_the_bytes(folder, run, answer):
    """As they are; base64 in JSON."""
    pack(folder, "zip", MEMBERS)
    assert run("archive", "cat", "x.zip", "README").stdout_bytes == MEMBERS[2][1]
    assert answer("archive", "cat", "x.zip", "a/2.jpg") == {"name": "a/2.jpg", "data": "aw=="}
    missing = run("archive", "cat", "x.zip", "a/3.jpg")
    assert (missing.exit_code, "nearest" in missing.stderr) == (Exit.NOT_FOUND, True)


def test_one_damaged_member_is_found(folder, run, answer):
    """By name; the exit code tells a script."""
    pack(folder, "zip", MEMBERS)
    assert answer("archive", "verify", "x.zip")["damaged"] == []
    data = bytearray(zip_of(MEMBERS))
    data[data.index(b"README") + 8] ^= 1
    (folder / "x.zip").write_bytes(data)

    result = run("archive", "verify", "x.zip", "--json")
    assert result.exit_code == Exit.DAMAGED
    assert [each["name"] for each in json.loads(result.stdout)["damaged"]] == ["README"]
    (folder / "x.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd nonsense")
    broken = run("archive", "verify", "x.tar.zst")
    assert (broken.exit_code, "x.tar.zst" in broken.stderr) == (Exit.DAMAGED, True)
    assert run("archive", "verify", "absent.zip").exit_code == Exit.NOT_FOUND


def test_recompress_writes_small_frames(folder, run, answer):
    """And refuses to write over anything."""
    pack(folder, "tar.gz", MEMBERS)
    assert answer("archive", "recompress", "x.tar.gz", "y.tar.zst")["members"] == 3
    assert answer("archive", "verify", "y.tar.zst")["members"] == 3
    assert run("archive", "recompress", "x.tar.gz", "y.tar.zst").exit_code == Exit.FAILED
    assert run("archive", "recompress", "x.tar.gz", "y.zip").exit_code == Exit.USAGE


@pytest.mark.parametrize(
    "arguments", [("cat", "x.zip"), ("ls", "x.zip", "more"), ("recompress", "x.tar"), ("eat", "x")]
)
def test_usage_is_explained(folder, run, arguments):
    """Instead of done by half."""
    assert run("archive", *arguments).exit_code == Exit.USAGE
