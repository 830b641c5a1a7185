"""A project that has the addresses for machines."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [path("queue/", include("cairnq_django.urls"))]
