"""The README is a program: it runs as printed, and prints what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from lake.config import resolve

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text and the line it begins on."""

    language: str
    text: str
    line: int
    output: str | None  # the block of plain text that follows it at once


def blocks() -> Iterator[Block]:
    text = README.read_text("utf-8")
    found = list(FENCE.finditer(text))
    for block, after in zip(found, [*found[1:], None], strict=True):
        follows = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
        line = text.count("\n", 0, block.start()) + 1
        yield Block(block[1], block[2], line, after[2] if follows and after else None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own to work in, with a home of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("LAKE_URL", "LAKE_CACHE_DIR", "LAKE_CACHE_BUDGET", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run_command(line: str) -> None:
    """Run `lake ...` as a process, as a shell would."""
    code = "import sys; from lake.cli import main; sys.argv[0] = 'lake'; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *shlex.split(line, comments=True)[1:]],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert done.stdout.strip(), f"{line} printed nothing"


def test_everything_in_the_readme_runs_as_printed(folder: Path) -> None:
    """In order, in one folder: Python in one session, `lake` commands as processes, outputs compared."""
    session: dict[str, Any] = {"__name__": "__main__"}
    ran = {"python": 0, "sh": 0}
    for block in blocks():
        if block.language == "python":
            printed = StringIO()
            with redirect_stdout(printed):
                exec(compile("\n" * block.line + block.text, str(README), "exec"), session)
            assert printed.getvalue() == (block.output or ""), f"README.md:{block.line}"
            ran["python"] += 1
        elif block.language == "sh":
            commands = [line for line in block.text.splitlines() if line.startswith("lake ")]
            for command in commands:
                run_command(command)
            ran["sh"] += len(commands)
    assert ran["python"] >= 5
    assert ran["sh"] >= 5


def test_the_readmes_lake_toml_is_one(folder: Path) -> None:
    """It is read without complaint, and decides."""
    (text,) = [block.text for block in blocks() if block.language == "toml"]
    (folder / "lake.toml").write_text(text)

    settings = resolve()

    assert Path(settings.url) == folder / "mylake"
    assert settings.cache_budget == 60 * 10**9
    assert settings.sources["cache_dir"] == str(folder / "lake.toml")


def test_every_make_target_and_file_it_names_exists() -> None:
    """A newcomer's first two commands and every link lead somewhere."""
    text = README.read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"\bmake ([a-z-]+)", text))

    assert {"demo", "test"} <= targets
    assert [t for t in sorted(targets) if not re.search(rf"^{t}:", makefile, re.MULTILINE)] == []
    assert [p for p in re.findall(r"\]\(([^)#:]+)\)", text) if not (ROOT / p).exists()] == []
