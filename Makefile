# `make` shows the targets. GNU make 3.81 (macOS) and later; every command runs in .venv, which is made when it is missing.

PROFILE ?= small
CORPUS  ?=
ENGINE  ?=
GPU     ?=
PYTHON  ?=
ARGS    ?=
SLOW    ?=
# What a person gives is data: neither make nor a shell expands it; recipes read it from the environment. ARGS is for a shell.
GIVEN := PROFILE CORPUS ENGINE GPU PYTHON SLOW NAME PATTERN RUN
$(foreach name,$(GIVEN),$(eval override $(name) := $$(value $(name))))
export $(GIVEN)

VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/.installed
TESTS := $(VENV)/.installed-test
SUITE  = $(PY) -m suite
WHAT   = --profile "$$PROFILE" $${CORPUS:+--corpus "$$CORPUS"} $(ARGS)
WHERE  = $${ENGINE:+--engine "$$ENGINE"}
# What training needs: the packages of a report, and Ray's with ENGINE=ray.
TRAINS = $(STAMP) $(if $(filter ray,$(ENGINE)),$(VENV)/.installed-ray)

# The first Python of a right version: PYTHON if it is given, else python3, else the newest one that has its version in its name.
CHOOSE = for p in $(if $(PYTHON),"$$PYTHON",python3 python3.13 python3.12 python3.11); do \
           if "$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; \
           then python=$$p; break; fi; done; \
         if [ -z "$$python" ]; then echo "No $${PYTHON:+PYTHON=$$PYTHON that is }Python 3.11, 3.12 or 3.13 found." \
           "Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 2; fi

# An environment whose folder was moved, or whose Python is gone, is stale although its stamp is young.
STALE := $(shell [ -x $(PY) ] && [ "$$(sed -n 2p $(STAMP) 2>/dev/null)" = "$$(pwd -P)" ] || rm -f $(STAMP) $(STAMP)-*)

.DEFAULT_GOAL := help
.PHONY: help report open figures evidence test plan compare notebook verify bench gpu-check lab lock clean distclean

help:
	@echo "make report  [PROFILE=small] [CORPUS=folder]   train, execute the notebooks, write the HTML report"
	@echo "make open    [PROFILE=small]                   the report in a browser; while it is made, how far it is"
	@echo "make figures [PROFILE=small]                   figures as PDF and SVG, tables as LaTeX and CSV, for a paper"
	@echo "make evidence                                  train what evidence/ lacks; PROFILE=evidence trains nothing"
	@echo "make test    [SLOW=1]                          all tests, but for those that take minutes, or with them too"
	@echo "make plan    [PROFILE=small] [CORPUS] [GPU]    what a report would train, and for how long"
	@echo "make notebook NAME=03_extrapolation [PROFILE]  one notebook, with the runs that it needs"
	@echo "make compare PATTERN=name [PROFILE] [CORPUS]   a pattern beside dense, local and the best, at equal pairs"
	@echo "make verify  [RUN=fingerprint] [ARGS=--all]    a result computed again from its stored weights, and compared"
	@echo "make bench   [ARGS=--quick]                    speed and memory of attention and of a training step, measured"
	@echo "make gpu-check                                 on a GPU: is it right, how fast (or python3 -m suite.bench.gpu)"
	@echo "make lab                                       JupyterLab: patterns to play with, and all notebooks"
	@echo "make lock                                      both requirements locks anew from pyproject.toml"
	@echo "make clean                                     delete reports, tables, executed notebooks; keep trained runs"
	@echo "make distclean                                 delete outputs/ and .venv"
	@echo
	@cd profiles && echo "PROFILE   $$(ls *.yaml | sed 's/[.]yaml$$//' | tr '\n' ' ')"
	@echo "CORPUS    a folder of your own text, one subfolder a domain"
	@echo "          (.txt, .md, .jsonl, .csv, .parquet; all but the last also as .gz or .zst)"
	@echo "GPU       hours on one by name, for instance h100"
	@echo "ENGINE    ray: report, notebook and compare train on the machines of RAY_ADDRESS (docs/many_machines.md)"
	@echo "PYTHON    Python 3.11 to 3.13 that .venv is made from; ARGS: more options of python -m suite, read by a shell"
	@echo "The report is outputs/PROFILE/report/index.html; python -m suite runs list, runs check: what is there?"

$(STAMP): requirements.lock pyproject.toml
	@$(CHOOSE); "$$python" -I tools/bootstrap.py report

$(STAMP)-%: requirements-test.lock $(STAMP)
	@$(CHOOSE); "$$python" -I tools/bootstrap.py $*

report: $(TRAINS)
	@$(SUITE) report $(WHAT) $(WHERE)

open: $(STAMP)
	@$(SUITE) open --profile "$$PROFILE"

figures: $(STAMP)
	@$(SUITE) figures $(WHAT)

evidence: $(TRAINS)
	@$(SUITE) evidence $(WHERE) $(ARGS)

plan: $(STAMP)
	@$(SUITE) plan $(WHAT) $${GPU:+--gpu "$$GPU"}

notebook: $(TRAINS)
	@$(if $(NAME),,echo "NAME is missing: make notebook NAME=03_extrapolation" >&2; exit 2;) \
	$(SUITE) notebook "$$NAME" $(WHAT) $(WHERE)

compare: $(TRAINS)
	@$(if $(PATTERN),,echo "PATTERN is missing: make compare PATTERN=scaled_base" >&2; exit 2;) \
	$(SUITE) compare "$$PATTERN" $(WHAT) $(WHERE)

verify: $(STAMP)
	@$(SUITE) verify $${RUN:+"$$RUN"} $(WHAT)

bench: $(STAMP)
	@$(SUITE) bench $(ARGS)

test: $(TESTS)
	@$(PY) -m pytest $(if $(SLOW),-m "not campaign") $(ARGS)

# On a machine whose own Python has torch and triton: python3 -m suite.bench.gpu, without .venv.
gpu-check: $(STAMP)
	@$(SUITE) gpu-check $(ARGS)

lab: $(STAMP)
	@cd notebooks && JUPYTER_CONFIG_PATH=../tools/lab$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH} ../$(PY) -m jupyter lab README.md $(ARGS)

# uv resolves for every platform and Python version at once; it lives in outputs/, apart from what it resolves.
lock:
	@$(CHOOSE); set -e; [ -x outputs/tools/bin/uv ] || { "$$python" -m venv outputs/tools; \
	  outputs/tools/bin/python -m pip install --quiet --disable-pip-version-check uv; }; \
	compile="outputs/tools/bin/uv pip compile --universal --python-version 3.11 --quiet"; \
	compile="$$compile --no-header --no-emit-index-url --no-annotate"; \
	$$compile pyproject.toml -o requirements.lock; \
	$$compile --group pyproject.toml:test -c requirements.lock -o requirements-test.lock

clean:
	rm -rf outputs/*/report outputs/*/executed outputs/*/results outputs/*/figures .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf outputs $(VENV) *.egg-info
