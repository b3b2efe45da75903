"""`python -m lake.cli`: the `lake` script, where it is not on the path."""

from lake.cli import main

main()
