# Each target does all the set-up it needs: a virtual environment in .venv with the package in it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench audit clean

demo: .venv/installed  ## VRI beside three baselines on digits with 40 % wrong labels, under two minutes
	$(BIN)/vri demo --out demo

test: .venv/installed  ## the whole test suite
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

lint: .venv/installed  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed  ## speed, memory and exactness of the step, under five minutes
	$(BIN)/vri bench --out benchmarks/results/bench.json

# In an environment of its own: the tool brings packages that the project has no use for.
audit: .venv/audit/installed  ## known weaknesses of all that constraints.txt pins; needs the network
	@.venv/audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip >.venv/audit/answer 2>&1; \
		code=$$?; cat .venv/audit/answer; \
		if grep -q 'could not be audited\|ConnectionError' .venv/audit/answer; then \
			echo "make audit: the advisories can't be reached: not all was checked; run it where there is a network"; exit 3; \
		fi; exit $$code

.venv/audit/installed:
	$(PYTHON) -m venv .venv/audit
	.venv/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1 \
		|| { echo "make audit: pip-audit can't be fetched: nothing was checked; run it where there is a network"; exit 3; }
	touch $@

clean:
	rm -rf .venv build dist demo

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@
