"""The default admin site, a project's own that shows the same, and two that show a part of it."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from cairnq_django.admin import QueueAdmin, TaskAdmin, TaskAttemptAdmin, WorkerAdmin
from cairnq_django.models import PausedQueue, Task, TaskAttempt, WorkerProcess

back_office = admin.AdminSite("back_office")
back_office.register(Task, TaskAdmin)
back_office.register(TaskAttempt, TaskAttemptAdmin)
back_office.register(PausedQueue, QueueAdmin)
back_office.register(WorkerProcess, WorkerAdmin)

tasks_only = admin.AdminSite("tasks_only")
tasks_only.register(Task, TaskAdmin)

workers_only = admin.AdminSite("workers_only")
workers_only.register(WorkerProcess, WorkerAdmin)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("back-office/", back_office.urls),
    path("tasks-only/", tasks_only.urls),
    path("workers-only/", workers_only.urls),
]
