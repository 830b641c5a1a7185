"""Machines with the token may ask, and staff who may view tasks; nobody else, and nothing changes by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import NoReverseMatch, reverse

from tests.factories import WorkerProcessFactory
from tests.monitoring.conftest import TOKEN

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from django.test import Client
    from pytest_django.fixtures import SettingsWrapper

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.monitoring.urls")]

each_address = pytest.mark.parametrize("url", ["/queue/health/", "/queue/metrics/"])


@pytest.fixture(autouse=True)
def _a_worker() -> None:
    WorkerProcessFactory()


@pytest.mark.urls("tests.urls")
def test_a_project_that_does_not_include_them_does_not_have_them() -> None:
    with pytest.raises(NoReverseMatch):
        reverse("cairnq_django:health")


def test_they_have_names() -> None:
    assert reverse("cairnq_django:health") == "/queue/health/"
    assert reverse("cairnq_django:metrics") == "/queue/metrics/"


@each_address
def test_who_sends_the_token_may_ask(machine: Client, url: str) -> None:
    answer = machine.get(url)
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    assert machine.head(url).status_code == 200


@each_address
@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer tök€n",
        "Bearer None",
    ],
)
def test_who_sends_another_may_not(machine: Client, url: str, header: str) -> None:
    answer = machine.get(url, headers={"Authorization": header})
    assert answer.status_code == 403
    assert "MONITOR_TOKEN" in answer.content.decode()
    assert TOKEN not in answer.content.decode()


@each_address
@pytest.mark.parametrize("header", ["Bearer None", "Bearer ", "Bearer"])
def test_without_the_setting_no_token_is_right(client: Client, url: str, header: str) -> None:
    assert client.get(url, headers={"Authorization": header}).status_code == 403


@each_address
@pytest.mark.parametrize(
    ("fields", "permissions", "status"),
    [
        ({"is_staff": True}, ["view_task"], 200),
        ({"is_staff": True, "is_superuser": True}, [], 200),
        ({"is_staff": True}, ["view_workerprocess"], 403),
        ({"is_staff": False}, ["view_task"], 403),
        ({"is_staff": True, "is_active": False}, ["view_task"], 403),
    ],
    ids=str,
)
def test_of_those_who_log_in_staff_who_may_view_tasks_may_ask(
    client: Client,
    django_user_model: type[User],
    url: str,
    fields: dict[str, Any],
    permissions: list[str],
    status: int,
) -> None:
    user = django_user_model.objects.create_user("ada", **fields)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    assert client.get(url).status_code == status


@each_address
@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_there_is_nothing_to_do(machine: Client, url: str, method: str) -> None:
    assert getattr(machine, method)(url).status_code == 405


@each_address
def test_a_project_that_has_everyone_log_in_does_not_send_machines_to_a_page_for_that(
    machine: Client, settings: SettingsWrapper, url: str
) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert machine.get(url).status_code == 200
    assert machine.get(url, headers={"Authorization": ""}).status_code == 403


@each_address
def test_a_project_without_users_has_machines_alone(machine: Client, settings: SettingsWrapper, url: str) -> None:
    settings.MIDDLEWARE = []
    assert machine.get(url).status_code == 200
    assert machine.get(url, headers={"Authorization": ""}).status_code == 403


@each_address
def test_no_transaction_is_begun_around_them(machine: Client, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with CaptureQueriesContext(connection) as captured:
        assert machine.get(url).status_code == 200
    assert not [query for query in captured if query["sql"].startswith(("SAVEPOINT", "BEGIN"))]
