"""Addresses for machines, off until a project includes them: `path("cairnq/", include("cairnq_django.urls"))`."""

from __future__ import annotations

from django.urls import path

from .monitoring.health import health
from .monitoring.metrics import metrics

app_name = "cairnq_django"

urlpatterns = [
    path("health/", health, name="health"),
    path("metrics/", metrics, name="metrics"),
]
