"""Who visits the admin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import Permission

from tests.admin.pages import Visitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.contrib.auth.models import User
    from django.test import Client


@pytest.fixture
def log_in(client: Client, django_user_model: type[User]) -> Callable[..., Visitor]:
    """Log in as someone of the staff who holds just these permissions."""

    def log_in(*permissions: str, name: str = "ada") -> Visitor:
        user = django_user_model.objects.create_user(name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client.force_login(user)
        return Visitor(client)

    return log_in


@pytest.fixture
def operator(log_in: Callable[..., Visitor]) -> Visitor:
    """Someone who may do all that there is to do with tasks."""
    return log_in("view_task", "cancel_task", "cancel_family_task", "retry_task", "reset_task", "run_now_task")
