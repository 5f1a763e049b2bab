# All set-up is done here: on a machine with Python 3.10+ and make, `make demo` and `make test` are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCHMARKS := async_steps async_strategy one_variable exchange local_step sync startup recovery coordinator scaling \
    stragglers links memory tables adam_table colocated two_machines observation
RESULTS := bench-results
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
GPU_READY := $(VENV)/.gpu-ready
TOOLS := .venv-tools
TOOLS_READY := $(TOOLS)/.ready
PIP := python -m pip install --quiet --disable-pip-version-check
# Each process begins with a part of the tests, and helps the others when it is done.  One more than there are cores:
# tests with a cluster wait most of their time.
PARALLEL = --numprocesses $$(( $$(nproc) + 1 )) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-all chaos soak bench bench-full gpu check docs format protos constraints audit release clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

# $(call install,FOLDER,PARTS): what these parts of pyproject.toml need, as wheels of which constraints.txt has the hash.
define install
$(1)/bin/python tools/constraints.py list $(2) > $(1)/requirements.txt
$(1)/bin/$(PIP) --require-hashes --only-binary :all: -r $(1)/requirements.txt
endef

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "psruntime needs Python 3.10 or newer; name one with make PYTHON=python3.X"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(call install,$(VENV),build psruntime examples dev)
	$(BIN)/$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)  ## train digits with 2 ps and 2 workers on this machine, print the held-out accuracy
	$(BIN)/psruntime demo

test: $(READY)  ## the tests without those that are long by nature; SHARE=K/N: with the share K of N of the long ones
	$(BIN)/python -m pytest $(PARALLEL) --share $(or $(SHARE),0/1)

test-all: $(READY)  ## all tests, and every example that Hypothesis plays
	$(BIN)/python -m pytest $(PARALLEL)

chaos: $(READY)  ## every fault in every mode, and random ones: SEED=n (default: drawn), some three hours
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED))

soak: $(READY)  ## MINUTES=n (default 30) of a random fault every 5 s, AT_ONCE=n, SEED=n
	$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),30) --at-once $(or $(AT_ONCE),1) $(if $(SEED),--seed $(SEED))

bench: KIND := quick
bench: FLAGS := --quick
bench: $(READY)  ## every benchmark, short: ours and its peer in one run; results and plots in bench-results/quick
	$(run_benchmarks)

bench-full: KIND := full
bench-full: $(READY)  ## the same with all workloads and runs, some hours; in bench-results/full
	$(run_benchmarks)

$(GPU_READY): $(READY)
	$(call install,$(VENV),psruntime gpu)
	@touch $@

gpu: $(GPU_READY)  ## on a machine with a GPU: exactness, errors, memory and speed, under 8 minutes; in bench-results/gpu.json
	@mkdir -p $(RESULTS)
	$(BIN)/python -m benchmarks.gpu --save $(RESULTS)/gpu.json

define run_benchmarks
@mkdir -p $(RESULTS)/$(KIND)
@rm -f $(RESULTS)/$(KIND)/*.json; failed=; for name in $(BENCHMARKS); do echo "== $$name"; \
    $(BIN)/python -m benchmarks.$$name $(FLAGS) --save $(RESULTS)/$(KIND)/$$name.json || failed="$$failed $$name"; done; \
$(BIN)/python -m benchmarks.plots $(RESULTS)/$(KIND)/*.json --out $(RESULTS)/$(KIND); \
if [ -n "$$failed" ]; then echo "not measured:$$failed"; exit 1; fi
endef

check: $(READY)  ## lint, types, generated code is current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/protos.py check
	$(BIN)/python tools/constraints.py check
	$(BIN)/python -m tools.rooms --check
	$(BIN)/python -m tools.tables --check

$(DOCS_READY): $(READY)
	$(call install,$(VENV),psruntime docs)
	@touch $@

docs: $(DOCS_READY)  ## the documentation as a site, in site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(READY)  ## format the code
	$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

protos: $(READY)  ## write psruntime/v1 anew from protos/
	$(BIN)/python tools/protos.py generate

$(TOOLS_READY): constraints.txt
	$(PYTHON) -m venv $(TOOLS)
	$(call install,$(TOOLS),constraints audit)
	@touch $@

constraints: $(TOOLS_READY)  ## write constraints.txt from pyproject.toml; UPGRADE=1: with the newest versions
	$(TOOLS)/bin/python tools/constraints.py renew $(if $(UPGRADE),--upgrade)

audit: $(TOOLS_READY)  ## known vulnerabilities of the versions in constraints.txt, of a data base on the internet
	@$(TOOLS)/bin/python -m tools.audit

release:  ## wheel, sdist and SBOM of the last commit in dist/, built twice and tried in empty environments
	$(PYTHON) tools/release.py

clean:  ## remove the virtual environment, the site and all caches
	rm -rf $(VENV) $(VENV)-* site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
