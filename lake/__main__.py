"""The `lake` command: its first step, so small that an interrupt finds it ready to end in one line."""

import os
import sys


def main() -> None:
    """Run one command and exit."""
    _open_standard_streams()
    try:
        from lake.cli import main as run  # takes its time

        run()
    except KeyboardInterrupt:  # before the command could see to that itself
        sys.stderr.write("error: interrupted; whatever was committed before is whole\n")
        sys.exit(130)


def _open_standard_streams() -> None:
    """Put nothing where a shell closed a standard stream (`>&-`): the next file that is opened would take its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - pathlib takes its time; kept open


if __name__ == "__main__":
    main()
