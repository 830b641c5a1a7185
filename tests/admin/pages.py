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

    def press(self, label: str, task: Task, *, confirm: bool = True) -> Answer:
        """Press a button on the task's page and, if that leads to a question, say yes."""
        form = self.open_page(task).form
        return self._post(self.page_url(task), {**form.hidden, **form.button(label)}, confirm=confirm)

    def run(self, action: str, *tasks: Task, confirm: bool = True, **fields: str) -> Answer:
        """Select tasks in the list, run an action on them and, if that leads to a question, say yes."""
        data = {"action": action, "_selected_action": [str(task.pk) for task in tasks], **fields}
        return self._post(self.list_url(), data, confirm=confirm)

    def _post(self, url: str, data: dict[str, Any], *, confirm: bool) -> Answer:
        answer = Answer(self.client.post(url, data, follow=True))
        if answer.asks and confirm:
            form = answer.question
            answer = Answer(self.client.post(url, {**form.hidden_lists, **form.button(form.labels[0])}, follow=True))
        return answer


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
    def asks(self) -> bool:
        """Whether the page asks for a confirmation."""
        return "question" in (self.response.context or ())

    @property
    def question(self) -> Form:
        return Form(self.html, "cairnq-confirm")

    @property
    def job_form(self) -> Form:
        return Form(self.html, "cairnq-job-form")

    @property
    def job_is_finished(self) -> bool:
        return bool(self.response.context["job"].finished)

    @property
    def told(self) -> set[str]:
        """What the page of a job says became of the tasks."""
        return {line for _, line in self.response.context["job"].said}

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
    """A form of a page: that of a task, unless another id is given."""

    def __init__(self, html: str, form_id: str = "task_form") -> None:
        super().__init__()
        self.form_id = form_id
        self.hidden: dict[str, str] = {}
        self.hidden_lists: dict[str, list[str]] = {}
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
            self._inside = given.get("id") == self.form_id
        elif self._inside and tag == "input" and given.get("type") == "hidden":
            self.hidden[given["name"]] = given.get("value", "")
            self.hidden_lists.setdefault(given["name"], []).append(given.get("value", ""))
        elif self._inside and tag == "button":
            self._pressed = {given["name"]: given["value"]} if "name" in given else {}

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "form"
        if tag == "button":
            self._pressed = None

    def handle_data(self, data: str) -> None:
        if self._pressed is not None:
            self._buttons[data.strip()] = self._pressed
