.PHONY: quality fast test slow smoke docs docs-serve notebooks gallery

PYTHON ?= python

quality:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

fast: quality
	$(PYTHON) -m pytest -n 2 -m "not slow and not ray" $$($(PYTHON) tests/changed.py)

test:
	$(PYTHON) -m pytest -n 2

slow:
	$(PYTHON) -m pytest -m slow

smoke:
	$(PYTHON) -m pipelines.cli quickstart --out runs/smoke encoders.target.epochs=20

docs:
	$(PYTHON) -m mkdocs build --strict

docs-serve:
	$(PYTHON) -m mkdocs serve

notebooks:
	$(PYTHON) -m docs.studies.notebooks

gallery:
	$(PYTHON) -m docs.studies.gallery
