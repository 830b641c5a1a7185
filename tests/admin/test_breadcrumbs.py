"""Breadcrumbs of the pages that are not Django's own: written as those of Django are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from django.urls import reverse

from tests.factories import TaskFactory

if TYPE_CHECKING:
    from django.test import Client

pytestmark = pytest.mark.django_db


def breadcrumbs(page: str) -> tuple[str, str]:
    """The element they are in, and what is in it."""
    found = re.search(r'<(ol|div) class="breadcrumbs">(.*?)</\1>', page, re.DOTALL)
    assert found
    return found[1], found[2]


def test_they_are_written_as_those_of_django(admin_client: Client) -> None:
    task = TaskFactory.create()
    tasks = reverse("admin:cairnq_django_task_changelist")
    element, inside = breadcrumbs(admin_client.get(tasks).content.decode())
    asked = admin_client.post(tasks, {"action": "cancel_tasks", "_selected_action": [str(task.pk)]})
    pages = [
        (asked, 4),
        (admin_client.get(reverse("admin:cairnq_django_pausedqueue_changelist")), 3),
        (admin_client.get(reverse("admin:cairnq_django_taskattempt_changelist")), 3),
    ]
    for page, steps in pages:
        ours, crumbs = breadcrumbs(page.content.decode())
        assert ours == element
        assert ("<li" in crumbs) == ("<li" in inside)
        assert ("&rsaquo;" in crumbs) == ("&rsaquo;" in inside)
        assert ("aria-current" in crumbs) == ("aria-current" in inside)
        assert crumbs.count("<a ") == steps - 1
        if "<li" in inside:
            assert crumbs.count("<li") == steps
