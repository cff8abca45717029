# Needs Python 3.11 or later with its venv module; everything else is installed into .venv and node_modules.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
ARGS ?=
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help up test test-full test-faults lint format bench python runtime dev browser

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

up: runtime ## Start the demo fleet and its dashboard (options: make up ARGS="--engine emulated")
	@exec $(BIN)/pdd up --die-with-parent $(ARGS)

test: dev browser lint ## Lint and run the tests (under 12 minutes on 2 cores)
	@$(PYTEST) -m "not full" $(ARGS)

test-full: dev browser lint ## Run every test, the slow ones too
	@$(PYTEST) $(ARGS)

test-faults: dev ## Run the tests that kill processes on purpose
	@$(PYTEST) -m faults $(ARGS)

lint: dev ## Check style, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: dev ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: dev ## Measure; results are printed, nothing is asserted
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

python:
	@test -n "$(PYTHON)" || { echo "setup: no Python 3.11 or later found (name one: make PYTHON=/path/to/python3.12)"; exit 1; }

runtime: python
	@$(PYTHON) control/cli/install.py runtime

dev: python
	@$(PYTHON) control/cli/install.py dev

browser: python
	@$(PYTHON) control/cli/browser.py
