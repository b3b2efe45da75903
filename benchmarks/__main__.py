"""Run benchmarks, all or those named, and keep what they measured.

Each is a module here with `run(quick)`, which measures, and `page`, `bars` and `draw`, which say what its
figures mean; some have a `document`, a page of its own, and an `excerpt`, what the README shows. Figures are
kept as JSON in `benchmarks/results/`, those of `--quick` below it and unversioned.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.report import ROOT

TABLES = {
    "ingest": "Keeping data",
    "scan": "Reading batches",
    "cold": "Reading from a bucket for the first time",
    "beside": "Samples from a bucket, beside peers",
    "samples": "Samples one by one",
    "loader": "Through a loader",
    "sql": "Asking in SQL",
    "archives": "Reading archives",
    "plan": "Planning an epoch",
    "versions": "Large versions and long histories",
    "scale": "A large lake, on paper",
    "steady": "Beside the rate: look-ups, resumes, memory, a busy interpreter",
    "shuffle": "How good a shuffle is",
    "algebra": "Computing on runs",
    "neural": "Learned codes",
}
ESSENCE = ("ingest", "scan", "beside", "plan", "shuffle")  # what `--quick` runs, unless others are named
DOCS = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"

INTRO = """# Benchmarks

Made by `python -m benchmarks --docs` from what `make bench` measured; `make bench-quick` repeats the essence in
under three minutes, and `make bench-env` builds the environments of the peers that it runs beside lake.

Contestants take turns, round by round, after a round that does not count, and each has its own process. A
figure is the median of the rounds; ± is half of what lies between the smallest and the largest. Ratios are
taken within a round. Only ratios carry over to other machines, and below 1.5 they mean "equal" on a busy one.

Where others use the machine too, each contestant waits up to a second for a quiet moment, and of up to twice
as many rounds those count in which others took the least; "others" is the most processors that they still
had. A bar is "unsure" where the spread reaches across it."""


def measure(name: str, *, quick: bool) -> list[report.Bar]:
    """Run one benchmark: print, keep and draw its figures; the bars."""
    module: Any = importlib.import_module(f"benchmarks.{name}")
    where = report.machine()
    print(f"\n## {TABLES[name]}\n", flush=True)
    figures = module.run(quick)
    print(module.page(figures))
    print(f"\n{_origin({'machine': where, 'figures': figures})}")
    print(report.keep(name, figures, where=where, quick=quick))
    drawn = module.draw(figures, quick=quick)
    if drawn:
        print(drawn)
    judged: list[report.Bar] = module.bars(figures)
    return judged


def docs() -> str:
    """The page made of the figures that are kept."""
    bars, sections = [], []
    for name, module, kept in _kept():
        bars += module.bars(kept["figures"])
        title = TABLES[name]
        drawn = report.plot(name, quick=False).exists()
        texts = [
            f"## {title}",
            (module.__doc__ or "").strip(),
            module.page(kept["figures"]),
            f"![{title}](benchmarks/{name}.png)" if drawn else "",
            _origin(kept),
        ]
        sections.append("\n\n".join(text for text in texts if text))
    return "\n\n".join([INTRO, "## Bars", report.verdicts(bars), *sections]) + "\n"


def documents() -> dict[Path, str]:
    """The pages of their own that some benchmarks make of their figures, and the README with what it shows of them."""
    found, readme = {}, README.read_text("utf-8")
    for name, module, kept in _kept():
        if hasattr(module, "document"):
            found[DOCS.with_name(f"{name}.md")] = f"{module.document(kept['figures'])}\n\n{_origin(kept)}\n"
        if hasattr(module, "excerpt"):
            begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
            before, _, rest = readme.partition(begin)
            _, _, after = rest.partition(end)
            readme = f"{before}{begin}\n{module.excerpt(kept['figures'])}\n{end}{after}"
    return {**found, README: readme}


def _kept() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Each benchmark that has been run: name, module, figures and where they come from."""
    for name in TABLES:
        path = report.RESULTS / f"{name}.json"
        if path.exists():
            yield name, importlib.import_module(f"benchmarks.{name}"), json.loads(path.read_text("utf-8"))


def _origin(kept: dict[str, Any]) -> str:
    """Where figures come from, in a line."""
    where, versions = kept["machine"], kept["figures"]["versions"]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Measured on {where['when']}: {where['processor']}, {where['cores']} cores, {where['system']}, "
        f"load {where['load']} when it began; Python {where['python']}, {listed}."
    )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help=f"of {', '.join(TABLES)}; all by default, and with --quick {', '.join(ESSENCE)}",
    )
    parser.add_argument("--quick", action="store_true", help="less data, fewer rounds, figures not kept")
    parser.add_argument(
        "--docs",
        action="store_true",
        help=f"measure nothing; write {DOCS.relative_to(ROOT)}, the README's table and plots",
    )
    asked = parser.parse_args()
    unknown = sorted(set(asked.names) - set(TABLES))
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(TABLES)}")
    if asked.docs:
        for _, module, kept in _kept():
            module.draw(kept["figures"], quick=False)
        for path, text in {DOCS: docs(), **documents()}.items():
            path.write_text(text, "utf-8")
            print(path)
        return
    names = asked.names or (ESSENCE if asked.quick else TABLES)
    bars = [bar for name in names for bar in measure(name, quick=asked.quick)]
    if bars:
        print(f"\n## Bars\n\n{report.verdicts(bars)}")
        if asked.quick:
            print("\nQuick figures hint only: with so little data what a commit costs once weighs the most.")


if __name__ == "__main__":
    main()
