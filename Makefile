# `make` lists the targets. `make report` measures this machine, and `make test` tests the project.
#
# Variables reach labkit through the environment, never through a shell line, so no value of theirs is ever executed:
# $(value X) takes the text as it stands, also where it looks like a call of make's or the shell's.
VARIABLES := HW STUDY SCALE DATA FORCE WEIGHTS REUTERS NETWORK BATCH KEEP_TRACES TIME ON NODES BASELINE FROM LAB TORCH_INDEX TF_PYTHON JAX_PYTHON
$(foreach name,$(VARIABLES),$(eval override $(name) := $$(value $(name))))
export $(VARIABLES)

# The lines above have overridden all variables that labkit has, so what still comes from the command line is misspelt.
$(foreach name,$(filter-out PYTHON LABKIT_%,$(.VARIABLES)),$(if $(filter command,$(origin $(name))),\
    $(error labkit: unknown make variable $(name); valid: $(VARIABLES) PYTHON. `make help` explains them)))

ifdef PYTHON
# An interpreter that has the packages already (a GPU host without network): used as it is, nothing is installed.
override PYTHON := $(value PYTHON)
export LABKIT_PYTHON := $(PYTHON)
INSTALLED := given-python
else
export LABKIT_PYTHON := .venv/bin/python
INSTALLED := .venv/.installed
# Some containers set it. Then every process, and a study has several, would compile all that it imports for itself,
# which is a third of what a short report costs.
unexport PYTHONDONTWRITEBYTECODE
ifneq ($(TORCH_INDEX),)
ifneq ($(wildcard .venv/.installed),)
ifneq ($(shell cat .venv/.torch-index 2>/dev/null),$(TORCH_INDEX))
$(error TORCH_INDEX differs from the one .venv was made with: type `rm -r .venv`, and run this again)
endif
endif
endif
endif

# `exec`, because make ends only the process that it has started itself.
LABKIT := exec "$$LABKIT_PYTHON" -m workbook.cli

.DEFAULT_GOAL := help
.PHONY: help setup given-python setup-tf setup-jax report sweep render compare plan predict appendix pack collect lab profile doctor data-check picture test \
        test-all test-faults licences hashes audit lint clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile
	@echo "  variables: HW=p100_16gb STUDY=training SCALE=smoke|quick|full DATA=/folder FORCE=1 WEIGHTS=/folder"
	@echo "             TIME=45m (begin no round that would end later; round 0 makes a complete site of small sizes)"
	@echo "             REUTERS=/reuters.npz (documents of the small network that trains beside another)"
	@echo "             NETWORK=mine.py|torchvision:vit_b_16 BATCH=32,256 (STUDY=your_network: measure a network of yours)"
	@echo "             KEEP_TRACES=1 (keep a file of each trace, for Perfetto or labkit trace)"
	@echo "             ON=slurm [NODES=2] (with HW: submit the report to Slurm and follow it), ON=shell|kubernetes (clusters/)"
	@echo "             FROM=archive.tar.gz (with collect: records from elsewhere)"
	@echo "             LAB=\"--no-browser --port 9000\" (options of JupyterLab)"
	@echo "             PYTHON=/path/python3 (use it as it is) TORCH_INDEX=url (where torch comes from)"
	@echo "             TF_PYTHON= JAX_PYTHON=/path/python3 (use it for Keras on TensorFlow, on JAX)"

setup: $(INSTALLED)  ## make .venv with the pinned versions (the other targets do it when needed)

.venv/.installed: constraints.txt constraints-cu126.txt pyproject.toml workbook/bootstrap.py
	@exec python3 -I workbook/bootstrap.py .venv
	@touch $@

given-python:
	@"$$LABKIT_PYTHON" -c "import importlib.util as u, sys; \
	    print(sys.version_info >= (3, 11) and u.find_spec('typer') is not None)" 2>/dev/null | grep -qx True \
	|| { echo "labkit: PYTHON= names no Python from 3.11 on that has labkit's packages; name one that does, or leave \
	PYTHON= out, and make installs them." >&2; exit 2; }

setup-tf: .venv-tf/.installed  ## TensorFlow in an environment of its own, .venv-tf (with CUDA on a GPU)

.venv-tf/.installed: constraints.txt constraints-tf.txt workbook/bootstrap.py
	@exec python3 -I workbook/bootstrap.py .venv-tf tensorflow
	@touch $@

