"""The page of work that takes many requests: how far it is, and a button, or a script, that goes on with it."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods

from ..models import Task
from . import display, jobs
from .answering import Answering
from .outcomes import Tally, told
from .wording import WORDING

#: The form field that says how far the job was when the page was made.
DONE: Final = "done"


class Working(Answering):
    """Does its actions to any number of tasks."""

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_job"
        view: Any = self.admin_site.admin_view(self.job_view)
        for alias in connections:
            # ATOMIC_REQUESTS would hold the locks of each batch until the end of the chunk.
            view = transaction.non_atomic_requests(alias)(view)
        return [path("job/<str:key>/", view, name=name), *super().get_urls()]

    def begin(self, place: jobs.Place, job: jobs.Job | None) -> HttpResponse:
        """Begin a job whose action the user may do; None if there is nothing to do it to."""
        if job is not None:
            job.total = job.source.count(job, place)
        if job is None or not job.total:
            self.message_user(place.request, _("None of the tasks is there any more."), messages.WARNING)
            return HttpResponseRedirect(place.request.get_full_path())
        self._work(place, job)
        return HttpResponseRedirect(self.url("job", job.key))

    @method_decorator(require_http_methods(["GET", "HEAD", "POST"]))
    def job_view(self, request: HttpRequest, key: str) -> HttpResponse:
        """How far a job is; a POST does a chunk of it, unless it comes from a page that others have gone on from."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        job = jobs.kept(request, key)
        if job is None:
            self.message_user(request, _("Nothing is known of this work any more."), messages.WARNING)
            return HttpResponseRedirect(self.url("changelist"))
        if request.method == "POST":
            if job.action not in self.get_actions(request):
                raise PermissionDenied
            if not job.finished and request.POST.get(DONE) == str(job.done):
                self._work(jobs.Place(self, request), job)
            return HttpResponseRedirect(request.path)
        context = {
            **self.admin_site.each_context(request),
            "title": WORDING[job.action].on_all,
            "job": job,
            "may_go_on": job.action in self.get_actions(request),
            "done_field": DONE,
            "opts": self.opts,
            "media": self.media,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/cairnq_django/task/job.html", context)

    def _work(self, place: jobs.Place, job: jobs.Job) -> None:
        did = Tally()
        try:
            job.work(place, did)
        finally:
            jobs.keep(place.request, job)
            self._log(place.request, job, did)

    def _log(self, request: HttpRequest, job: jobs.Job, did: Tally) -> None:
        changes = {outcome: count for outcome, count in did.items() if outcome[0].logged is not None}
        if changes:
            lines = [told(kind, reason, count) for (kind, reason), count in changes.items()]
            self.log_change(request, _Many(sum(changes.values()), job), " ".join([*lines, job.named]))


class _Many:
    """A number of tasks, as one object of the admin's history: an entry for each would bury all others."""

    _meta = Task._meta
    pk = None

    def __init__(self, number: int, job: jobs.Job) -> None:
        self.number = number
        self.job = job

    def __str__(self) -> str:
        text = ngettext("%(count)s task, up to %(last)s", "%(count)s tasks, up to %(last)s", self.number)
        return text % {"count": display.number(self.number), "last": self.job.last}
