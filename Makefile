# The doors. Each sets up what it needs; a second run installs nothing.
#   make venv PYTHON=/path/to/python3.12                                another interpreter
#   make venv TORCH_INDEX=https://download.pytorch.org/whl/cpu          torch without its CUDA libraries (gigabytes less)

VENV := $(or $(HOLDFAST_VENV),.venv)
READY := $(VENV)/.holdfast-ready
BIN := $(abspath $(VENV))/bin
PROFILES := $(notdir $(basename $(wildcard holdfast/config/profiles/*.yaml)))
# Those whose nodes are EC2 instances.
AWS_PROFILES := $(notdir $(basename $(shell grep -LE 'instance_type: *(cpu|gpu-local)\b' holdfast/config/profiles/*.yaml)))
CDK := node_modules/.bin/cdk
CODE := $(wildcard app.py bench bootstrap holdfast infra k8s tests trainer)

# jsii (cdk8s, aws_cdk) starts this Node; it comes with requirements.txt.
export JSII_NODE := $(BIN)/node

.DEFAULT_GOAL := help
.PHONY: help venv demo bench chaos test test-all check synth tools report plan lock FORCE

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

# What other benches measure is in their first lines: python -m bench.recovery, bench.article, bench.ft_cost --help.
bench: $(READY) ## what a save costs, ours beside torch's and NVRx's (two GPUs; ARGS=--cpu tries it out)
	@$(BIN)/python -m bench.checkpoint $(ARGS)

chaos: $(READY) ## kill runs at random instants, break whole jobs at random (SEEDS=200 each); goes on where it stopped
	@$(BIN)/python -m bench.chaos --seeds $(or $(SEEDS),200) $(ARGS)

test: $(READY) ## the tests, without the slow ones
	@$(BIN)/python -m pytest -m "not slow and not gpu" $(ARGS)

test-all: $(READY) ## every test that this machine can run
	@$(BIN)/python -m pytest $(ARGS)

check: synth $(CDK) ## everything that judges code, templates, manifests and image without running a job
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --strict --no-error-summary $(CODE)
	@$(BIN)/holdfast check --all >/dev/null
	@$(BIN)/hadolint Dockerfile
	@$(BIN)/cfn-lint -i W3005 -- $(foreach profile,$(AWS_PROFILES),dist/cdk/$(profile)/*.template.json)
	@PATH="$(BIN):$$PATH" $(CDK) synth --quiet --strict --no-staging --output dist/cdk/strict >dist/check.log 2>&1 \
		|| { cat dist/check.log; exit 1; }
	@$(BIN)/python -m pytest -q -p no:cacheprovider tests/k8s/test_schemas.py tests/infra/rules -m "not slow" >dist/check.log \
		|| { cat dist/check.log; exit 1; }
	@echo "check: ruff, mypy --strict, $(words $(PROFILES)) profiles, hadolint, cfn-lint and our rules on $(words $(AWS_PROFILES))" \
		"profiles' templates, cdk --strict on one, kubernetes-validate --strict: clean"

# Rules (infra/rules) and cdk-nag run inside app.py. W3005 is about the CDK's own kubectl provider.
synth: $(READY) ## write templates (dist/cdk) and Kubernetes manifests (dist/k8s) of every profile
	@set -e; for profile in $(PROFILES); do HOLDFAST_PROFILE=$$profile $(BIN)/python k8s/main.py; done
	@set -e; for profile in $(AWS_PROFILES); do \
		rm -rf dist/cdk/$$profile; \
		CDK_VALIDATION=false CDK_OUTDIR=dist/cdk/$$profile \
			CDK_CONTEXT_JSON="{\"profile\": \"$$profile\", \"aws:cdk:disable-asset-staging\": true}" $(BIN)/python app.py; \
		ls dist/cdk/$$profile/*.template.json; \
	done

tools: $(CDK) ## the command lines of the CDK and of cdk8s, in node_modules/.bin

# Node and npm come with requirements.txt.
$(CDK): package.json | $(READY)
	@PATH="$(BIN):$$PATH" $(BIN)/npm install --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

report: $(READY) ## goodput report of a run, printed and as dist/report.html (RUN=folders; the demo's by default)
	@mkdir -p dist
	@$(BIN)/holdfast report $(or $(RUN),dist/demo/broken dist/demo/clean) --output dist/report.html $(ARGS)

plan: $(READY) ## goodput to expect, and what each change of a profile is worth (PROFILE=llama3-8b-p5x8 ARGS=--explain)
	@$(BIN)/holdfast plan --profile $(or $(PROFILE),llama3-8b-p5x8) $(ARGS)

lock: $(READY) ## compile trainer/requirements.lock from requirements.txt
	@$(BIN)/python -m bootstrap.lock
