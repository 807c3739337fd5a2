"""Every example in a docstring runs and gives what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import mi_core
import pipelines

MODULES = sorted(
    found.name
    for package in (mi_core, pipelines)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not found.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    # Classes and functions are shown in modules that import numpy as np or torch; examples lean on that.
    assert doctest.testmod(module, extraglobs={"np": importlib.import_module("numpy")}).failed == 0
