# Two commands are all the set-up there is: `make demo` and `make test`. Both make their own environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := python/constraints.txt

.PHONY: demo test lint fix docs soak simulate bench clean help

help: ## Say what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip==26.2

$(VENV)/.demo: $(BIN)/python pyproject.toml $(LOCK)
	$(BIN)/python -m pip install --quiet --constraint $(LOCK) --editable ".[embedded]"
	$(BIN)/lotwise fetch-model
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --constraint $(LOCK) --editable ".[all]" --group dev
	@touch $@

demo: $(VENV)/.demo ## Classify the shipped tickets with the embedded model, no key needed (INPUT=file PROMPT= SCHEMA= for yours)
	@$(BIN)/python examples/demo.py --input "$(INPUT)" --prompt "$(PROMPT)" --schema "$(SCHEMA)" --ledger "$(LEDGER)"

test: $(VENV)/.dev ## Run the short versions of all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

simulate: $(VENV)/.dev ## Run SEEDS=1000 simulated worlds of crashes and faults over all cores; a failing seed prints its history
	PYTHONPATH=tests $(BIN)/python -m simulation --seeds $(or $(SEEDS),1000) --start $(or $(START),0)

soak: $(VENV)/.dev ## Run the long versions of the tests (hours); put their figures into docs/reliability.md
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)
	$(MAKE) simulate SEEDS=10000

docs: $(VENV)/.dev ## Draw the plots of the docs anew and run every example in them
	$(BIN)/python docs/draw_acceptance_curves.py
	$(BIN)/python -m pytest tests/docs tests/core/test_acceptance_doc.py

bench: $(VENV)/.dev ## Collecting against its floor, in pairs
	$(BIN)/python tests/benchmarks/bench_collect.py 200000 5

lint: $(VENV)/.dev ## Check format, style, types and the import contract
	$(BIN)/ruff format --check python tests examples docs
	$(BIN)/ruff check python tests examples docs
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(VENV)/.dev ## Format and mend what can be mended
	$(BIN)/ruff format python tests examples docs
	$(BIN)/ruff check --fix python tests examples docs

clean: ## Remove what was made here
	rm -rf $(VENV) demo-out .pytest_cache .mypy_cache .ruff_cache
