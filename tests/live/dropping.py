"""A process that drops files into a folder in every way that files come: `python dropping.py FOLDER WRITER COUNT`.

Each content names itself, so that whoever finds it can tell what all of it should be. On standard output comes one
line for each content, when it is whole: the path and the content's name; a path's last line is what is there now.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

FOLDERS = ["", "day 1", "tür/ø", "日本", "a b/c d"]
NAMES = ["frame {} .jpg", "ü{}.wav", "e\u0301 {}.json", "{}.log", "🦜 {}.bin", "plain{}.jpg"]


def content(name: str) -> bytes:
    """What a content of that name is: some bytes to some kilobytes."""
    draw = random.Random(name)
    return f"{name}\n".encode() + draw.randbytes(int(draw.expovariate(1 / 4000))) + f"\n{name}".encode()


def name_of(data: bytes) -> str:
    """The name of a content, or of its beginning."""
    return data.partition(b"\n")[0].decode()


def drop(path: Path, data: bytes, outside: Path, draw: random.Random) -> None:
    """Write the file in one of the ways in which programs do it."""
    way = draw.randrange(5)
    if way == 0:  # in place
        path.write_bytes(data)
    elif way == 1:  # in place, slowly
        with path.open("wb") as file:
            for at in range(0, len(data), len(data) // 3 + 1):
                file.write(data[at : at + len(data) // 3 + 1])
                file.flush()
                time.sleep(draw.choice([0.001, 0.02, 0.3]) if draw.random() < 0.2 else 0.002)
    elif way == 2:  # beside it
        part = path.with_name(path.name + draw.choice([".part", ".tmp"]))
        part.write_bytes(data)
        part.replace(path)
    elif way == 3:  # hidden
        part = path.with_name("." + path.name)
        part.write_bytes(data)
        part.replace(path)
    else:  # elsewhere
        part = outside / f"{draw.getrandbits(64):x}"
        part.write_bytes(data)
        part.replace(path)


def main(folder: Path, writer: int, count: int, pace: float) -> None:
    """Drop so many files, every tenth of them over an earlier one."""
    draw = random.Random(writer)
    outside = folder.parent / f"outside {writer}"
    outside.mkdir()
    paths: list[Path] = []
    for number in range(count):
        if paths and draw.random() < 0.1:
            path = draw.choice(paths)
        else:
            path = folder / draw.choice(FOLDERS) / draw.choice(NAMES).format(f"{writer} {number}")
            paths.append(path)
            path.parent.mkdir(parents=True, exist_ok=True)
        name = f"{writer}-{number}"
        drop(path, content(name), outside, draw)
        sys.stdout.write(json.dumps([path.relative_to(folder).as_posix(), name]) + "\n")
        sys.stdout.flush()
        time.sleep(draw.random() * 2 * pace)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
