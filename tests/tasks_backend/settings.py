"""Settings of worker processes that run tasks of Django's framework."""

from __future__ import annotations

import django

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _INSTALLED_APPS

_FRAMEWORK = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"

INSTALLED_APPS = [*_INSTALLED_APPS, *([] if django.VERSION >= (6, 0) else ["django_tasks"]), "tests.tasks_backend"]
TASKS = {
    # Tasks are declared for this one, and sent to the other.
    "default": {"BACKEND": f"{_FRAMEWORK}.backends.immediate.ImmediateBackend"},
    "queue": {"BACKEND": "cairnq_django.tasks_backend.CairnQBackend", "OPTIONS": {"max_attempts": 1}},
}
