"""Who may ask: staff who may view tasks, and whoever sends the token of `CAIRNQ["MONITOR_TOKEN"]`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, InterfaceError, connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from ..conf import get_settings

View = Callable[[HttpRequest], HttpResponse]

_REFUSED = (
    "Send CAIRNQ['MONITOR_TOKEN'] in a header, 'Authorization: Bearer ...', or log in as a member of the staff who may "
    "view tasks.\n"
)


def guarded(view: View) -> View:
    """A view that answers 403 to those who may not ask, is never cached, and needs no database before it is called."""

    @wraps(view)
    def guard(request: HttpRequest) -> HttpResponse:
        if not _has_token(request) and not _is_staff(request):
            return HttpResponseForbidden(_REFUSED, content_type="text/plain; charset=utf-8")
        return view(request)

    answer: Any = never_cache(require_safe(guard))
    for alias in connections:
        # A database that does not answer would keep the view from saying so.
        answer = transaction.non_atomic_requests(alias)(answer)
    # The guard decides; a machine cannot follow to a page to log in.
    return login_not_required(answer)  # type: ignore[no-any-return]


def _has_token(request: HttpRequest) -> bool:
    token = get_settings().monitor_token
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    return token is not None and scheme.lower() == "bearer" and constant_time_compare(sent.strip(), token)


def _is_staff(request: HttpRequest) -> bool:
    try:
        user = getattr(request, "user", None)
        return (
            user is not None
            and user.is_active
            and getattr(user, "is_staff", False)
            and user.has_perm("cairnq_django.view_task")
        )
    except (DatabaseError, InterfaceError):
        return False  # who it is cannot be found out
