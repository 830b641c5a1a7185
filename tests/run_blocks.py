"""Run a page's scripts inside the project that its other blocks made up: `python run_blocks.py FILE...`.

Each file is a script. They run one after another with the same names, as if typed into one shell, while a worker runs
in this process.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.management import call_command


def main(scripts: list[str]) -> None:
    django.setup()
    here = Path.cwd()
    for file in sorted(here.glob("*/**/*.py")):
        if not file.name.startswith("test") and "migrations" not in file.parts:
            import_module(".".join(file.relative_to(here).with_suffix("").parts))
    errors = [message for message in checks.run_checks() if message.level >= checks.ERROR]
    assert not errors, errors
    if len(settings.DATABASES) > 1 or any(list(config.get_models()) for config in local_apps(here)):
        for alias in settings.DATABASES:
            call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
    if scripts:
        run(scripts)


def local_apps(here: Path) -> list[Any]:
    return [config for config in apps.get_app_configs() if Path(config.path).parent == here]


def run(scripts: list[str]) -> None:
    # The package's models cannot be imported before django.setup().
    from cairnq_django.conf import get_settings
    from cairnq_django.queues import declared_queues
    from cairnq_django.registry import default_registry
    from cairnq_django.worker.worker import Worker

    undeclared = {definition.resource for definition in default_registry} - {None, *get_settings().resources}
    worker = Worker(
        sorted(declared_queues()),
        resources=dict.fromkeys(map(str, undeclared), 1),
        concurrency=4,
        poll_interval=0.05,
        retry_backoff=0.1,
    )
    names: dict[str, Any] = {"__name__": "__main__"}
    with worker.background():
        for script in scripts:
            execute(Path(script), names)


def execute(script: Path, names: dict[str, Any]) -> None:
    source = script.read_text(encoding="utf-8")
    code = compile(source, str(script), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
    main(sys.argv[1:])
