# Every target sets up what it needs: a fresh clone, make and Python are enough. `make` alone lists the targets.

MIN_PYTHON := 3.11
EXTRAS     ?= test
PYTHON     ?=
ARGS       ?=
WORDS      ?=
TORCH      ?= 2.12.1

# Two tests at a time: most of them wait for processes of their own. More would be late for their paced ranks.
TWO := -n 2 --dist worksteal

# A folder of packages made by `make wheelhouse`: setup takes them from there and asks no network.
WHEELHOUSE ?=

COMMA := ,
VENV := .venv
PY   := $(VENV)/bin/python

# A setting meant for another environment must not leak into this one.
unexport PYTHONHOME PYTHONPATH
export PIP_USER := 0
export PIP_ROOT_USER_ACTION := ignore
export PIP_DISABLE_PIP_VERSION_CHECK := 1

FROM := $(if $(WHEELHOUSE),--no-index --find-links "$(WHEELHOUSE)")

# The stamp's name is a checksum of what the environment was made from (times would lie after a checkout or a copy)
# and of where it is, because the scripts of a venv hold its path.
KEY   := $(shell { pwd -P; echo "$(EXTRAS)"; cat pyproject.toml constraints.txt; } | cksum | tr ' ' '-')
STAMP := $(VENV)/.ready-$(KEY)

.DEFAULT_GOAL := help
.PHONY: help setup wheelhouse demo test test-slow test-torch bench lab book words lint clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo 'ARGS="..." is passed on to the command; PYTHON=... chooses the interpreter; EXTRAS=test,hf adds data sets.'

setup: $(STAMP) ## make .venv with the pinned versions (does nothing when it is up to date)

# A venv that is gone, or whose interpreter is, makes the stamp worthless.
$(STAMP): $(shell $(PY) -c '' 2>/dev/null || echo FORCE)
	@if [ -n "$(WHEELHOUSE)" ] && ! ls "$(WHEELHOUSE)"/*.whl >/dev/null 2>&1; then \
	  echo "setup: no packages in $(WHEELHOUSE); make them with network: make wheelhouse" >&2; exit 1; fi
	@# Never repaired half-way: a set-up that was interrupted or that belongs to another folder starts anew.
	@if [ "$$(cat $(VENV)/.owner 2>/dev/null)" != "$$(pwd -P)" ] || ! $(PY) -m pip --version >/dev/null 2>&1; then \
	  set -e; \
	  $(find_python); \
	  echo "setup: new $(VENV) with $$("$$python" --version) ($$python)"; \
	  rm -rf $(VENV); \
	  "$$python" -m venv $(VENV); \
	fi
	@rm -f $(VENV)/.owner $(VENV)/.ready-*
	@echo "setup: installing the pinned versions of constraints.txt (a few minutes the first time)"
	@# setuptools first and no build isolation: the pinned backend builds the package, without a second download.
	@$(PY) -m pip install -q $(FROM) -c constraints.txt setuptools
	@$(PY) -m pip install -q $(FROM) -c constraints.txt --no-build-isolation -e '.[$(EXTRAS)]'
	@pwd -P > $(VENV)/.owner
	@touch $@
	@echo "setup: ready"

# Sets $python to the first interpreter that runs, is new enough and can make a venv with pip; says what is missing.
# Really running it matters: a version manager leaves python3.x commands that only print an error.
define find_python
python=; old=; bare=; \
for try in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3); do \
  version=$$("$$try" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
  if ! "$$try" -c 'import sys; sys.exit(sys.version_info < tuple(map(int, "$(MIN_PYTHON)".split("."))))'; then \
    old="$$old $$try (is $$version)"; continue; fi; \
  if ! "$$try" -c 'import ensurepip, venv' 2>/dev/null; then bare="$$bare $$try"; continue; fi; \
  python="$$try"; break; \
done; \
if [ -z "$$python" ]; then \
  if [ -n "$$bare" ]; then \
    echo "setup:$$bare cannot make a virtual environment: the modules venv and ensurepip are missing." >&2; \
    echo "setup: install them (on Debian and Ubuntu the package python3-venv) and run make again." >&2; \
  else \
    echo "setup: Python $(MIN_PYTHON) or newer is needed; found:$${old:- $(if $(PYTHON),$(PYTHON) does not run,none)}." >&2; \
    echo "setup: install it, or name one that you have: make setup PYTHON=/path/to/python3" >&2; \
  fi; \
  exit 1; \
fi
endef

# Wheels, not downloads: what comes as source is built here, and the machine without network needs no compiler.
wheelhouse: setup ## collect everything that setup installs in wheelhouse/, for machines like this one without network
	@$(PY) -m pip wheel -q -w wheelhouse -c constraints.txt --no-build-isolation setuptools '.[$(EXTRAS)]'
	@rm -f wheelhouse/paci_lab-*.whl
	@echo "wheelhouse: $$(ls wheelhouse | wc -l) packages; there: make setup WHEELHOUSE=/path/to/wheelhouse"

demo: setup ## the main job: train flush and PACI pipelines here, compare them and tune the window (eight minutes)
	$(VENV)/bin/paci-lab demo $(ARGS)
	$(VENV)/bin/paci-tune demo

test: setup ## the fast test suite
	$(PY) -m pytest $(TWO) -m "not slow" $(ARGS)

test-slow: setup ## the tests that take minutes or download
	$(PY) -m pytest $(TWO) -m slow $(ARGS)

# In front of .venv's own packages, so that everything else stays as it is.
test-torch: setup ## the exactness tests on another torch (downloads it): make test-torch TORCH=2.12.1
	$(PY) -m pip install -q --upgrade --target .cache/torch-$(TORCH) torch==$(TORCH)
	PYTHONPATH=$(CURDIR)/.cache/torch-$(TORCH) $(PY) -m pytest -m "not slow" $(ARGS) \
	  tests/test_replay.py tests/test_runtime.py tests/test_torch_csv.py tests/test_torch_pipelining.py

bench: setup ## measure everything on this machine, which takes long: leave it alone meanwhile
	$(PY) -m benchmarks.engine $(ARGS)
	$(PY) -m benchmarks.show
	$(PY) -m benchmarks.classroom
	$(PY) -m benchmarks.game
	$(PY) -m benchmarks.race
	$(PY) -m benchmarks.schedules
	$(PY) -m benchmarks.peers
	$(PY) -m benchmarks.scaling
	$(PY) -m benchmarks.checkpoint
	$(PY) -m benchmarks.replicas
	$(PY) -m benchmarks.clipping
	$(PY) -m benchmarks.precision

lab: setup ## open JupyterLab at the lessons
	$(VENV)/bin/paci-lab lab $(ARGS)

book: ## make the lessons, pages and the reference into a site, in build/book
	@$(MAKE) --no-print-directory setup EXTRAS=$(if $(findstring book,$(EXTRAS)),$(EXTRAS),$(EXTRAS)$(COMMA)book)
	$(PY) -m docs.book.build $(ARGS)

words: setup ## collect what learners read into the message catalogue; WORDS=de begins a translation
	$(PY) -m paci_lab.catalogue $(WORDS)

lint: setup ## check style and format with ruff
	$(PY) -m ruff check .
	$(PY) -m ruff format --check -q .

clean: ## remove .venv, caches and build output; runs/ stays
	rm -rf $(VENV) build dist .cache .pytest_cache .ruff_cache ./*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
