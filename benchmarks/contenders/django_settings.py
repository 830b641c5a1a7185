"""Django's settings for the contenders that need some: one database, and nothing that a task queue does not need."""

from __future__ import annotations

import os

from tests.databases import django_databases

SECRET_KEY = "for benchmarks only"
USE_TZ = True
DEBUG = False
DATABASES = {"default": django_databases(os.environ["BENCHMARK_URL"])["default"]}
INSTALLED_APPS = [os.environ["BENCHMARK_APP"]]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# Each is read by one of the contenders only.
CAIRNQ = {"LEASE": float(os.environ.get("BENCHMARK_LEASE", "30"))}
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": []}}
