"""Messages through shared memory: whole, in order, and nobody's until they were read."""

from __future__ import annotations

import threading
from multiprocessing import Pipe

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.torch.ring import Memory, Octets, Reader, Writer

SIZE = 4096  # bytes of memory

lengths = st.one_of(st.integers(0, 300), st.integers(0, SIZE), st.integers(SIZE, 3 * SIZE))
messages = st.lists(
    st.tuples(st.integers(1, 2), st.lists(lengths, min_size=1, max_size=3)), min_size=1, max_size=12
)


def octets(number: int, part: int, length: int) -> Octets:
    return np.random.default_rng([number, part]).integers(0, 256, length, np.uint8)


@settings(max_examples=40, deadline=None)
@given(messages)
def test_a_message_is_what_was_sent_until_the_next_is_asked_for(sent: list[tuple[int, list[int]]]) -> None:
    """Smaller and larger than the memory, over its end or not; all parts but the first are the reader's for good."""
    ours, theirs = Pipe()
    memory = Memory(SIZE)
    writer = Writer(memory, theirs, lambda said: None)

    def send() -> None:
        for number, (generation, sizes) in enumerate(sent):
            parts = [[octets(number, part, size)] for part, size in enumerate(sizes)]
            writer.send(generation, number, parts)
        writer.send(2, len(sent), [[]])

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    reader, kept = Reader(memory, ours, lambda size: np.empty(size, np.uint8)), []
    wanted = [number for number, (generation, _) in enumerate(sent) if generation == 2]
    for number in wanted:
        kind, (first, *others) = reader.receive(2)
        assert kind == number
        assert np.array_equal(first, octets(number, 0, sent[number][1][0]))
        kept.append(others)
    assert reader.receive(2)[0] == len(sent)
    sender.join(60)
    assert not sender.is_alive()
    for number, others in zip(wanted, kept, strict=True):
        for part, (found, size) in enumerate(zip(others, sent[number][1][1:], strict=True), 1):
            assert np.array_equal(found, octets(number, part, size))
    ours.close()
    theirs.close()
