"""What a visitor can do: place an order, start a job, watch its task and cancel it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from cairnq_django import Task, submit
from testproject.shop import tasks
from testproject.shop.forms import OrderForm
from testproject.shop.jobs import JOBS

if TYPE_CHECKING:
    from uuid import UUID

RECENT = 20


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    return render_index(request, OrderForm(initial={"email": "ada@example.com"}))


@require_POST
def place_order(request: HttpRequest) -> HttpResponse:
    form = OrderForm(request.POST)
    if not form.is_valid():
        if wants_json(request):
            return JsonResponse({"errors": form.errors}, status=400)
        return render_index(request, form, status=400)
    # One transaction: there is never an order without its receipt, nor a receipt for an order that was rolled back.
    with transaction.atomic():
        order = form.save()
        receipt = submit(tasks.send_receipt, {"order": order.pk}, key=f"receipt:{order.pk}")
    return submitted(request, receipt)


@require_POST
def start_job(request: HttpRequest, name: str) -> HttpResponse:
    job = JOBS.get(name)
    if job is None:
        raise Http404(f"No job is called {name!r}; there are {', '.join(JOBS)}.")
    return submitted(request, submit(job.handler, job.payload))


@require_GET
def task_status(request: HttpRequest, task_id: UUID) -> HttpResponse:
    return JsonResponse(as_json(get_object_or_404(Task, pk=task_id)))


@require_POST
def cancel_task(request: HttpRequest, task_id: UUID) -> HttpResponse:
    # A real shop asks here whether this visitor may cancel this task.
    task = get_object_or_404(Task, pk=task_id).cancel()
    if wants_json(request):
        return JsonResponse(as_json(task))
    if task.is_terminal:
        messages.info(request, _("%(name)s is %(status)s.") % {"name": task.name, "status": task.get_status_display()})
    else:
        messages.info(request, _("%(name)s is asked to stop.") % {"name": task.name})
    return redirect("shop:index")


def submitted(request: HttpRequest, task: Task) -> HttpResponse:
    if wants_json(request):
        return JsonResponse(as_json(task), status=201)
    messages.success(request, _("%(name)s is submitted.") % {"name": task.name})
    return redirect("shop:index")


def render_index(request: HttpRequest, form: OrderForm, status: int = 200) -> HttpResponse:
    # Task ids grow with time: the newest come first straight from the primary key.
    context = {"form": form, "jobs": JOBS, "tasks": Task.objects.order_by("-pk")[:RECENT]}
    return render(request, "shop/index.html", context, status=status)


def wants_json(request: HttpRequest) -> bool:
    return request.get_preferred_type(["text/html", "application/json"]) == "application/json"


def as_json(task: Task) -> dict[str, Any]:
    # The envelope's details may hold a traceback, which is for the admin and not for visitors.
    error = task.error and {field: task.error[field] for field in ("type", "code", "message")}
    return {
        "id": str(task.pk),
        "name": task.name,
        "status": task.status,
        "attempt": task.attempt,
        "max_attempts": task.max_attempts,
        "progress": task.progress,
        "message": task.message,
        "result": task.result,
        "error": error,
        "status_url": reverse("shop:task-status", args=[task.pk]),
        "cancel_url": reverse("shop:cancel-task", args=[task.pk]),
    }
