"""Two admin sites: the default one, and a project's own that shows tasks as well."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from cairnq_django.admin import QueueAdmin, TaskAdmin
from cairnq_django.models import PausedQueue, Task

back_office = admin.AdminSite("back_office")
back_office.register(Task, TaskAdmin)
back_office.register(PausedQueue, QueueAdmin)

urlpatterns = [path("admin/", admin.site.urls), path("back-office/", back_office.urls)]
