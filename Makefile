# Each target does all the set-up it needs: a virtual environment in .venv with the package in it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench clean

demo: .venv/installed  ## VRI beside three baselines on digits with 40 % wrong labels, under two minutes
	$(BIN)/vri demo --out demo

test: .venv/installed  ## the whole test suite
	$(BIN)/python -m pytest

lint: .venv/installed  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed  ## speed, memory and exactness of the step, under five minutes
	$(BIN)/vri bench --out benchmarks/results/bench.json

clean:
	rm -rf .venv build dist demo

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@
