"""What a task's page asks for beside itself: how far the task is, and its JSON as files. Nothing here writes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_safe

from ..envelopes import MESSAGE_LIMIT
from ..models import Task
from ..serialization import clean_text
from . import display, documents
from .viewing import Viewing


def version(task: Task) -> str:
    """Differs once a page shows something that its script cannot change by itself."""
    facts = (task.status, task.attempt, task.cancel_requested, task.run_at.timestamp())
    return ".".join(map(str, (*facts, task.progress is not None, bool(task.message))))


class Answering(Viewing):
    """The addresses of one task that Django's admin does not know."""

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            path("<uuid:task_id>/live/", self.admin_site.admin_view(self.live_view), name=f"{name}_live"),
            path(
                "<uuid:task_id>/<str:column>.json",
                self.admin_site.admin_view(self.download_view),
                name=f"{name}_download",
            ),
            *super().get_urls(),
        ]

    @method_decorator(require_safe)
    def live_view(self, request: HttpRequest, task_id: UUID) -> HttpResponse:
        """What changes on the page of a task that has not ended, for its script to ask again and again."""
        task = self._seen(request, task_id)
        seconds = display.running_time(task)
        return JsonResponse(
            {
                "version": version(task),
                "ended": task.is_terminal,
                "progress": task.progress,
                "percent": "" if task.progress is None else display.percent(task.progress),
                "took": "" if seconds is None else display.duration(seconds),
                "message": clean_text(task.message, MESSAGE_LIMIT),
            }
        )

    @method_decorator(require_safe)
    def download_view(self, request: HttpRequest, task_id: UUID, column: str) -> HttpResponse:
        """A JSON column, whole and as the database holds it."""
        if column not in documents.COLUMNS:
            raise Http404
        task = self._seen(request, task_id)
        rows = Task.objects.using(task._state.db).filter(pk=task_id)
        text = rows.annotate(whole=documents.whole(column)).values_list("whole", flat=True).first()
        headers = {
            "Content-Disposition": f'attachment; filename="{task_id}-{column}.json"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        return HttpResponse("null" if text is None else text, content_type="application/json", headers=headers)

    def _seen(self, request: HttpRequest, task_id: UUID) -> Task:
        """The task, if it is there and the user may see it."""
        fields = (
            "status",
            "attempt",
            "progress",
            "message",
            "run_at",
            "started_at",
            "cancel_requested_at",
            "completed_at",
        )
        task: Task | None = self.get_queryset(request).only(*fields).filter(pk=task_id).first()
        if not self.has_view_permission(request, task):
            raise PermissionDenied
        if task is None:
            raise Http404
        return task
