# make lab        open the lessons in JupyterLab
# make test       run every test, and every cell of every notebook
# make test-oldest, test-newest
#                 the same, with the oldest versions that pyproject.toml allows, or the newest of all
# make check      format, lint, types
# make slides     present a lesson in JupyterLab, large and alone; LESSON=notebooks/...
# make handouts   write the lessons as web pages that need no kernel into handouts/
# make notebooks  execute the notebooks again and store their outputs
# make clean      delete the environment and every cache
#
# Each works as the first command in a fresh clone: it makes .venv when there is none, and installs
# again when requirements.txt or pyproject.toml has changed. Options:
#   PYTHON=python3.12         the interpreter that makes .venv
#   TORCH_INDEX=URL           take torch from this index
#   IP=0.0.0.0 PORT=8888      where JupyterLab listens

PYTHON ?= python3
IP ?= localhost
PORT ?= 8888
TORCH_INDEX ?=

FIRST := notebooks/00_start_here.ipynb
LESSON ?= $(FIRST)
PY := .venv/bin/python
PIP = $(PY) -m pip --disable-pip-version-check
INSTALLED := .venv/.installed
CHECKERS := .venv/.checkers
# JupyterLab's settings for a projector.
LARGE := .venv/lecture/@jupyterlab/apputils-extension/themes.jupyterlab-settings
# As root (a container), Jupyter wants to be told, and there is no desktop to open a browser on.
ROOT := $(if $(filter 0,$(shell id -u)),--allow-root --no-browser)

SIGN = $(PY) -m nbformat.sign --log-level=WARN notebooks/*.ipynb
SHOW = $(PY) -m jupyterlab --log-level=WARN --ip=$(IP) --port=$(PORT) $(ROOT)

.PHONY: lab slides handouts test test-oldest test-newest check notebooks clean

lab: $(INSTALLED)
	$(SIGN)
	$(SHOW) --LabApp.default_url=/lab/tree/$(FIRST)

slides: $(INSTALLED)
	$(SIGN)
	@mkdir -p $(dir $(LARGE))
	@echo '{"overrides": {"code-font-size": "22px", "content-font-size1": "24px", "ui-font-size1": "20px"}}' > $(LARGE)
	JUPYTERLAB_SETTINGS_DIR=.venv/lecture $(SHOW) --LabApp.default_url=/doc/tree/$(LESSON)

handouts: $(INSTALLED)
	$(PY) notebooks/handouts.py

test: $(INSTALLED)
	$(PY) -m pytest --nbval

# Each makes a new environment from the lower bounds in pyproject.toml, as == or as >=.
test-oldest test-newest: PY = .venv-$*/bin/python
test-oldest test-newest: test-%:
	$(PYTHON) -m venv --clear .venv-$*
	sed -n 's/^ *"\(.*\)>=\(.*\)",$$/\1$(if $(filter oldest,$*),==,>=)\2/p' pyproject.toml \
		> .venv-$*/wanted.txt
	$(if $(TORCH_INDEX),$(PIP) install --no-deps --index-url $(TORCH_INDEX) \
		"$$(grep '^torch' .venv-$*/wanted.txt)")
	$(PIP) install -r .venv-$*/wanted.txt -e .
	$(PY) -m pytest --nbval

check: $(CHECKERS)
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) -m mypy

notebooks: $(INSTALLED)
	$(PY) notebooks/refresh.py write

clean:
	rm -rf .venv .venv-oldest .venv-newest handouts build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -prune -exec rm -rf {} +

# An environment knows its own path, so one that was moved or copied is stale too.
ifneq ($(shell cat $(INSTALLED) 2>/dev/null),$(CURDIR))
.PHONY: $(INSTALLED)
endif

$(INSTALLED): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "The lessons need Python 3.11 or newer, and '$(PYTHON)' is not that."; \
		echo "Install one, or name it: make $(or $(MAKECMDGOALS),lab) PYTHON=python3.12"; \
		exit 1; }
	@echo "Installing into .venv; the first time this takes a few minutes."
	@test "$$(cat $@ 2>/dev/null || echo '$(CURDIR)')" = '$(CURDIR)' && $(PIP) --version >/dev/null 2>&1 \
		|| $(PYTHON) -m venv --clear .venv
	$(if $(TORCH_INDEX),$(PIP) install --no-deps --index-url $(TORCH_INDEX) \
		$$(grep '^torch==' requirements.txt))
	$(PIP) install -r requirements.txt
	@echo '$(CURDIR)' > $@

$(CHECKERS): $(INSTALLED)
	$(PIP) install --quiet -e '.[check]'
	@touch $@
