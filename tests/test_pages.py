"""Pages of docs/ that are programs: they run as printed, and print what they say."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PROGRAM = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
BLOCKING = {"live.md"}  # programs that watch until they are stopped; the README has one that ends


def programs(page: Path) -> list[tuple[str, str]]:
    """Each program of a page, and what follows as its output."""
    return [(program, output) for program, output in PROGRAM.findall(page.read_text("utf-8"))]


PAGES = sorted(page.name for page in DOCS.glob("*.md") if programs(page) and page.name not in BLOCKING)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # Lightning's own
@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_as_printed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in one session and one folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKE_CACHE_DIR", str(tmp_path / "cache"))
    session: dict[str, Any] = {"__name__": "page"}
    for program, output in programs(DOCS / name):
        printed = StringIO()
        with redirect_stdout(printed):
            exec(program, session)
        assert printed.getvalue() == output, program


def test_the_pages_are_found() -> None:
    """No page is skipped because its fences are written in another way."""
    assert {"algebra.md", "exchange.md", "neural.md", "pipelines.md"} <= {*PAGES}
    for page in DOCS.glob("*.md"):
        assert len(programs(page)) == page.read_text("utf-8").count("```python"), page.name
