# `make demo` and `make test` do all set-up themselves, in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test lint unit test-slow examples benchmarks clean

help:
	@echo "make demo        simulate a real trace under four policies, print the table, draw the plots"
	@echo "make test        every check: lint, types, tests, examples"
	@echo "make test-slow   tests longer than CI allows (whole Philly and ElasticFlow traces)"
	@echo "make benchmarks  timings as ratios against the baselines beside them"
	@echo "make clean       remove the virtual environment and results"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: bloxopt needs Python 3.11 or newer; run with PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/bloxopt compare examples/demo.toml --overwrite

test: lint unit examples

lint: $(STAMP)
	$(BIN)/ruff format --check bloxopt tests examples benchmarks
	$(BIN)/ruff check bloxopt tests examples benchmarks
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/python -m pytest -n auto -m "not slow and not gpu"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

examples: $(STAMP)
	@set -e; for script in examples/*.py; do echo "running $$script"; $(BIN)/python $$script > /dev/null; done

benchmarks: $(STAMP)
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

clean:
	rm -rf $(VENV) results build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
