"""The example's addresses: the shop at the root, the admin beside it."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("testproject.shop.urls")),
]
