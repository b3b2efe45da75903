"""Identity does not depend on the library that encodes: an older pyarrow gives the same `data`."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

OLDER = "24.0.0"

PROGRAM = """
import sys
import numpy as np, pyarrow as pa
import lake

rows = 20_000
table = pa.table({
    "key": [f"row-{n:06d}" for n in range(rows)],
    "x": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * 4, dtype=np.float32)), 4),
    "word": pa.array([f"w{n % 50}" for n in range(rows)]).dictionary_encode(),
    "maybe": pa.array([None if n % 7 == 0 else n for n in range(rows)]),
    "many": pa.array([list(range(n % 5)) for n in range(rows)]),
})
made = lake.open(sys.argv[1], progress=False).commit("d", table, shard_bytes="64KiB", meta={"by": "test"})
print(pa.__version__, made.data, made.shards)
"""


@pytest.mark.slow
def test_an_older_pyarrow_gives_the_same_data(tmp_path: Path) -> None:
    """Files may differ to the byte; `data`, which names the logical content, may not."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(site),
            f"pyarrow=={OLDER}",
        ],
        check=True,
    )
    (site / "rest.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{Path(__file__).parents[1]}\n")

    answers = [
        subprocess.run(
            [str(binary), "-c", PROGRAM, str(tmp_path / name)], capture_output=True, text=True, check=True
        ).stdout.split()
        for binary, name in ((Path(sys.executable), "new"), (python, "old"))
    ]

    assert answers[1][0] == OLDER != answers[0][0]
    assert answers[0][1:] == answers[1][1:]
    assert int(answers[0][2]) > 10
