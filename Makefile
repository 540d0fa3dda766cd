# `make demo` and `make test` do everything on a fresh machine; `make help` lists the rest.
.PHONY: help install demo lint docs reference pictures unit check test bytecode bench clean
BIN := .venv/bin
HELPERS := $(subst $() ,:,$(addprefix tests/helpers/,common sql web submit testbed datasets load watch))

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: ## create .venv with everything a developer needs
	@scripts/install.sh

demo: install ## measure two published results, and compare two ROOT releases (150 s, after its downloads)
	@$(BIN)/treehammer demo

lint: install ## check format, style, types and package layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/mypy tests docs benchmarks scripts
	@$(BIN)/python scripts/check_budgets.py
	@$(BIN)/lint-imports --no-logo

docs: install ## build the documentation into site/; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reference: install ## write the JSON Schemas and reference pages that are generated from the code
	@$(BIN)/python docs/hooks.py

pictures: install ## retake the page screenshots in docs/images, from a synthetic world or the results in folder DATA
	@PYTHONPATH=$(HELPERS):. $(BIN)/python docs/pictures.py "$(DATA)"

unit: install ## run the unit tests: no ROOT, no services; ARGS go to pytest
	@scripts/test.sh $(or $(ARGS),tests/unit)

check: lint unit ## run lint and unit tests: the check before every commit

test: install ## run lint, docs and all tests; ARGS select tests, e.g. ARGS="tests/unit/sql -k rollups"
	@$(if $(ARGS),:,$(MAKE) --no-print-directory --jobs=2 --output-sync lint docs bytecode)
	@scripts/test.sh $(or $(ARGS),--services)

# Otherwise, in a fresh clone, every worker would compile all tests. Errors appear when the tests run.
bytecode: install
	@ls tests/__pycache__/conftest.*-pytest-*.pyc >/dev/null 2>&1 || $(BIN)/pytest --collect-only --quiet --services >/dev/null 2>&1 || true

bench: install ## run the benchmarks; writes benchmarks/results/
	@$(BIN)/python -m benchmarks

clean: ## remove build products (not the cache of ROOT releases)
	rm -rf .venv build dist site demo-results .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
