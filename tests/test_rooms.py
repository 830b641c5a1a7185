"""Who may do what: rules about the package's source that hold for each of its modules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import cairnq_django

PACKAGE = Path(cairnq_django.__file__).parent
ROOT = Path(__file__).resolve().parent.parent
MAY_WRITE = {"store", "migrations"}
NOT_OURS = {"session.save"}  # Django's rows

# Names with no other meaning than to write rows, whatever they are looked up on.
WRITES = {"save", "create", "get_or_create", "update_or_create", "bulk_create", "bulk_update", "delete"}
WRITES |= {f"a{name}" for name in WRITES} | {"aupdate", "save_base", "_raw_delete", "_update", "_insert"}
QUERIES = {"InsertQuery", "UpdateQuery", "DeleteQuery"}
SQL_WRITE = re.compile(
    r"\s*(INSERT\s+INTO|REPLACE\s+INTO|MERGE\s+INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM|TRUNCATE)\b", re.I
)


def test_only_the_store_writes_rows() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in MAY_WRITE]
    assert len(modules) > 10
    writes = [
        f"{path.relative_to(PACKAGE)}:{line}: {what}"
        for path in modules
        for line, what in row_writes(path.read_text(encoding="utf-8"))
        if what not in NOT_OURS
    ]
    assert writes == []


@pytest.mark.parametrize(
    "source",
    [
        "task.save()",
        "task.save(update_fields=['status'])",
        "await task.asave()",
        "super().save(*args, **kwargs)",
        "Task.objects.create(name='x')",
        "TaskKey.objects.using(alias).update_or_create(key=key)",
        "Task._default_manager.bulk_create(rows)",
        "Task.objects.filter(pk=pk).update(status='failed')",
        "queryset.update(**changes)",
        "await queryset.aupdate(status='failed')",
        "task.attempts.all().delete()",
        "tasks = Task.objects.all(); tasks._raw_delete(using)",
        "write = task.save",
        "getattr(task, 'save')()",
        "Task.save(task)",
        "cursor.execute('UPDATE cairnq_django_task SET status = %s')",
        "cursor.execute(f'  delete from {table} where id = 1')",
        "from django.db.models.sql import UpdateQuery",
        "query = sql.InsertQuery(Task)",
    ],
)
def test_a_write_is_recognised(source: str) -> None:
    assert row_writes(source)


@pytest.mark.parametrize(
    "source",
    [
        "options.update(defaults)",
        "digest.update(b'x')",
        "seen.update([1, 2])",
        "control.cancel(task)",
        "Task.objects.filter(status='failed').count()",
        "cursor.execute('LISTEN cairnq')",
        "from django.db.models.sql.compiler import SQLCompiler",
        "from cairnq_django.store import maintenance\nmaintenance.delete(task)",
        '"""Update the row."""',
        "log.info('update of %s failed', task)",
    ],
)
def test_what_writes_no_row_is_left_alone(source: str) -> None:
    assert row_writes(source) == []


def test_imports_point_down_the_list_of_rooms() -> None:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def row_writes(source: str) -> list[tuple[int, str]]:
    """Return line and text of everything in a module's source that writes rows, by the ORM or by SQL."""
    tree = ast.parse(dedent(source))
    store = names_imported_from_the_store(tree)
    return [(node.lineno, ast.unparse(node)) for node in ast.walk(tree) if writes_rows(node, store)]


def writes_rows(node: ast.AST, store: set[str]) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id=name)) if name in store:
            return False
        case ast.Attribute(attr=attr):
            return attr in WRITES | QUERIES
        case ast.Call(func=ast.Attribute(attr="update"), args=[], keywords=keywords):
            # Querysets take keywords and nothing else; dictionaries, sets and digests take a positional argument.
            return bool(keywords)
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(attr)), *_]):
            return attr in WRITES | {"update"}
        case ast.Constant(value=str(text)):
            return bool(SQL_WRITE.match(text))
        case ast.ImportFrom(names=names):
            return any(alias.name in QUERIES for alias in names)
    return False


def names_imported_from_the_store(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = f"{'.' * node.level}{node.module or ''}"
            for alias in node.names:
                if "store" in re.split(r"\.+", f"{module}.{alias.name}"):
                    names.add(alias.asname or alias.name)
    return names
