# Everything begins here. `make help` lists what there is.
#
# The first target that needs it makes .venv: with uv where there is one, with a uv of its own else, with pip if neither
# can be had. The stamp in it makes the second time instant, and offline.

PYTHON ?= python3
TORCH_BACKEND ?=
DEMO_DATA ?= .headrace/demo-$(shell date +%Y%m%d-%H%M%S)

BIN := .venv/bin
STAMP := .venv/installed
EXTRAS ?=
COUNT ?= 1000000
LANES ?= 4
PYTEST := $(BIN)/pytest -q --no-loadscope-reorder

# Compiled modules are kept: torch and transformers start in a third of the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all lint unit containers faults mutants soak fuzz check format clean distclean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: $(STAMP) ## make .venv and install Headrace with its tools into it

demo: $(STAMP) ## train a tiny model through a real Kafka and a real object store, about a minute and a half
	@$(BIN)/headrace up arithmetic --data $(DEMO_DATA) || [ $$? -eq 130 ]

lint: $(STAMP) ## lint and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

check: $(STAMP) ## lint, types and unit tests, some minutes
	@$(MAKE) --no-print-directory -j2 lint unit

unit: $(STAMP)
	@$(PYTEST) -n 2 -m "not exhaustive" tests/unit

test: $(STAMP) ## all tests but the exhaustive ones, LANES=4 at once: most wait for time-outs; about eleven minutes
	@$(PYTEST) -n $(LANES) -m "not exhaustive"

test-all: $(STAMP) ## the exhaustive tests; in containers too where those were built; about forty minutes
	@$(PYTEST) -n $(LANES) -m exhaustive

containers: $(STAMP) ## tests on Kafka and MinIO in containers, with faults on the way; needs Docker
	@$(BIN)/python tests/containers/build_images.py
	@CI=true $(BIN)/pytest -q tests/containers
	@$(BIN)/pytest -q tests/integration --servers=containers

faults: $(STAMP) ## kill every kind of process at 20 moments, by SEED=n; half an hour
	@$(BIN)/python tests/faults/matrix.py $(if $(SEED),--seed $(SEED))
	@$(BIN)/python tests/faults/rebalances.py $(if $(SEED),--seed $(SEED))

mutants: $(STAMP) ## take out one protection after the other, and see that tests turn red; half an hour
	@$(BIN)/python tests/faults/mutation.py

soak: $(STAMP) ## let a run go on for SOAK_MINUTES=20, and look whether memory and lag stay flat
	@$(BIN)/python tests/faults/soak.py --minutes $(or $(SOAK_MINUTES),20)

fuzz: $(STAMP) ## more of the altered inputs: COUNT of them, from SEED
	@$(BIN)/pytest -q -s tests/fuzz -m exhaustive --fuzz-count=$(COUNT) $(if $(SEED),--fuzz-seed=$(SEED))

format: $(STAMP) ## put the code in shape
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

clean: ## remove what runs left, and caches of the tools
	@if [ -x $(BIN)/headrace ] && [ -d .headrace ]; then $(BIN)/headrace clean --all; fi
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

distclean: clean ## remove .venv too
	@rm -rf .venv

$(STAMP): pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" TORCH_BACKEND="$(TORCH_BACKEND)" EXTRAS="$(EXTRAS)" ./.ci/install
	@touch $(STAMP)
