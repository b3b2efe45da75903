"""Run every benchmark, each in a process of its own, one after the other.

python -m benchmarks [--quick]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def scripts() -> list[str]:
    """The modules here that can be run, by name."""
    found = sorted(path for path in HERE.glob("*.py") if path.stem != "__main__")
    return [path.stem for path in found if '__name__ == "__main__"' in path.read_text("utf-8")]


def main(arguments: list[str]) -> int:
    """How many benchmarks failed; the others ran all the same."""
    failed = []
    for name in scripts():
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
