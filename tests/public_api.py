"""What users may rely on, as text: `python -m tests.public_api` writes it to public_api.txt, which a test compares."""

from __future__ import annotations

import dis
import inspect
import os
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

#: Where public names are imported from, as far as there is such a module.
MODULES = [
    "cairnq_django",
    "cairnq_django.logs",
    "cairnq_django.routers",
    "cairnq_django.signals",
    "cairnq_django.tasks_backend",
    "cairnq_django.testing",
    "cairnq_django.tracing",
]


def surface(module: str) -> str:
    """The public names of a module, with what each takes and, of a class, what it has."""
    found = import_module(module)
    lines = [line for name in sorted(_names(found)) for line in _described(name, getattr(found, name))]
    return "".join(f"{line}\n" for line in [f"# {module}", *lines])


def modules() -> list[str]:
    return [module for module in MODULES if find_spec(module) is not None]


def _names(module: ModuleType) -> list[str]:
    listed: list[str] | None = getattr(module, "__all__", None)
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
    yield f"class {name}{_signature(value)}"
    for attribute in sorted(_attributes(value)):
        member = inspect.getattr_static(value, attribute, None)
        member = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        yield f"    {attribute}{_signature(member) if inspect.isfunction(member) else ''}"


def _attributes(cls: type) -> set[str]:
    """What the class, and those of its bases that are this package's, define or set on an instance."""
    bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "cairnq_django"]
    defined = {name for base in bases for name in vars(base)}
    made = {
        instruction.argval
        for base in bases
        if inspect.isfunction(init := vars(base).get("__init__"))
        for instruction in dis.get_instructions(init)
        if instruction.opname == "STORE_ATTR"
    }
    return {name for name in defined | made if not name.startswith("_")}


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
    PINNED.write_text("\n".join(surface(module) for module in modules()), encoding="utf-8")
