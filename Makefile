# Shortcuts. `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRAINYARD := $(BIN)/trainyard

# What you may set: make run FILE=pipelines/ddp.yaml PROFILE=local SET="inputs.epochs=3"
FILE ?= pipelines/ddp.yaml
PROFILE ?=
SET ?=
KILLS ?= 20
FUZZ ?= 10000
EDITS ?= 10000
HOSTILE ?= 10000
ONLY ?=
REPOSITORY ?=
SETTINGS := $(foreach setting,$(SET),--set '$(setting)')

.PHONY: help
help: ## List these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|' 2>/dev/null \
	  || grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST)
	@echo; echo "  For example: make run    then    make render PROFILE=nd96 && git diff"

# A stamp per set of packages: nothing is installed again until the set changes.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "error: expected Python 3.10 or newer; '$(PYTHON)' is `$(PYTHON) --version 2>&1`. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "setting up $(VENV) (once; about a minute)" >&2
	@$(PYTHON) -m venv $(VENV) || { echo "error: no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; rm -rf $(VENV); exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=24'

$(VENV)/.ready-to-run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what a run needs (torch, transformers, …)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train]'
	@$(BIN)/python -m compileall -q src  # as pip does for installed packages, so that the first command is as quick as the next
	@touch $@

$(VENV)/.ready-to-test: pyproject.toml constraints.txt | $(VENV)/.ready-to-run
	@echo "installing what the tests need (azure-ai-ml, pytest, …)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

.PHONY: setup
setup: $(VENV)/.ready-to-run ## Create .venv with everything a run needs

# Frameworks that only some pipelines need: make setup-lightning && make run FILE=pipelines/lightning.yaml
.PHONY: setup-lightning setup-onnx setup-spark setup-tensorflow
setup-lightning setup-onnx setup-spark setup-tensorflow: setup ## Add Lightning, ONNX, Spark or TensorFlow to .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(@:setup-%=%)]'

# Horovod's last release is source that needs a change for today's torch, a compiler, CMake and Open MPI.
.PHONY: setup-horovod
setup-horovod: setup ## Build Horovod into .venv (a few minutes)
	@bash environments/trainyard-horovod/build_horovod.sh $(abspath $(BIN)/python)

.PHONY: render
render: setup ## Render all YAML: make render PROFILE=nd96
	@$(TRAINYARD) render $(PROFILE) $(SETTINGS)

.PHONY: lint
lint: setup ## Check all YAML of the project, or FILE=…
	@$(TRAINYARD) lint $(if $(findstring command line,$(origin FILE)),$(FILE))

.PHONY: plan
plan: setup ## Machines, memory, time and price of FILE on the cluster
	@$(TRAINYARD) plan $(FILE)

.PHONY: run
run: setup ## Run FILE on this machine, rendered for PROFILE (local)
	@$(TRAINYARD) run $(FILE) --profile $(or $(PROFILE),local) $(SETTINGS)

# Coverage doubles the time of a test, so that it is measured where it has a floor: in the tests of these packages,
# apart from those that are long, which the floor does not need.
COVERED := tests/render tests/rehearse tests/spec tests/lint
LONG := $(addprefix tests/render/,test_environments.py test_rendering.py test_source_maps.py test_writing.py) \
  $(addprefix tests/lint/,test_against_the_client.py test_never_falls_over.py test_planted_mistakes.py) \
  $(shell grep -lr --include='test_*.py' 'mark\.slow' $(COVERED))
# Files are handed out in this order, those with slow tests first (tests/conftest.py): none that is long comes last.
OTHERS := $(LONG) $(filter-out $(COVERED),$(patsubst %/,%,$(wildcard tests/*/)))
TOGETHER := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# What tests start compiles each module once, also where the environment asks for no compiled files.
.PHONY: test
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.ready-to-test ## Run every test; coverage is of lint, rehearse, render and spec
	@status=0; \
	$(BIN)/python -m pytest $(COVERED) $(LONG:%=--ignore=%) $(TOGETHER) --cov --cov-report=term:skip-covered || status=1; \
	$(BIN)/python -m pytest $(OTHERS) $(TOGETHER) --durations=30 || status=1; \
	exit $$status

.PHONY: check
check: $(VENV)/.ready-to-test ## Style, types, imports, drift of rendered files, lint
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python docs/generate.py --check
	@$(BIN)/python docs/generate_packages.py --check
	@$(BIN)/python docs/generate_support.py --check
	@$(BIN)/python docs/generate_estimates.py --check
	@$(BIN)/python docs/generate_readme.py --check
	@$(BIN)/python docs/generate_prepare_at_scale.py --check
	@$(TRAINYARD) render --check
	@$(TRAINYARD) lint

# The peers that figures are compared with (accelerate, Lightning, …) are installed for benchmarks only.
$(VENV)/.ready-to-bench: pyproject.toml constraints.txt | $(VENV)/.ready-to-test
	@echo "installing what the benchmarks compare with (accelerate, lightning, …)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@touch $@

BENCHMARKS := command_speed runner_overhead lint_speed language_server first_run step_overhead checkpoint_stall at_scale batches sample_order prepare_text check_cluster estimated_memory gpu
.PHONY: bench
bench: $(VENV)/.ready-to-bench ## Measure the figures the project promises (about 40 minutes), or ONLY=lint_speed
	@status=0; for benchmark in $(or $(ONLY),$(BENCHMARKS)); do \
	  echo "== $$benchmark"; $(BIN)/python benchmarks/$$benchmark.py || status=1; done; exit $$status

.PHONY: gpu-check
gpu-check: $(VENV)/.ready-to-test ## On a machine with GPUs: every path that a CPU cannot take (half an hour at most)
	@$(BIN)/python benchmarks/gpu_check.py

.PHONY: soak
soak: $(VENV)/.ready-to-test ## The long proofs: make soak KILLS=200 FUZZ=100000 EDITS=10000 HOSTILE=10000
	@KILLS=$(KILLS) FUZZ=$(FUZZ) EDITS=$(EDITS) HOSTILE=$(HOSTILE) $(BIN)/python -m pytest -m soak --timeout=0 tests/soak tests/azure_client tests/cli tests/spec

# npm comes with the development extra, as does Node.js.
.PHONY: extension
extension: $(VENV)/.ready-to-test ## Pack the extension for VS Code: editors/vscode/trainyard.vsix
	@cd editors/vscode && PATH="$(abspath $(BIN)):$$PATH" npm ci --no-fund --no-audit --ignore-scripts --silent && \
	  PATH="$(abspath $(BIN)):$$PATH" npm run --silent package

.PHONY: site
site: $(VENV)/.ready-to-test ## Build the documentation site: build/site/html/index.html
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python docs/site/build_site.py $(REPOSITORY:%=--repository %)

.PHONY: clean
clean: ## Remove .venv, runs and caches (never what git tracks)
	@rm -rf $(VENV) .trainyard .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
