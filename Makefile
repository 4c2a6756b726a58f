# The commands of a working day; .ci/run and the GitHub workflows call the same ones. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help install test test-fast check docs package bench

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

install:  ## install the clone with everything that developing needs, at the tested versions
	pip install -e ".[dev,docs]" -c constraints.txt

test:  ## run all tests
	pytest

test-fast:  ## run the tests that take less than two seconds each
	pytest -m "not slow"

check:  ## lint, check the format, the types and who imports whom
	ruff check
	ruff format --check
	mypy
	lint-imports

docs:  ## build the site into site/; a broken link or a missing reference fails
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

package:  ## build wheel and sdist, check their metadata, install each extra in a clean environment
	.ci/package

bench:  ## measure episodes a second, and a training step beside TRL's
	python benchmarks/env_steps.py --all
	python benchmarks/step_vs_trl.py
