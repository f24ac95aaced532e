# Every target makes what it needs: a virtual environment in .venv, pinned by constraints.txt.
#   make reproduce   execute all notebooks; ARGS="--changed" and the like are passed on
#   make test        static checks, tests and the check of every notebook's outputs
#   make test-all    that, the tests that take long or much memory, and the fuzzers
#   make fuzz        coverage-guided fuzzing of every reader, FUZZ_SECONDS (60) each
#   make licences    write LICENSES.md anew: the licence of every dependency
#   make audit       known vulnerabilities of the dependencies; asks a database on the network
#   make lab         JupyterLab on the notebooks
#   make bench       benchmarks
#   make docs        pages of the reference in build/docs
#   make constraints write constraints.txt anew, with the oldest supported Python
#   make clean       remove all of it
# PYTHON=/path/to/python3.12 chooses the interpreter.

PYTHON ?= python3
BIN := .venv/bin
PIP := -m pip -qq --disable-pip-version-check --no-input
INSTALL := $(PIP) install --no-compile -c constraints.txt
PYTEST := $(BIN)/python -m pytest
MODULES = $(shell find asgd_model -name "*.py" ! -name __main__.py | sed "s|/__init__||; s|\.py||; s|/|.|g")
FUZZ_SECONDS ?= 60
FUZZ := $(BIN)/python tests/fuzz/fuzz.py
BUILT_FROM := pyproject.toml constraints.txt asgd_model/__init__.py

define CHECK_PYTHON
import sys
found = "%d.%d" % sys.version_info[:2]
needed = "Python 3.11 or later is needed, %s is %s; try: make PYTHON=/path/to/python3.11"
sys.exit(needed % (sys.executable, found) if sys.version_info < (3, 11) else 0)
endef
export CHECK_PYTHON

.PHONY: reproduce test test-all fuzz licences audit lab bench docs constraints clean

reproduce: .venv/.package
	$(BIN)/asgd-model reproduce $(ARGS)

# One pytest for tests and notebooks; a notebook's cells need one process, hence loadfile.
test: .venv/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PYTEST) tests notebooks -m 'not slow and not large' -n 2 --dist loadfile --benchmark-skip \
	    --nbval --nbval-current-env --nbval-cell-timeout 120 \
	    --nbval-sanitize-with tests/nbval_sanitize.cfg $(ARGS)

# One after the other: what takes long takes both cores, or much memory.
test-all: test fuzz
	$(PYTEST) tests -m 'slow or large' --benchmark-skip $(ARGS)

fuzz: .venv/.fuzz
	for reader in $$($(FUZZ)); do \
	    $(FUZZ) $$reader -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 || exit 1; \
	done

licences: .venv/.audit
	{ cat tests/licences.md; $(BIN)/pip-licenses --format=markdown --from=mixed --order=name \
	    --with-system --packages $$(sed -n 's/==.*//p' constraints.txt); } > LICENSES.md

audit: .venv/.audit
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

lab: .venv/.package
	$(BIN)/jupyter lab --notebook-dir notebooks $(ARGS)

bench: .venv/.test
	$(PYTEST) tests/benchmarks/bench_*.py --benchmark-only $(ARGS)

docs: .venv/.package
	$(BIN)/python $(INSTALL) -e '.[docs]'
	$(BIN)/pdoc --docformat numpy --output-directory build/docs $(MODULES) \
	    '!asgd_model.testbed.graphs' '!asgd_model.testbed.node'

$(BIN)/pip:
	@$(PYTHON) -c "$$CHECK_PYTHON"
	$(PYTHON) -m venv .venv

.venv/.package: $(BUILT_FROM) | $(BIN)/pip
	$(BIN)/python $(INSTALL) -e '.[dask]'
	@touch $@

.venv/.test: $(BUILT_FROM) | $(BIN)/pip
	$(BIN)/python $(INSTALL) -e '.[dask,test]'
	@touch .venv/.package $@

.venv/.fuzz .venv/.audit: .venv/.%: $(BUILT_FROM) .venv/.test
	$(BIN)/python $(INSTALL) -e '.[$*]'
	@touch $@

constraints:
	@$(PYTHON) -c "$$CHECK_PYTHON"
	rm -rf build/constraints
	$(PYTHON) -m venv build/constraints
	build/constraints/bin/python $(PIP) install --no-compile '.[audit,dask,docs,fuzz,test]'
	build/constraints/bin/python $(PIP) freeze --exclude asgd-model > build/constraints.txt
	{ echo '# Made by `make constraints`.'; cat build/constraints.txt; } > constraints.txt

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
