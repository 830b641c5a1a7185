"""The shop's addresses."""

from __future__ import annotations

from django.urls import path

from testproject.shop import views

app_name = "shop"

urlpatterns = [
    path("", views.index, name="index"),
    path("orders/", views.place_order, name="place-order"),
    path("jobs/<slug:name>/", views.start_job, name="start-job"),
    path("tasks/<uuid:task_id>/", views.task_status, name="task-status"),
    path("tasks/<uuid:task_id>/cancel/", views.cancel_task, name="cancel-task"),
]
