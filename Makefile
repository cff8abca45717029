# Needs Python 3.11 or later with its venv module; everything else is installed into .venv and node_modules.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
ARGS ?=
PYTEST := $(BIN)/python -m pytest
# Those that share a whole fleet one after another, and many small files last.
SUITES ?= tests/unit tests/contract tests/browser tests/faults tests/integration

.DEFAULT_GOAL := help
.PHONY: help up test test-full test-faults smoke-vllm test-vllm lint format screenshots bench bench-ttft bench-handoff bench-gateway bench-kv bench-valley bench-telemetry bench-control bench-twin python runtime dev browser

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

up: runtime ## Start the demo fleet and its dashboard (options: make up ARGS="--engine emulated")
	@exec $(BIN)/python -m control.cli.main up --die-with-parent $(ARGS)

test: dev browser lint ## Lint and run the tests, some at a time (under 12 minutes on 2 cores)
	@$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m "not full" $(SUITES) $(ARGS)

test-full: dev browser lint ## Run every test, the slow ones too
	@$(PYTEST) $(SUITES) $(ARGS)

test-faults: dev ## Run the tests that kill processes on purpose
	@$(PYTEST) -m faults $(ARGS)

smoke-vllm: dev ## Check stock vLLM as P, RLD and MD behind the gateway (10 GB of memory, 3 GB to install, 10 minutes)
	@nice $(BIN)/python -m tests.vllm.smoke

test-vllm: dev ## Run the same check as tests
	@nice $(PYTEST) -m vllm tests/vllm $(ARGS)

lint: dev ## Check style, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: dev ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Those that take minutes have a target of their own.
QUICK_BENCHES := $(filter-out bench_ttft bench_handoff bench_gateway bench_kv bench_valley bench_telemetry bench_control bench_twin, $(basename $(notdir $(wildcard benchmarks/bench_*.py))))

screenshots: dev browser ## Take pictures of every page in both themes into screenshots/ (3 minutes; ARGS="live --size phone")
	@$(BIN)/python -m tests.browser.screenshots $(ARGS)

bench: dev ## Measure what takes seconds; results are printed, nothing is asserted
	@for name in $(QUICK_BENCHES); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name || exit 1; done

bench-ttft: dev ## Measure TTFT: same-site PD, plain cross-site PD, PDD (18 minutes, two quiet cores; ARGS="--seed 2")
	@$(BIN)/python -m benchmarks.bench_ttft $(ARGS)

bench-handoff: dev ## Measure a handoff of 100 tokens by ids and by KV over a shaky link (4 minutes)
	@$(BIN)/python -m benchmarks.bench_handoff $(ARGS)

bench-gateway: dev ## Measure what the gateway adds to a request: latency and CPU (5 minutes)
	@$(BIN)/python -m benchmarks.bench_gateway $(ARGS)

bench-kv: dev ## Measure the KV wire against plain sockets, and its goodput on a shaped link (1 minute, two quiet cores)
	@$(BIN)/python -m benchmarks.bench_kv $(ARGS)

bench-valley: dev ## Measure what joined tail chunks save at prefill (2 minutes, two quiet cores)
	@$(BIN)/python -m benchmarks.bench_valley $(ARGS)

bench-control: dev ## Measure the control plane with 10 sites, 1,000 observed nodes and lists of 10,000 (3 minutes, two quiet cores)
	@$(BIN)/python -m benchmarks.bench_control $(ARGS)

bench-telemetry: dev browser ## Measure telemetry from a last token to a pixel, and what it costs (5 minutes, two quiet cores)
	@$(BIN)/python -m benchmarks.bench_telemetry $(ARGS)

bench-twin: dev ## Measure what the digital twin costs: a million requests, a preview, 1,000 nodes (2 minutes)
	@$(BIN)/python -m benchmarks.bench_twin $(ARGS)

python:
	@test -n "$(PYTHON)" || { echo "setup: no Python 3.11 or later found (name one: make PYTHON=/path/to/python3.12)"; exit 1; }

runtime: python
	@$(PYTHON) control/cli/install.py runtime

dev: python
	@$(PYTHON) control/cli/install.py dev

browser: python
	@$(PYTHON) control/cli/browser.py
