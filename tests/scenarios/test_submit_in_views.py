"""A view's tasks commit and roll back with what else it writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client
from django.urls import path

from cairnq_django import Registry, Task, TaskContext, Worker, asubmit, call, get, submit, wait
from tests.app.models import Counter

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

registry = Registry()


@registry.task
def send_receipt(ctx: TaskContext, payload: dict[str, Any]) -> str:
    return f"{Counter.objects.get(pk=payload['order'])} sent"


class CardDeclined(Exception):
    pass


def place_order(request: HttpRequest) -> HttpResponse:
    order = Counter.objects.create(name=request.POST["name"])
    receipt = submit(send_receipt, {"order": order.pk}, key=f"receipt:{order.name}")
    if "declined" in request.POST:
        raise CardDeclined
    return JsonResponse({"task": str(receipt.id)})


def place_order_of_two_halves(request: HttpRequest) -> HttpResponse:
    kept = submit(send_receipt, key="kept")
    try:
        with transaction.atomic():
            submit(send_receipt, key="undone")
            raise CardDeclined
    except CardDeclined:
        return JsonResponse({"task": str(kept.id)})


@transaction.non_atomic_requests
def place_order_outside_of_a_transaction(request: HttpRequest) -> HttpResponse:
    submit(send_receipt)
    raise CardDeclined


def ask_for_the_result(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"result": call(send_receipt, {"order": 7}, timeout=20)})


@transaction.non_atomic_requests
def ask_outside_of_a_transaction(request: HttpRequest) -> HttpResponse:
    order = Counter.objects.create(name="seven")
    return JsonResponse({"result": call(send_receipt, {"order": order.pk}, timeout=20)})


@transaction.non_atomic_requests
async def place_order_async(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"task": str((await asubmit(send_receipt)).id)})


urlpatterns = [
    path("order/", place_order),
    path("halves/", place_order_of_two_halves),
    path("outside/", place_order_outside_of_a_transaction),
    path("ask/", ask_for_the_result),
    path("ask-outside/", ask_outside_of_a_transaction),
    path("async/", place_order_async),
]


@pytest.fixture(autouse=True)
def atomic_requests() -> Iterator[None]:
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    yield
    connection.settings_dict["ATOMIC_REQUESTS"] = False


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(registry=registry, poll_interval=0.05).background() as worker:
        yield worker


def test_a_view_that_returns_commits_its_task(client: Client, worker: Worker) -> None:
    answer = client.post("/order/", {"name": "seven"})
    assert wait(answer.json()["task"], timeout=20).result == "seven=0 sent"


def test_a_view_that_raises_takes_its_task_back(client: Client) -> None:
    client.raise_request_exception = False
    assert client.post("/order/", {"name": "seven", "declined": "yes"}).status_code == 500
    assert not Task.objects.exists()
    assert not Counter.objects.exists()
    # The key is as free as if nothing had happened.
    answer = client.post("/order/", {"name": "seven"})
    assert get(answer.json()["task"]).key == "receipt:seven"


def test_a_view_keeps_what_it_submitted_outside_of_a_savepoint_that_it_undid(client: Client) -> None:
    answer = client.post("/halves/")
    assert [str(task.id) for task in Task.objects.all()] == [answer.json()["task"]]


def test_a_view_outside_of_a_transaction_keeps_its_task_whatever_comes(client: Client) -> None:
    client.raise_request_exception = False
    assert client.post("/outside/").status_code == 500
    assert Task.objects.get().is_queued


def test_a_view_in_a_transaction_cannot_ask_for_a_result(client: Client, worker: Worker) -> None:
    with pytest.raises(transaction.TransactionManagementError, match="non_atomic_requests"):
        client.get("/ask/")
    assert not Task.objects.exists()


def test_a_view_outside_of_a_transaction_can_ask_for_a_result(client: Client, worker: Worker) -> None:
    assert client.get("/ask-outside/").json() == {"result": "seven=0 sent"}


def test_an_async_view_submits_too(async_client: AsyncClient) -> None:
    answer = asyncio.run(async_client.post("/async/"))
    assert str(Task.objects.get().id) == answer.json()["task"]
