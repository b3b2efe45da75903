"""The benchmarks of samples and loaders: what lake's side hands out, and what the figures are made into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import loader, peers, samples


@pytest.mark.parametrize("way", ["samples", "shuffled samples", "map and batch", "loader"])
def test_every_way_hands_out_all_samples_in_the_same_form(tmp_path: Path, way: str) -> None:
    """Asked through the process that is measured; keys and values are those of the input."""
    source, home = tmp_path / "D1.arrows", tmp_path / "lake"
    samples.stored(source, "D1", "image", 400)
    with peers.Peer("lake") as peer:
        peer.ask("keep", source=str(source), folder=str(home), shard_bytes=2**18)
        told = peer.ask("pace", way=way, folder=str(home), shard_bytes=2**18, patience=0, check=True)

    kinds = {"map and batch": "tuple(str, int)", "loader": "tuple(bytes, int)"}
    assert told["count"] == told["sums"][0] == 150
    assert told["sums"][2] == [kinds.get(way, "tuple(str, dict(value=bytes))")]


def test_bars_are_of_the_best_peer_and_say_when_they_cannot_tell() -> None:
    """A peer that is missing is named, and makes no bar."""

    def of(rate: float, times: float, spread: float = 0.1) -> dict[str, Any]:
        return {"rate": [rate, 1.0], "cpu": 1.0, "others": 0.0, "lake": [times, spread]}

    way = {"lake": of(9e5, 1.0), "litdata": of(3e5, 3.0), "datasets": of(2e5, 4.5, 2.0)}
    ways = {"samples": way, "shuffled samples": way | {"dload": of(4e5, 2.25)}, "map and batch": way}
    figures = {"versions": {}, "missing": {"dload": "no interpreter"}, "ways": ways, "profile": {}}
    bars = samples.bars(figures)

    assert [(bar.number, bar.reached) for bar in bars] == [(6, True), (6, False), (6, True)]
    assert "LitData, the best peer" in bars[0].what
    assert "dload: no interpreter" in samples.page(figures)
    noisy = {**figures, "ways": {"loader": way}, "noise": {"steps": 9, "slower": {"taking": [1.0, 0.01]}}}
    assert [(bar.number, bar.reached) for bar in loader.bars(noisy)] == [(8, None), (21, True)]
    assert "9 steps" in loader.page(noisy)
