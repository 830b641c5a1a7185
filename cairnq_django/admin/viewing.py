"""What the admins of all rows have in common: the addresses of their pages; and of those that are only looked at."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse


class Addressed(admin.ModelAdmin):  # type: ignore[type-arg]
    def url(self, page: str, *args: str) -> str:
        """The address of one of the pages of this model, on this site."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, args=args, current_app=self.admin_site.name)


class Viewing(Addressed):
    """Rows that no form of the admin's own adds, changes or deletes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
