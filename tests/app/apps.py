"""An app of a project that uses the queue."""

from __future__ import annotations

from django.apps import AppConfig


class TestsAppConfig(AppConfig):
    name = "tests.app"
    label = "tests_app"
    default_auto_field = "django.db.models.BigAutoField"
