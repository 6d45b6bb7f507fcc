# The doors. Each sets up what it needs; a second run installs nothing.
#   make venv PYTHON=/path/to/python3.12                                another interpreter
#   make venv TORCH_INDEX=https://download.pytorch.org/whl/cpu          torch without its CUDA libraries (gigabytes less)

VENV := $(or $(HOLDFAST_VENV),.venv)
READY := $(VENV)/.holdfast-ready
BIN := $(abspath $(VENV))/bin
PROFILES := $(notdir $(basename $(wildcard holdfast/config/profiles/*.yaml)))
CODE := $(wildcard app.py bench bootstrap holdfast infra k8s tests trainer)

# jsii (cdk8s, aws_cdk) starts this Node; it comes with requirements.txt.
export JSII_NODE := $(BIN)/node

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all check synth report lock FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY) ## set up .venv (the other doors do it by themselves)

# Asked for anew only if an input is newer, the folder was moved, or an interpreter or index was named; bootstrap then
# looks closer.
MOVED := $(shell grep -qsF '"$(abspath $(VENV))"' $(READY) || echo moved)
$(READY): requirements.txt $(wildcard bootstrap/*.py) $(if $(PYTHON)$(TORCH_INDEX)$(MOVED),FORCE)
	@for python in "$(PYTHON)" python3.12 python3.11 python3 python; do \
		if [ -n "$$python" ] && "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null; then \
			HOLDFAST_VENV="$(HOLDFAST_VENV)" PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" exec "$$python" -m bootstrap; \
		fi; \
	done; \
	echo "setup: Holdfast needs Python 3.11 or 3.12, and none was found. Debian and Ubuntu: apt install python3.12 python3.12-venv" >&2; \
	exit 1

demo: $(READY) ## run the real manifest on this CPU, break it five ways, compare with an unbroken run
	@$(BIN)/python -m bench.demo $(ARGS)

test: $(READY) ## the tests, without the slow ones
	@$(BIN)/python -m pytest -m "not slow and not gpu" $(ARGS)

test-all: $(READY) ## every test that this machine can run
	@$(BIN)/python -m pytest $(ARGS)

check: $(READY) ## ruff, mypy --strict, all profiles
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --strict --no-error-summary $(CODE)
	@$(BIN)/holdfast check --all >/dev/null
	@echo "check: ruff, mypy --strict and $(words $(PROFILES)) profiles are clean"

synth: $(READY) ## write the Kubernetes manifests of every profile to dist/k8s
	@set -e; for profile in $(PROFILES); do HOLDFAST_PROFILE=$$profile $(BIN)/python k8s/main.py; done

report: $(READY) ## goodput report of a run (RUN=folder; the demo's by default)
	@$(BIN)/holdfast report $(or $(RUN),dist/demo/broken) $(ARGS)

lock: $(READY) ## compile trainer/requirements.lock from requirements.txt
	@$(BIN)/python -m bootstrap.lock
