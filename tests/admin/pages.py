"""The admin's pages as a visitor meets them: addresses, forms, messages."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from django.contrib.messages import get_messages
from django.urls import reverse

if TYPE_CHECKING:
    from django.test import Client

    from cairnq_django.models import Task


class Visitor:
    def __init__(self, client: Client, site: str = "admin") -> None:
        self.client = client
        self.site = site

    def list_url(self) -> str:
        return reverse("admin:cairnq_django_task_changelist", current_app=self.site)

    def page_url(self, task: Task) -> str:
        return reverse("admin:cairnq_django_task_change", args=[task.pk], current_app=self.site)

    def open_list(self, **query: str) -> Answer:
        return Answer(self.client.get(self.list_url(), query))

    def open_page(self, task: Task) -> Answer:
        return Answer(self.client.get(self.page_url(task)))

    def press(self, label: str, task: Task) -> Answer:
        """Press a button on the task's page."""
        form = self.open_page(task).form
        return Answer(self.client.post(self.page_url(task), {**form.hidden, **form.button(label)}, follow=True))

    def run(self, action: str, *tasks: Task, **fields: str) -> Answer:
        """Select tasks in the list and run an action on them."""
        data = {"action": action, "_selected_action": [str(task.pk) for task in tasks], **fields}
        return Answer(self.client.post(self.list_url(), data, follow=True))


class Answer:
    def __init__(self, response: Any) -> None:
        self.response = response
        self.status = response.status_code

    @property
    def html(self) -> str:
        text: str = self.response.content.decode()
        return text

    @property
    def form(self) -> Form:
        return Form(self.html)

    @property
    def tasks(self) -> list[Task]:
        """The tasks of a list."""
        return list(self.response.context["cl"].result_list)

    @property
    def messages(self) -> set[tuple[str, str]]:
        """What the visitor is told: level and text."""
        return {(message.level_tag, str(message)) for message in get_messages(self.response.wsgi_request)} | {
            (message.level_tag, str(message)) for message in self.response.context["messages"]
        }


class Form(HTMLParser):
    """The form of a task's page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.hidden: dict[str, str] = {}
        self._buttons: dict[str, dict[str, str]] = {}
        self._inside = False
        self._pressed: dict[str, str] | None = None
        self.feed(html)

    @property
    def labels(self) -> list[str]:
        return list(self._buttons)

    def button(self, label: str) -> dict[str, str]:
        return self._buttons[label]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._inside = given.get("id") == "task_form"
        elif self._inside and tag == "input" and given.get("type") == "hidden":
            self.hidden[given["name"]] = given.get("value", "")
        elif self._inside and tag == "button":
            self._pressed = {given["name"]: given["value"]}

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "form"
        if tag == "button":
            self._pressed = None

    def handle_data(self, data: str) -> None:
        if self._pressed is not None:
            self._buttons[data.strip()] = self._pressed