setup-jax: .venv/.jax  ## add JAX to .venv (with CUDA on a GPU)

.venv/.jax: .venv/.installed
	@TORCH_INDEX="$$(cat .venv/.torch-index 2>/dev/null)" exec python3 -I workbook/bootstrap.py .venv jax
	@touch $@

report: $(INSTALLED)  ## measure what is missing on this machine and render the site [ON=slurm HW=x NODES=n: as a job]
	@$(LABKIT) report

sweep: $(INSTALLED)  ## one report per profile elsewhere: HW="h100 l40s" ON=slurm or a template of clusters/
	@$(LABKIT) sweep

render: $(INSTALLED)  ## the site of HW=x, or all recorded sites, measuring nothing (any machine) [FORCE=1: unchanged pages too]
	@$(LABKIT) render

compare: $(INSTALLED)  ## all recorded profiles side by side [BASELINE=profile]
	@$(LABKIT) compare

plan: $(INSTALLED)  ## the configurations that a report would run, and the time they should take
	@$(LABKIT) plan

predict: $(INSTALLED)  ## step times of recorded configurations on HW=x, with intervals [FROM=h200 STUDY=profile]
	@$(LABKIT) predict

appendix: $(INSTALLED)  ## write reports/<hw>/appendix.md for reviewers of HW=x: records, and the command of each claim
	@$(LABKIT) appendix

pack: $(INSTALLED)  ## compress the records of HW=x, to be committed
	@$(LABKIT) pack

collect: $(INSTALLED)  ## check and merge records from elsewhere, FROM=folder or archive [HW=x: these alone]
	@$(LABKIT) collect

lab: $(INSTALLED)  ## JupyterLab on this folder, with notebooks/00_start_here.ipynb open [LAB="its options"]
	@$(LABKIT) lab

profile: $(INSTALLED)  ## write a params/<name>.yaml for the hardware found here
	@$(LABKIT) profile

doctor: $(INSTALLED)  ## what was found, what matches, what is missing and how to get it
	@$(LABKIT) doctor

data-check: $(INSTALLED)  ## say what DATA=/folder holds and which studies can use it
	@$(LABKIT) data check

picture: $(INSTALLED)  ## make the README's picture of the findings anew (needs Chromium)
	@HW=h200 $(LABKIT) render
	@"$$LABKIT_PYTHON" -m tests.browser.picture

test: $(INSTALLED)  ## every rule, every notebook once, a small report and its pages (under ten minutes on two cores)
	@"$$LABKIT_PYTHON" -m tests -m "not thorough"

test-all: $(INSTALLED)  ## all tests, those of a GPU where there is one (half an hour; LABKIT_SLOW=1 adds the longest)
	@"$$LABKIT_PYTHON" -m tests

test-faults: $(INSTALLED)  ## signals at random moments of 50 reports, full disks, no network and other faults (an hour)
	@LABKIT_SLOW=1 "$$LABKIT_PYTHON" -m pytest -q tests/faults
	@"$$LABKIT_PYTHON" -m tests.faults --points 50

licences: $(INSTALLED)  ## write docs/licences.md: the licences of all packages
	@"$$LABKIT_PYTHON" -m tests.supply.licences

hashes: $(INSTALLED)  ## write constraints-hashed.txt, for pip install --require-hashes (this machine, its index)
	@"$$LABKIT_PYTHON" -m tests.supply.hashes

audit: $(INSTALLED)  ## known vulnerabilities of the pinned versions, by pip-audit, and what could not be looked up
	@"$$LABKIT_PYTHON" -m tests.supply.audit

lint: $(INSTALLED)  ## ruff, mypy, import-linter, notebooks without outputs, the ratchet of sizes
	@"$$LABKIT_PYTHON" -m ruff check .
	@"$$LABKIT_PYTHON" -m ruff format --check .
	@"$$LABKIT_PYTHON" -m mypy
	@"$$LABKIT_PYTHON" -c "from importlinter.cli import lint_imports_command as lint; lint()" --no-logo 2>&1
	@"$$LABKIT_PYTHON" -m nbstripout --verify notebooks/*.ipynb
	@"$$LABKIT_PYTHON" -m tests.prices

clean:  ## remove what reports built (records stay)
	@rm -rf reports/*/*.html reports/*/*.ipynb reports/*/run.json reports/*/logs reports/*/*.csv reports/*/numbers.parquet
	@rm -rf reports/*/papers reports/*/appendix.md
