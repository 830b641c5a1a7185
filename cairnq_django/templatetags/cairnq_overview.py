"""The overview as a tag, since Django's admin renders an app's own page from a template and no code of the app's."""

from __future__ import annotations

from typing import Any

from django import template
from django.template import RequestContext

from ..models import PausedQueue, Schedule, Task, TaskAttempt, WorkerProcess
from ..store.engine import task_database

register = template.Library()


@register.inclusion_tag("admin/cairnq_django/overview.html", takes_context=True)
def cairnq_overview(context: RequestContext) -> dict[str, Any]:
    """The overview, for those who may view tasks on this admin site; for others, nothing."""
    # Django loads tags also where there is no admin, which what follows needs.
    from ..admin.overview import SPAN_VAR, SPANS, overview
    from ..admin.verdict import Pages

    # The site lists what it shows to this user, with their permissions; a project may add what is no model.
    models = [model for app in context["app_list"] for model in app.get("models", ())]
    urls = {
        model["model"]: model["admin_url"]
        for model in models
        if model.get("model") and model.get("admin_url") and model.get("perms", {}).get("view")
    }
    if Task not in urls:
        return {"shown": False}
    request = context.request
    span = SPANS.get(request.GET.get(SPAN_VAR, ""), SPANS["hour"])
    pages = Pages(
        tasks=urls[Task],
        failures=urls.get(TaskAttempt),
        queues=urls.get(PausedQueue),
        workers=urls.get(WorkerProcess),
        schedules=urls.get(Schedule),
        site=request.current_app,
    )
    return {"shown": True, **overview(task_database(), span, pages)}
