# `make test` and `make demo` need nothing but Python 3.11 or newer; the rest is installed into .venv,
# and not again until pyproject.toml or constraints.txt changes.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: demo test test-full check cover bench bench-quick bench-env docs clean
.DELETE_ON_ERROR:

demo: $(STAMP) ## a lake in a temporary folder: commit, query, train
	$(BIN)/lake demo

test: $(STAMP) ## every test but the slow sweeps
	$(PYTEST)

test-full: $(STAMP) ## every test, sweeps at full size
	LAKE_TEST_FULL=1 $(PYTEST) -m "not s3"

check: $(STAMP) ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

cover: $(STAMP)
	$(PYTEST) --cov --cov-report=term

bench: $(STAMP) ## every benchmark, beside the peers that bench-env has built, and the page of them
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks --docs

bench-quick: $(STAMP) ## the essence of them in under three minutes
	$(BIN)/python -m benchmarks --quick

bench-env: $(STAMP) ## an environment for each peer below .bench/; one that cannot be built is skipped
	$(BIN)/python -m benchmarks.peers build

docs: $(STAMP) ## the pages of docs/ as a site in build/docs
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean:
	rm -rf .venv dist build

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lake needs Python 3.11 or newer; PYTHON=... says which")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
