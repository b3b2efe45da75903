"""The programs of `examples/`, at small size, on the real data that they name."""

from __future__ import annotations

import json
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a script that was started: its folder is where modules are looked for. One thread, so that sums repeat."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def main_of(name: str) -> Callable[..., Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_example_is_run_here_and_named_in_the_readme() -> None:
    """None is left out; each says in its docstring how it is started."""
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    tested = set(re.findall(r'main_of\("(\w+)"\)|EXAMPLES / "(\w+)\.py"', Path(__file__).read_text()))
    assert {name for pair in tested for name in pair if name} == names
    readme = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"\((\w+)\.py\)", readme)) == names
    for name in names - {"checkpoint"}:
        assert f"python examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text()


def test_digits_are_recognised_and_a_second_run_goes_on(tmp_path: Path) -> None:
    """The image classifier: far above chance after two epochs, the second of which another run makes."""
    main = main_of("images")
    main(tmp_path, epochs=1)
    assert main(tmp_path, epochs=2) > 0.6
    steps = [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1))
    assert len(list((tmp_path / "run").glob("step-*.pt"))) == 3


def test_a_language_model_learns_from_packed_rows(tmp_path: Path) -> None:
    """Bytes of the standard library: nearer to them than any order of bytes that knows nothing."""
    main = main_of("text")
    losses = main(tmp_path, documents=6, steps=30)
    assert losses[0] > 5
    assert sum(losses[-5:]) / 5 < 3.6


def test_recordings_are_told_apart(tmp_path: Path) -> None:
    """Six recordings, each asked for alike: chance is one in six."""
    assert main_of("audio")(tmp_path, steps=120) > 0.6


def test_delays_are_predicted(tmp_path: Path) -> None:
    """Better than the delay at departure."""
    mine, guessed = main_of("tabular")(tmp_path, rows=30_000, epochs=2)
    assert mine < guessed


def test_mixtures_keep_their_ratio_in_what_is_mixed(tmp_path: Path) -> None:
    """Three to one in tokens; more of the longer documents where documents are mixed."""
    of_tokens, of_documents = main_of("mixing")(tmp_path, files=20, rows=600)
    assert of_tokens == pytest.approx(0.75, abs=0.06)
    assert of_documents > of_tokens + 0.05


@pytest.mark.timeout(600)  # nine processes that load torch, however busy the machine
def test_a_killed_run_on_two_processes_ends_like_one_that_was_left_alone(tmp_path: Path) -> None:
    """`kill -9` of all processes in the middle, between checkpoints: the same losses, step by step, to the last bit."""

    def start(folder: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(EXAMPLES / "ddp.py"), str(folder), "48"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES.parent)}
        return subprocess.Popen(command, env=environment, start_new_session=True)

    alone, killed = tmp_path / "alone", tmp_path / "killed"
    assert start(alone).wait(timeout=140) == 0
    metrics = killed / "run" / "metrics.jsonl"
    process = start(killed)
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 20:
        assert process.poll() is None
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    made = metrics.read_bytes().count(b"\n")
    assert made < 48
    assert start(killed).wait(timeout=140) == 0

    assert lines(metrics) == lines(alone / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines(metrics)] == list(range(1, 49))
    assert all(math.isfinite(line["loss"]) for line in lines(metrics))


@pytest.mark.filterwarnings("default")
def test_lightning_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """57 batches are an epoch: stopped after 70, in a checkpoint at 70, a run to 100 has the losses of one."""
    main = main_of("with_lightning")
    main(tmp_path / "whole", steps=100)
    main(tmp_path / "parts", steps=70)
    main(tmp_path / "parts", steps=100)

    assert lines(tmp_path / "parts" / "metrics.jsonl") == lines(tmp_path / "whole" / "metrics.jsonl")
    assert len(list((tmp_path / "whole" / "run").glob("*.ckpt"))) == 3


def test_a_checkpoint_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash while it is written leaves the one before; the newest stay; torn lines of metrics go."""
    recipe = runpy.run_path(str(EXAMPLES / "checkpoint.py"))["Checkpoints"]
    model = torch.nn.Linear(2, 2)
    kept = recipe(tmp_path, keep=2, model=model)
    assert kept.restore() == 0
    for step in (1, 2, 3):
        with torch.no_grad():
            model.weight.fill_(step)
        kept.save(step)
        kept.log(step=step, loss=0.5)
    kept.log(step=4, loss=0.25)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')

    def torn(state: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", torn)
        with pytest.raises(OSError, match="disk full"):
            kept.save(4)

    fresh = torch.nn.Linear(2, 2)
    again = recipe(tmp_path, keep=2, model=fresh)
    assert again.restore() == 3
    assert torch.equal(fresh.weight, torch.full((2, 2), 3.0))
    again.cut_log(3)
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    assert [path.name for path in sorted(tmp_path.glob("step-*"))] == ["step-00000002.pt", "step-00000003.pt"]
