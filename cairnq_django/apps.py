"""The app's configuration: what is wired together once Django is ready."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import django
from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class CairnQConfig(AppConfig):
    name = "cairnq_django"
    verbose_name = _("Task queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Models are importable from here on only, and what acts on them with them.
        from . import checks, client  # noqa: F401 - importing the checks registers them
        from .models import Task

        Task.actions = client
        autodiscover_modules("tasks")
        if django.VERSION >= (6, 0):
            # Django registers its check of TASKS when its framework is imported, which a project may do later.
            import_module("django.tasks.checks")
        if len(getattr(settings, "TASKS", {})) > 1 and (django.VERSION >= (6, 0) or find_spec("django_tasks")):
            # With one backend alone, each task is declared for it.
            from .tasks_backend import discovery

            discovery.register_tasks()
