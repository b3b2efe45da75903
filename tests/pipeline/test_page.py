"""The page on pipelines is a program."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


def test_the_page_on_pipelines_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program of docs/pipelines.md in turn, and what it prints."""
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    session: dict[str, Any] = {"__name__": "page"}
    programs = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for program, output in programs:
        printed = StringIO()
        with redirect_stdout(printed):
            exec(program, session)
        assert printed.getvalue() == output
    assert len(programs) == text.count("```python") == 4
