# Everything begins here. `make help` lists what there is.
#
# The first target that needs it makes .venv: with uv where there is one, with a uv of its own else, with pip if neither
# can be had. The stamp in it makes the second time instant, and offline.

PYTHON ?= python3
TORCH_BACKEND ?=
DEMO_DATA ?= .headrace/demo-$(shell date +%Y%m%d-%H%M%S)

BIN := .venv/bin
EXTRAS ?=
STAMP := .venv/installed$(if $(EXTRAS),-$(EXTRAS))
COUNT ?= 1000000
NAMED_IN := integration e2e faults fuzz conformance model containers engines sandbox worlds
TESTS := $(BIN)/python tests/subjects.py

# Compiled modules are kept: torch and transformers start in a third of the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all lint types names unit faults soak fuzz check format clean distclean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12
	@sed -n 's/^# \(make test-SUBJECT\)/\1/p' $(MAKEFILE_LIST) | fold -sw 100

install: $(STAMP) ## make .venv and install Headrace with its tools into it

demo: $(STAMP) ## train a tiny model through a real Kafka and a real object store, about a minute and a half
	@$(BIN)/headrace up arithmetic --data $(DEMO_DATA) || [ $$? -eq 130 ]

lint: $(STAMP) ## lint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP) ## check types
	@$(BIN)/mypy

check: $(STAMP) ## lint, types, names and the gate's unit tests, some minutes
	@$(MAKE) --no-print-directory -j2 lint types names unit

names: $(STAMP) ## find names in tests that are no longer there, also in tests that the gate does not run
	@for folder in $(NAMED_IN); do $(BIN)/mypy --config-file tests/mypy.ini \
		$$(git ls-files "tests/$$folder/*.py" | grep -vE 'conftest|__init__|/protocol/') || exit 1; done

unit: $(STAMP)
	@$(TESTS) gate tests/unit

test: $(STAMP) ## the gate: what every change must pass
	@$(TESTS) gate

test-all: $(STAMP) ## the gate and every subject, with a table at the end
	@$(TESTS) all

# make test-SUBJECT: one of fuzz, libraries, alfworld, servers, curation, weights, tools, numerics, rollout, kafka, audit, builds, training, sandbox, packages, containers, runs, worlds, regions, model, mutants, faults, sglang, vllm.
test-%: $(STAMP)
	@$(TESTS) $*

faults: $(STAMP) ## kill every kind of process at 20 moments, by SEED=n, and freeze the broker of ten runs; an hour
	@$(BIN)/python tests/faults/matrix.py $(if $(SEED),--seed $(SEED))
	@$(BIN)/python tests/faults/rebalances.py $(if $(SEED),--seed $(SEED))
	@$(BIN)/python tests/faults/freezes.py $(if $(SEED),--seed $(SEED))

soak: $(STAMP) ## let a run go on for SOAK_MINUTES=20, and look whether memory and lag stay flat
	@$(BIN)/python tests/faults/soak.py --minutes $(or $(SOAK_MINUTES),20)

fuzz: $(STAMP) ## more of the altered inputs: COUNT of them, from SEED
	@$(BIN)/pytest -q -s tests/fuzz --subject=fuzz --fuzz-count=$(COUNT) $(if $(SEED),--fuzz-seed=$(SEED))

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
	@touch .venv/installed $(STAMP)
