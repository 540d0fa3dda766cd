# Two commands do everything on a fresh machine: `make demo` and `make test`.
.PHONY: help install demo test lint docs pictures bench clean
BIN := .venv/bin

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: ## make .venv with everything a developer needs
	@scripts/install.sh

demo: install ## two ROOT releases over one dataset: table, HTML report, ROOT file (about three minutes)
	@$(BIN)/treehammer demo

lint: install ## formatting, style, types, room order
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/mypy tests docs benchmarks
	@$(BIN)/lint-imports --no-logo

docs: install ## build the documentation into site/; warnings are errors
	@$(BIN)/mkdocs build --strict

pictures: install ## take the pictures of pages in docs/images anew, of the results in the folder DATA
	@PYTHONPATH=tests/helpers/common:tests/helpers/contracts:tests/helpers/sql:tests/helpers/web:tests/helpers/submit:tests/helpers/testbed:tests/helpers/datasets $(BIN)/python docs/pictures.py "$(DATA)"

test: lint docs ## lint, docs and all tests
	@scripts/test.sh

bench: install ## how fast and how honest we are; writes benchmarks/results/
	@$(BIN)/python -m benchmarks

clean: ## remove what was built here (not the cache of ROOT releases)
	rm -rf .venv build dist site demo-results .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
