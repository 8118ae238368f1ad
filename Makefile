# make run    sets up, trains the quickstart, prints and writes its scores
# make test   sets up, runs the tests
# make cifar  sets up, fetches CIFAR-10 and ImageNet weights, trains a ResNet-50 at 96 px: an hour on one core
# make paper  sets up, fetches, makes the paper's tables and figures: 950 runs, two hours on two cores
#             (ONLY=table1,figure5 some of them; SEEDS=1 with fewer seeds)
# make bench  sets up, measures speed side by side with the alternatives
# make pictures  sets up, draws the pictures of docs/pictures that need nothing but the repository
# make serve  sets up, serves a page to search a run by (WORKDIR=runs/photos; PORT=8000)
# make test-browser  sets up, tests that page in Chromium
# make lint   sets up, checks the style

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python

# The CUDA build of JAX that the card and its driver can run; empty without a card.
SMI := nvidia-smi --format=csv,noheader
DRIVER := $(shell $(SMI) --query-gpu=driver_version 2>/dev/null | head -n 1 | cut -d. -f1)
CARD := $(shell $(SMI) --query-gpu=compute_cap 2>/dev/null | sort -n | head -n 1 | tr -d .)
CUDA := $(if $(DRIVER),$(shell [ "$(DRIVER)" -ge 580 ] 2>/dev/null && [ "$(CARD)" -ge 75 ] 2>/dev/null \
	&& echo "jax[cuda13]" || echo "jax[cuda12]"))

WORKDIR ?= runs/quickstart
PORT ?= 8000

.PHONY: run test cifar paper bench pictures serve test-browser lint
run: .venv/ready
	$(PY) -m mah_jax.main --flagfile=launch/quickstart.cfg

test: .venv/ready
	$(PY) -m pytest

cifar: .venv/ready
	$(PY) -m mah_jax.data.fetch cifar10 --data_dir=data
	$(PY) -m mah_jax.data.fetch resnet50 --data_dir=data
	$(PY) -m mah_jax.main --flagfile=launch/cifar_finetune.cfg

paper: .venv/ready .venv/report
	$(PY) -m mah_jax.data.fetch cifar10 --data_dir=data
	$(PY) -m mah_jax.data.fetch resnet50 --data_dir=data
	@if [ -d data/mirflickr ] && [ ! -d data/mir_flickr ]; then $(PY) -m mah_jax.data.fetch mirflickr --data_dir=data; fi
	@if [ -d data/Groundtruth ] && [ ! -d data/nus_wide ]; then $(PY) -m mah_jax.data.fetch nuswide --data_dir=data; fi
	$(PY) -m mah_jax.paper $(if $(ONLY),--only=$(ONLY)) $(if $(SEEDS),--seeds=$(SEEDS))

bench: .venv/ready .venv/export
	PYTHONPATH=.:tests $(PY) benchmarks/run.py
	PYTHONPATH=. $(PY) benchmarks/shallow.py

pictures: .venv/ready
	PYTHONPATH=. $(PY) docs/pictures.py

serve: .venv/ready .venv/serve
	$(PY) -m mah_jax.main --mode=serve --workdir=$(WORKDIR) --port=$(PORT)

test-browser: .venv/ready .venv/serve .venv/browser
	@(command -v chromium || command -v chromium-browser || command -v google-chrome) > /dev/null || { \
	  echo "No Chromium was found: install the system's package of it (Debian: apt-get install chromium)."; exit 1; }
	$(PY) -m pytest -n 0 tests/test_browser.py

lint: .venv/ready
	.venv/bin/ruff check .

.venv/ready: requirements.txt requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "mah_jax needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python")'
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet -r requirements.txt -r requirements-dev.txt $(CUDA)
	@touch $@

# What an extra part needs on top, such as .venv/serve.
.venv/%: requirements-%.txt .venv/ready
	.venv/bin/pip install --quiet -r $<
	@touch $@
