"""Members kept in memory: within the budget, the right bytes, for all processes that share it."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.archives.ring import Ring

SIZES = [0, 1, 7, 30, 64, 100, 101]


def content(number: int) -> bytes:
    return bytes([number + 1]) * SIZES[number]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, len(SIZES) - 1))))
def test_what_is_kept_is_what_was_put(steps):
    """The last members put that fit together are there; none is ever another's bytes."""
    ring = Ring(100, array("q", SIZES))
    recent: list[int] = []
    for put, number in steps:
        if put:
            ring.put(number, content(number))
            recent = [number, *recent]
        found = ring.get(number)
        assert found in (None, content(number))
        if put and 0 < SIZES[number] <= 100:
            assert found == content(number)
        elif number not in recent or SIZES[number] > 100:
            assert found is None or not SIZES[number]
    sizes = [SIZES[n] for n in dict.fromkeys(n for n in recent if 0 < SIZES[n] <= 100)]
    held = [n for n in range(len(SIZES)) if SIZES[n] and ring.get(n)]
    assert sum(SIZES[n] for n in held) <= 100
    assert not sizes or held


def test_hits_and_misses_are_counted_together():
    """For all processes."""
    ring = Ring(100, array("q", SIZES))
    ring.put(3, content(3))
    process = multiprocessing.get_context("fork").Process(
        target=lambda: (ring.get(3), ring.put(4, content(4)), ring.get(5))
    )
    process.start()
    process.join()

    assert ring.get(4) == content(4)
    assert (ring.counters.hits, ring.counters.misses) == (2, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_killed_process_blocks_nobody():
    """Its lock goes with it, even if it dies in the middle of a write."""
    ring = Ring(100, array("q", SIZES))

    def die() -> None:
        lockf = fcntl.lockf

        def lock_and_die(*arguments) -> None:
            lockf(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        fcntl.lockf = lock_and_die
        ring.put(2, content(2))

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL

    ring.put(3, content(3))
    assert ring.get(3) == content(3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_processes_that_write_over_each_other_never_read_what_is_not_whole():
    """Four of them, on members of five times the budget."""
    sizes = np.random.default_rng(0).integers(1, 60_000, 400)
    members = [(number % 251).to_bytes(1, "little") * size for number, size in enumerate(sizes.tolist())]
    ring = Ring(int(sizes.sum()) // 5, array("q", sizes))

    def work(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, len(members), 20_000).tolist():
            data = ring.get(number)
            if data is None:
                ring.put(number, members[number])
            elif data != members[number]:
                os._exit(1)

    processes = [multiprocessing.get_context("fork").Process(target=work, args=(seed,)) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert ring.counters.hits > 0
