"""Folders in which files keep arriving: handed to a function, or appended to a dataset, each file once.

`arrivals`, `policy` and `kinds` decide and touch nothing; `notices` looks, `journal` remembers, `watcher` acts;
`to_function` and `to_dataset` are what users call, and `batch` is what they get.
"""

from lake.live.batch import Bad, Batch, FileChanged, Mfcc, Picture, Record, Table, Text, Waveform
from lake.live.to_dataset import ingest
from lake.live.to_function import Arrived, release, watch
from lake.live.watcher import Watched

__all__ = [
    "Arrived",
    "Bad",
    "Batch",
    "FileChanged",
    "Mfcc",
    "Picture",
    "Record",
    "Table",
    "Text",
    "Watched",
    "Waveform",
    "ingest",
    "release",
    "watch",
]
