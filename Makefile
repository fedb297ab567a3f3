# make demo    the terminal app on this machine alone (Python 3.11 or newer is all it needs)
# make test    everything that is checked: linters, types, import rules, tests
# make test-long   the long lab tests: broken deployments, and the app driven by keys on two boxes
# make check   the same without the tests
# make screenshots   the pictures in screenshots/, from a real run
# make clean   removes what the others made here

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
MODEL := smollm2-135m
INPUTS := pyproject.toml constraints.txt
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-long check pytest pytest-lab pytest-rest model screenshots
.PHONY: install-demo install-test clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n 's/^# make/make/p' Makefile

demo: $(VENV)/.demo
	@$(BIN)/homesplit demo

test: check model pytest

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

model: $(VENV)/.test
	$(BIN)/homesplit model get $(MODEL)

# The lab's tests wait more than they compute: they run beside the others, and tell at their end.
pytest: $(VENV)/.test
	@$(MAKE) --no-print-directory --jobs=2 pytest-rest pytest-lab

pytest-rest: $(VENV)/.test
	$(PYTEST) -m "not long" --ignore=tests/lab

pytest-lab: $(VENV)/.test
	@told=$$(mktemp); \
	$(PYTEST) -m "not long" -p no:cacheprovider tests/lab > "$$told" 2>&1; ended=$$?; \
	cat "$$told"; rm -f "$$told"; exit $$ended

test-long: model
	$(PYTEST) -m long

install-demo: $(VENV)/.demo
install-test: $(VENV)/.test

screenshots: $(VENV)/.test
	$(BIN)/python -m screenshots

# An interpreter counts when it is new enough and can make virtual environments.
FIND_PYTHON := for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python; do \
	  "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	    > /dev/null 2>&1 && echo "$$python" && break; \
	done

$(BIN)/python:
	@python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
	  echo "make: no Python 3.11 or newer with venv and ensurepip was found." >&2; \
	  echo "      Debian, Ubuntu: apt-get install python3 python3-venv. Or: make PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	echo "making $(VENV) with $$python ($$("$$python" --version))"; \
	"$$python" -m venv --clear $(VENV)

$(VENV)/.demo: $(BIN)/python $(INPUTS)
	@echo "installing homesplit and its engine into $(VENV): about a minute, once"
	@$(INSTALL) --editable '.[engine]'
	@touch $@

$(VENV)/.test: $(BIN)/python $(INPUTS)
	@echo "installing homesplit, its engine and the test tools into $(VENV): about a minute, once"
	@$(INSTALL) --editable '.[engine,dev]'
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist demo-out .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf *.egg-info snapshot_report.html
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
