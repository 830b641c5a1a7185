"""What users may rely on, as text: `python -m tests.public_api` writes it to public_api.txt, which a test compares."""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.dispatch import Signal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

PINNED = Path(__file__).with_suffix(".txt")

_ADDED_BY_DJANGO = re.compile("DoesNotExist|MultipleObjectsReturned|NotUpdated|get_(next|previous)_by_.*")

#: Where public names are imported from, as far as there is such a module; and which, if not all that it defines.
MODULES: dict[str, list[str] | None] = {
    "cairnq_django": None,
    "cairnq_django.instrumentation": ["surround"],
    "cairnq_django.logs": ["TaskFilter"],
    "cairnq_django.routers": None,
    "cairnq_django.signals": None,
    "cairnq_django.tasks_backend": None,
    "cairnq_django.testing": None,
    "cairnq_django.tracing": ["METADATA_KEY", "instrument", "uninstrument"],
}


def surface(module: str) -> str:
    """The public names of a module, with what each takes and, of a class, what it has."""
    found = import_module(module)
    lines = [line for name in sorted(_names(found)) for line in _described(name, getattr(found, name))]
    return "".join(f"{line}\n" for line in [f"# {module}", *lines])


def modules() -> list[str]:
    return [module for module in MODULES if find_spec(module) is not None]


def pinned() -> dict[str, str]:
    """What is written down of each module."""
    sections = re.split(r"\n(?=# )", PINNED.read_text(encoding="utf-8"))
    return {section.partition("\n")[0].removeprefix("# "): section.rstrip("\n") + "\n" for section in sections}


def _as_far_as_it_is_installed(module: str) -> str:
    try:
        return surface(module)
    except ImportError:
        return pinned()[module]


def _names(module: ModuleType) -> list[str]:
    listed: list[str] | None = MODULES[module.__name__] or getattr(module, "__all__", None)
    if listed is not None:
        return listed
    return [name for name, value in vars(module).items() if not name.startswith("_") and _is_of(module, value)]


def _is_of(module: ModuleType, value: Any) -> bool:
    return getattr(value, "__module__", None) == module.__name__ or isinstance(value, Signal)


def _described(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}" if callable(value) else name
        return
    if issubclass(value, Enum):
        yield f"class {name}: {', '.join(member.name for member in value)}"
        return
    takes = _signature(value) if any("__init__" in vars(base) for base in _bases(value)) else ""
    yield f"class {name}{takes}"
    for attribute in sorted(_attributes(value)):
        member = inspect.getattr_static(value, attribute, None)
        member = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        yield f"    {attribute}{_signature(member) if inspect.isfunction(member) else ''}"


def _attributes(cls: type) -> set[str]:
    """What the class, and those of its bases that are this package's, define or set on an instance."""
    defined = {name for base in _bases(cls) for name in vars(base)}
    made = {name for base in _bases(cls) for name in _set_on_self(vars(base).get("__init__"))}
    return {name for name in defined | made if not name.startswith("_") and not _ADDED_BY_DJANGO.fullmatch(name)}


def _bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "cairnq_django"]


def _set_on_self(init: Any) -> Iterator[str]:
    try:
        source = textwrap.dedent(inspect.getsource(init))
    except (TypeError, OSError):
        return  # there is none, or it is a dataclass's
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _signature(value: Any) -> str:
    """Without annotations, which type checkers see to."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    plain = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


if __name__ == "__main__":
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    PINNED.write_text("\n".join(map(_as_far_as_it_is_installed, modules())), encoding="utf-8")
