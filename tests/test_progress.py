"""A bar shows on stderr when somebody watches, and is nothing otherwise."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from lake.progress import progress


class Terminal:
    """A stderr that says it is a terminal and keeps what it is told."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_a_bar_shows_label_rows_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """In a log the last state stays, on stderr; stdout carries results only."""
    with progress(True, "commit [birds]", total=5000) as bar:
        bar.advance(2000, new=1_200_000)
        bar.advance(500, new=0, reused=7_000)

    out, err = capsys.readouterr()
    assert out == ""
    assert "commit [birds]" in err
    assert "2,500 rows" in err
    assert "1.2 MB new, 7.0 kB reused" in err


def test_bytes_are_shown_in_their_own_units(capsys: pytest.CaptureFixture[str]) -> None:
    """A download counts bytes, not rows."""
    with progress(True, "pull birds", total=4_000_000, unit="bytes") as bar:
        bar.advance(1_500_000)

    assert "1.5/4.0 MB" in capsys.readouterr().err


@pytest.mark.parametrize("enabled", [None, False])
def test_nothing_is_shown_where_nobody_watches(
    capsys: pytest.CaptureFixture[str], enabled: bool | None
) -> None:
    """None asks stderr, which is no terminal here."""
    with progress(enabled, "commit birds") as bar:
        bar.advance(10, new=1, reused=1)

    assert capsys.readouterr() == ("", "")


def test_none_shows_on_a_terminal_and_leaves_it_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is drawn, and erased at the end: the cursor is shown again."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress(None, "commit birds") as bar:
        bar.advance(10)

    assert "commit birds" in terminal.text
    assert terminal.text.rfind("\x1b[?25h") > terminal.text.rfind("\x1b[?25l") >= 0
    assert terminal.text.endswith("\x1b[2K")


def test_a_process_without_stderr_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windowed programs have none."""
    monkeypatch.setattr(sys, "stderr", None)
    with progress(None, "commit birds") as bar:
        bar.advance(1)


def test_work_inside_other_work_shows_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The inner bar is silent; after the outer one ends, another may show."""
    with progress(True, "outer") as outer, progress(True, "inner") as inner:
        inner.advance(1)
        outer.advance(1)
    with progress(True, "later"):
        pass

    err = capsys.readouterr().err
    assert "outer" in err
    assert "inner" not in err
    assert "later" in err


def test_an_error_passes_and_frees_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """A failed commit does not silence the next one."""
    with pytest.raises(RuntimeError, match="lost"), progress(True, "first"):
        raise RuntimeError("lost")
    with progress(True, "second"):
        pass

    assert "second" in capsys.readouterr().err


def test_threads_advance_one_bar_without_losing_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Uploads finish on many threads."""

    def work() -> None:
        for _ in range(200):
            bar.advance(1, new=1)

    with progress(True, "commit", total=1600) as bar:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    err = capsys.readouterr().err
    assert "1,600 rows" in err
    assert "1.6 kB new" in err


def test_a_silent_bar_does_not_load_rich() -> None:
    """What nobody sees costs no import."""
    code = (
        "import sys; from lake.progress import progress\n"
        "with progress(None, 'x') as bar: bar.advance(1)\n"
        "sys.exit('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
