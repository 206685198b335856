# `make help` lists what there is. Everything that is made here stays in .venv, .cache and .sandbox, and in podman.

SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# Hosts of the sandbox: 1, or 3 to see a rollout go from host to host.
SANDBOX_HOSTS ?= 1
# Molecule scenarios, instead of all.
SCENARIO ?=

sandbox_inventory := $(if $(filter 3,$(SANDBOX_HOSTS)),inventory/fleet,inventory/sandbox)
sandbox_tools := aardvark-dns debian-archive-keyring iptables mmdebstrap netavark openssh-client podman rsync runc uidmap
# podman needs root: where sudo wants a password, Ansible asks for it.
ask_for_sudo = $(shell [[ $$(id -u) == 0 ]] || sudo --non-interactive true 2>/dev/null || echo --ask-become-pass)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/ready: requirements/controller-py3.11.txt requirements/controller-py3.12.txt
	scripts/bootstrap

.PHONY: sandbox
sandbox: sandbox-hosts sandbox-models sandbox-bundle ## Deploy to containers on this machine, and measure (SANDBOX_HOSTS=3 for three)
	ansible-playbook site.yml --inventory $(sandbox_inventory)

.PHONY: sandbox-hosts
sandbox-hosts: .venv/ready sandbox-tools
	@[[ "$(SANDBOX_HOSTS)" =~ ^[13]$$ ]] || { echo "SANDBOX_HOSTS is $(SANDBOX_HOSTS): it can be 1 or 3." >&2; exit 1; }
	ansible-playbook playbooks/sandbox.yml --inventory $(sandbox_inventory) $(ask_for_sudo)

.PHONY: sandbox-tools
sandbox-tools:
	@scripts/apt-install $(sandbox_tools)

.PHONY: sandbox-models
sandbox-models: .sandbox/models/ready

# The tokenizer learns from what will be sent to the model.
corpus := roles/throughput_check/files/prompts/prompts.jsonl
.sandbox/models/ready: sandbox/make_models.py $(corpus) | .venv/ready
	python sandbox/make_models.py .sandbox/models --corpus $(corpus)
	touch $@

.PHONY: sandbox-bundle
sandbox-bundle: .venv/ready
	ansible-playbook playbooks/bundle.yml --inventory inventory/sandbox

.PHONY: sandbox-down
sandbox-down: .venv/ready ## Remove all that the sandbox made: containers, network, image, wheels, models
	ansible-playbook playbooks/sandbox_down.yml --inventory inventory/sandbox $(ask_for_sudo)

.PHONY: test
test: lint unit patch-tests-quick ## Run lint, unit tests, the patches on two releases, all of site.yml, and two rollouts
	$(MAKE) molecule SCENARIO=site
	$(MAKE) rollout-quick

.PHONY: lint
lint: .venv/ready ## Check style and types of YAML, roles and Python
	yamllint --strict .
	ansible-lint
	ruff check .
	ruff format --check .
	scripts/lint-house
	mypy

.PHONY: role-docs
role-docs: .venv/ready ## Write the README of each role anew, from its argument specs
	scripts/role-docs

.PHONY: unit
unit: .venv/ready ## Test the Python code and the repository
	pytest --numprocesses=auto --dist=loadfile --junitxml=.cache/junit/unit.xml

.PHONY: molecule
molecule: .venv/ready sandbox-tools sandbox-models sandbox-bundle ## Test every role on containers (SCENARIO="name name" for some)
	molecule test $(or $(SCENARIO:%=--scenario-name=%),--all)

rollout_tests := PYTHONPATH=plugins/module_utils pytest --junitxml=.cache/junit/rollout.xml

.PHONY: rollout-tests
rollout-tests: .venv/ready sandbox-tools sandbox-models sandbox-bundle ## Try every way in which a rollout can go wrong, and the real upgrade, on containers (as root)
	$(rollout_tests) tests/rollout

.PHONY: rollout-quick
rollout-quick: .venv/ready sandbox-tools sandbox-models sandbox-bundle ## Two of them, in minutes: no request lost, and a run that is killed
	$(rollout_tests) tests/rollout --quick

.PHONY: rollout-demo
rollout-demo: .venv/ready sandbox-tools sandbox-models sandbox-bundle ## Watch SGLang 0.5.9 become 0.5.10.post1 on three hosts under load, and no request lost
	PYTHONPATH=plugins/module_utils python -m tests.rollout.real

.PHONY: outage
outage: .venv/ready sandbox-tools sandbox-bundle ## Measure for how long a rollout leaves a host without an answer, against a bare restart
	PYTHONPATH=plugins/module_utils python -m benchmarks.outage

# The interpreter that has PyTorch for the machine's GPUs, what SGLang lacks beside it, and where results go.
GPU_PYTHON ?= /usr/bin/python3
GPU_PACKAGES ?= .cache/gpu-tests/packages.tar.xz
GPU_RESULTS ?= benchmarks/gpu/$(shell date -u +%Y-%m-%d)

.PHONY: gpu-packages
gpu-packages: .venv/ready ## Gather what the tests on GPUs need, to be brought to a machine without a network
	python -m tests.gpu.carry $(dir $(GPU_PACKAGES))

.PHONY: gpu-tests
gpu-tests: ## Try patches, roles and playbooks on the GPUs of this machine (as root; docs/gpu-tests.md)
	$(GPU_PYTHON) -m tests.gpu --packages $(GPU_PACKAGES) --results $(GPU_RESULTS)

.PHONY: requirements
requirements: .venv/ready ## Pin and hash the controller's requirements anew, at their newest versions
	for version in 3.11 3.12; do \
	    uv pip compile --quiet --upgrade --generate-hashes --no-annotate --custom-compile-command "make requirements" \
	        --python-version $$version --python-platform x86_64-manylinux_2_28 \
	        --output-file requirements/controller-py$$version.txt requirements/controller.in || exit; \
	done

.PHONY: lock
lock: .venv/ready ## Make a lock anew: LOCK="cpu 0.5.9 3.11" (files/locks/README.md)
	files/locks/make-lock $(or $(LOCK),cpu 0.5.9 3.11)

.PHONY: patch-tests
patch-tests: .venv/ready ## Test the patches on every published SGLang, and the patched code without a GPU
	pytest tests/patches

.PHONY: patch-tests-quick
patch-tests-quick: .venv/ready ## Test the patches on two releases: one case of each kind
	pytest tests/patches -m quick --junitxml=.cache/junit/patches.xml

.PHONY: patch-row
patch-row: .venv/ready ## Print the state of each patch on a release: RELEASE=0.5.24
	@python -m tests.patches.row $(or $(RELEASE),$(error Name the release: make patch-row RELEASE=0.5.24))

.PHONY: patch-docs
patch-docs: .venv/ready ## Write the tables of docs/patches.md anew
	python -m tests.patches.document

.PHONY: judge-table
judge-table: .venv/ready ## Compute the judge's error rates again, into docs/judge.md
	python benchmarks/judge_table.py
