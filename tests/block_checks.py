"""What is wrong with a page's Python as far as it can be told without running it: syntax, imports, names, keywords."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cairnq_django import call, submit
from cairnq_django.conf import SETTING, problems
from cairnq_django.registry import TaskDef
from cairnq_django.worker.context import AsyncTaskContext, TaskContext

PACKAGE = "cairnq_django"

#: What a page may import though it need not be installed: its blocks are run where it is.
OPTIONAL = {"celery", "channels", "django.tasks", "django_q", "django_tasks", "opentelemetry", "sentry_sdk"}

# With the fields that __init__ sets.
_OF_CONTEXTS = {*dir(TaskContext), *dir(AsyncTaskContext), *TaskContext.__init__.__code__.co_names}


def found_wrong(code: str) -> Iterator[str]:
    """Say what is wrong with a block of Python, if anything is."""
    try:
        tree = ast.parse(code)
        compile(code, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        yield f"{error} in {error.text!r}"
        return
    ours: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            yield from _import(node, ours)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ours:
            yield from _unknown_keywords(node, node.func.id, ours[node.func.id])
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("ctx", "item"):
            if node.attr not in _OF_CONTEXTS:
                yield f"a context has no {node.attr!r}"
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == SETTING:
            yield from _problems_of_settings(node.value)


def not_installed(code: str) -> set[str]:
    """The optional libraries that a block imports and that are not here."""
    return {name for name in _imported(code) & OPTIONAL if not _is_installed(name)}


def _imported(code: str) -> set[str]:
    """What a block imports: each module with those that it is in."""
    modules = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {module.rsplit(".", depth)[0] for module in modules for depth in range(module.count(".") + 1)}


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _import(node: ast.ImportFrom, ours: dict[str, Any]) -> Iterator[str]:
    assert node.module is not None
    try:
        module = import_module(node.module)
    except ImportError as error:
        yield str(error)
        return
    for alias in node.names:
        try:
            ours[alias.asname or alias.name] = getattr(module, alias.name)
        except AttributeError:
            yield f"{node.module} has no {alias.name!r}"


def _unknown_keywords(node: ast.Call, name: str, called: Any) -> Iterator[str]:
    known = set(inspect.signature(called).parameters)
    if name == "task":
        known |= {option.name for option in fields(TaskDef)}
    elif called is call or name == "acall":
        known |= set(inspect.signature(submit).parameters)
    elif any(each.kind is each.VAR_KEYWORD for each in inspect.signature(called).parameters.values()):
        return
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in known:
            yield f"{name}() takes no {keyword.arg!r}"


def _problems_of_settings(value: ast.expr) -> Iterator[str]:
    try:
        settings = ast.literal_eval(value)
    except ValueError:
        return  # made of other values, which it takes a project to know
    settings.pop("DATABASE", None)  # names a database of the reader's project
    yield from problems(settings)
