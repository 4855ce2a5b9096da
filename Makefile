# The same commands on a laptop and in CI. Each makes its own environment in .venv on first use.
PYTHON ?= python3
UV_VERSION := 0.13.9
DOCKER ?= docker
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BIN := .venv/bin
READY := .venv/.ready
READY_E2E := .venv/.ready-e2e

export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv

.DEFAULT_GOAL := help
.PHONY: help demo test test-long browser check e2e bench images release lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## Pack 230 pods onto an example cluster, without Kubernetes (JSON=out.json writes the outcome)
	@$(BIN)/python -m benchmarks.demo $(if $(JSON),--json "$(JSON)")

test: $(READY) ## Run the unit and property tests
	$(BIN)/pytest --ignore tests/e2e --ignore tests/browser $(ARGS)

test-long: $(READY) ## The same with new random cases: a million operations on the state, many bad bodies (half an hour)
	TESSERA_LONG=1 $(BIN)/pytest -s --timeout 3600 --ignore tests/e2e --ignore tests/browser $(ARGS)

browser: $(READY) ## Test the page in headless Chromium (Debian has it as chromium-headless-shell)
	$(BIN)/pytest tests/browser $(ARGS)

check: $(READY) ## Check style, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/uv lock --check --quiet

e2e: $(READY_E2E) ## Run the tests on a real etcd, kube-apiserver and kube-scheduler (built on first use)
	$(BIN)/python -m tests.e2e.controlplane.binaries
	$(BIN)/python -m tests.deploy.programs
	$(BIN)/python -m tests.deploy.schemas
	$(BIN)/pytest tests/e2e -s --timeout 900 $(ARGS)

bench: $(READY_E2E) ## Replay a trace ($TESSERA_TRACES, else a synthetic one), then measure latency, throughput, memory
	@for policy in bestfit fgd spread random; do $(BIN)/tessera-bench replay --policy $$policy || exit 1; done
	$(BIN)/tessera-bench latency
	$(BIN)/python -m tests.e2e.controlplane.binaries
	$(BIN)/python -m tests.e2e.bench_throughput
	$(BIN)/python -m tests.e2e.bench_memory

images: ## Build both images with $(DOCKER), docker by default
	$(DOCKER) build -f deploy/images/extender/Dockerfile -t tessera-extender:$(VERSION) --build-arg VERSION=$(VERSION) .
	$(DOCKER) build -f deploy/images/agent/Dockerfile -t tessera-agent:$(VERSION) --build-arg VERSION=$(VERSION) .

release: $(READY_E2E) ## Make dist/: wheel, sdist, chart, manifest, SBOMs, licences, checksums
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	@rm -f dist/.gitignore
	@for part in extender agent; do \
	  $(BIN)/uv export --quiet --frozen --no-dev --extra $$part --format cyclonedx1.5 > dist/sbom-$$part.cdx.json || exit 1; \
	  $(BIN)/python deploy/images/licences.py $$part > dist/licences-$$part.tsv || exit 1; \
	done
	$(BIN)/python -m tests.deploy.rendered package dist
	cp deploy/manifests/install.yaml dist/
	cd dist && sha256sum -- * > SHA256SUMS

lock: $(READY) ## Renew the lock file
	$(BIN)/uv lock --upgrade

clean: ## Remove the environment and what tools left
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis .pytest_cache dist build

$(READY): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Tessera needs Python 3.11 or newer; give it as PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	  { echo "$(PYTHON) cannot make a virtual environment; on Debian install python3-venv."; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv sync --quiet --frozen --inexact --all-extras
	@touch $(READY)

$(READY_E2E): $(READY)
	@$(BIN)/uv sync --quiet --frozen --inexact --all-extras --group e2e
	@touch $(READY_E2E)
