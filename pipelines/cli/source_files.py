"""Reads classes and constants of `mi_core` off its source files, without importing them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import mi_core

ROOT = Path(mi_core.__file__).parents[1]


def value_of(module: str, name: str) -> Any:
    """The value that a module binds to a name.

    A class or a function gives a class of the same name, module and docstring, without the code. It has the bases
    and attributes of the original, so that inheritance works. A call gives the class that is called, with the
    positional arguments as its attribute ``arguments``.
    """
    node = _bindings(module)[name]
    if isinstance(node, ast.ImportFrom):
        return value_of(str(node.module), node.names[0].name)
    return _definition(module, name) if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else _value(module, node)


def docstring_of(module: str) -> str:
    """The docstring of a module."""
    return ast.get_docstring(_tree(module)) or ""


@cache
def _tree(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))


@cache
def _bindings(module: str) -> dict[str, ast.AST]:
    """The names that the top level of a module binds: definitions, values, and imports from `mi_core`."""
    found: dict[str, ast.AST] = {}
    for node in _tree(module).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found[name] = node
            case ast.ImportFrom(module=str(origin), names=names) if origin.startswith("mi_core"):
                found |= {alias.asname or alias.name: ast.ImportFrom(origin, [alias], 0) for alias in names}
            case _:
                found |= dict(_assigned(node))
    return found


def _assigned(node: ast.AST) -> list[tuple[str, ast.AST]]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return [(name, value)]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.AST() as value):
            return [(name, value)]
    return []


@cache
def _definition(module: str, name: str) -> type[Any]:
    node = _bindings(module)[name]
    assert isinstance(node, (ast.ClassDef, ast.FunctionDef))
    told: dict[str, Any] = {"__doc__": ast.get_docstring(node), "__module__": module}
    if isinstance(node, ast.FunctionDef):
        return type(name, (), told)
    known = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in _bindings(module)]
    told |= {name: _value(module, value) for line in node.body for name, value in _assigned(line)}
    told["__annotations__"] = {
        line.target.id: ast.unparse(line.annotation)
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    return type(name, tuple(value_of(module, base) for base in known), told)


def _value(module: str, node: ast.AST) -> Any:
    match node:
        case ast.Name(id=name) if name in _bindings(module):
            return value_of(module, name)
        case ast.Call(func=ast.Name(id="frozenset"), args=sets):
            return frozenset(_value(module, part) for one in sets for part in ast.iter_child_nodes(one))
        case ast.Call(func=ast.Name(id=name) as called, args=arguments) if name in _bindings(module):
            original = _value(module, called)
            values = [_value(module, argument) for argument in arguments]
            return type(original.__name__, (original,), {"__doc__": original.__doc__, "arguments": values})
        case ast.Dict(keys=keys, values=values):
            return {_value(module, key): _value(module, value) for key, value in zip(keys, values, strict=True) if key}
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _value(module, left) / _value(module, right)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
