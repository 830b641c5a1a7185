"""The pages of schedules: when each runs and how that went; making, pausing and running them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from cairnq_django import Task, TaskDef
from cairnq_django.clock import after
from cairnq_django.models import Schedule
from cairnq_django.registry import default_registry
from cairnq_django.store import schedules as store
from tests.admin.pages import Answer, Visitor
from tests.factories import ScheduleFactory, TaskFactory, WorkerProcessFactory

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\"&{{ 7|add:7 }}%(count)s{name}"
FORM = {
    "name": "each night",
    "task_name": "write_line",
    "payload": '{"file": "a"}',
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
    "every": "",
    "missed": "once",
    "overlap": "skip",
    "queue": "",
    "priority": "",
}
DOES_ALL = [f"{what}_schedule" for what in ("view", "add", "change", "delete", "pause", "resume", "run_now")]


def address(page: str = "changelist", schedule: Schedule | None = None) -> str:
    return reverse(f"admin:cairnq_django_schedule_{page}", args=[] if schedule is None else [schedule.pk])


def opened(visitor: Visitor, page: str = "changelist", schedule: Schedule | None = None) -> Answer:
    return Answer(visitor.client.get(address(page, schedule)))


def posted(visitor: Visitor, page: str, schedule: Schedule | None = None, **data: Any) -> Answer:
    return Answer(visitor.client.post(address(page, schedule), data, follow=True))


def errors(answer: Answer) -> dict[str, str]:
    return {field: " ".join(said) for field, said in answer.response.context["adminform"].form.errors.items()}


def words(html: Any) -> str:
    return " ".join(re.sub("<.*?>", " ", str(html)).split())


def cells(answer: Answer) -> list[str]:
    return [words(row) for row in re.findall(r"<tr><td class=\"action.*?</tr>", answer.html, re.DOTALL)]


@pytest.fixture
def planner(log_in: Callable[..., Visitor]) -> Visitor:
    """Someone who may do all that there is to do with schedules."""
    return log_in(*DOES_ALL, "view_task")


def test_the_list_tells_when_each_runs_and_how_the_last_run_went(planner: Visitor) -> None:
    task = TaskFactory(failed=True)
    ScheduleFactory(name="a", last_run_at=after(-120), last_task_id=task.pk)
    ScheduleFactory(name="b", every=None, cron="*/5 * * * *", timezone="Europe/Berlin", paused=True, next_run_at=None)
    ScheduleFactory(name="c", task_name="c", declared=True, retired=True, next_run_at=None)
    ScheduleFactory(name="d", next_run_at=after(-3600))
    ScheduleFactory(name="e", next_run_at=after(-3600), last_tick="failed", error="ValueError: no & no")
    ScheduleFactory(name="f", last_tick="skipped")
    ScheduleFactory(name="g", next_run_at=after(-3600), last_tick="held back", error="Queue 'x' is full.")

    answer = opened(planner)

    a, b, c, d, e, f, g = cells(answer)
    assert re.fullmatch(r"a work active every 1 min in \d+ (min|h) failed \d min ago", a)
    assert reverse("admin:cairnq_django_task_change", args=[task.pk]) in answer.html
    assert b == "b work paused */5 * * * * Europe/Berlin - -"
    assert c == "c retired no longer declared in code every 1 min - -"
    assert "overdue" in d
    assert "cannot run ValueError: no &amp; no" in e
    assert "active skipped" in f
    assert "held back" in g


def test_a_schedule_is_made_changed_and_deleted(planner: Visitor) -> None:
    answer = posted(planner, "add", **FORM)
    schedule = Schedule.objects.get()
    assert {level for level, _ in answer.messages} == {"success"}
    assert (schedule.name, schedule.task_name, schedule.payload) == ("each night", "write_line", {"file": "a"})
    assert (schedule.cron, schedule.timezone, schedule.every) == ("30 2 * * *", "Europe/Berlin", None)
    assert f"{schedule.next_run_at:%M}" == "30"
    assert not schedule.declared

    before = schedule.next_run_at
    posted(planner, "change", schedule, **{**FORM, "payload": "", "queue": "night", "priority": "-3"})
    schedule.refresh_from_db()
    assert (schedule.payload, schedule.queue, schedule.priority) == (None, "night", -3)
    assert schedule.next_run_at == before

    posted(planner, "change", schedule, **{**FORM, "cron": "", "timezone": "Europe/Berlin", "every": "90"})
    schedule.refresh_from_db()
    assert (schedule.cron, schedule.timezone, schedule.every) == ("", "", 90.0)
    assert schedule.next_run_at != before

    posted(planner, "delete", schedule, post="yes")
    assert not Schedule.objects.exists()
    assert LogEntry.objects.count() == 4


@pytest.mark.parametrize(
    ("fields", "wrong", "said"),
    [
        ({"cron": "bad"}, "cron", "bad"),
        ({"cron": "0 0 30 2 *"}, "cron", "30 2"),
        ({"cron": "", "every": ""}, "cron", "Give either a cron expression or a number of seconds."),
        ({"every": "60"}, "cron", "Give either a cron expression or a number of seconds."),
        ({"cron": "", "every": "0.5"}, "every", "A second is the shortest."),
        ({"cron": "", "every": "1e300"}, "every", "at most"),
        ({"cron": "", "every": "nan"}, "every", "number"),
        ({"timezone": "Moon/Sea"}, "timezone", "Select a valid choice"),
        ({"task_name": "unheard_of"}, "task_name", "Select a valid choice"),
        ({"payload": "{"}, "payload", "Enter a valid JSON."),
        ({"payload": '"\\u0000"'}, "payload", "Null characters are not allowed."),
        ({"payload": "[NaN]"}, "payload", "Enter a valid JSON."),
        pytest.param({"payload": "[" * 100_000 + "]" * 100_000}, "payload", "Enter a valid JSON.", id="deep"),
        pytest.param({"payload": "9" * 5000}, "payload", "Enter a valid JSON.", id="digits"),
        ({"payload": '"\\ud800"'}, "payload", "Enter a valid JSON."),
        ({"payload": f'"{"x" * 1_100_000}"'}, "payload", "MAX_PAYLOAD_BYTES"),
        ({"missed": "all"}, "overlap", "To run for each missed time"),
        ({"priority": "100000"}, "priority", "32767"),
        ({"name": "taken"}, "name", "There is a schedule of this name already."),
        ({"name": ""}, "name", "This field is required."),
    ],
)
def test_what_is_wrong_is_told_at_its_field(planner: Visitor, fields: dict[str, str], wrong: str, said: str) -> None:
    ScheduleFactory(name="taken")
    ScheduleFactory(name="each night", declared=True)
    found = errors(posted(planner, "add", **{**FORM, **fields}))
    assert list(found) == [wrong]
    assert said in found[wrong]
    assert Schedule.objects.count() == 2


def test_a_task_that_running_workers_serve_can_be_chosen(planner: Visitor) -> None:
    WorkerProcessFactory(names=["elsewhere"])
    WorkerProcessFactory(id="gone", names=["gone"], silent=True)
    assert errors(posted(planner, "add", **{**FORM, "task_name": "gone"})).keys() == {"task_name"}
    posted(planner, "add", **{**FORM, "task_name": "elsewhere"})
    assert Schedule.objects.get().task_name == "elsewhere"


def test_the_page_shows_the_next_five_runs(planner: Visitor) -> None:
    schedule = ScheduleFactory(every=None, cron="0 3 * * *", timezone="UTC", next_run_at=after(600))
    answer = opened(planner, "change", schedule)
    assert answer.html.count("<li><time") == 5
    bad = ScheduleFactory(every=None, cron="@fortnightly", timezone="UTC")
    assert "@fortnightly" in opened(planner, "change", bad).html


def test_the_times_of_a_declared_schedule_are_only_looked_at(planner: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(default_registry._tasks, "declared", TaskDef("declared", every=60))
    schedule = ScheduleFactory(name="declared", declared=True)
    answer = opened(planner, "change", schedule)
    assert answer.status == 200
    assert 'name="cron"' not in answer.html
    assert 'name="_save"' not in answer.html
    assert planner.client.post(address("change", schedule), FORM).status_code == 403
    assert planner.client.post(address("delete", schedule), {"post": "yes"}).status_code == 403
    schedule.refresh_from_db()
    assert schedule.every == 60


@pytest.mark.parametrize("name", ["write_line", "gone with its handler"])
def test_one_that_is_not_declared_any_more_can_be_deleted(planner: Visitor, name: str) -> None:
    schedule = ScheduleFactory(name=name, task_name=name, declared=True)
    posted(planner, "delete", schedule, post="yes")
    assert not Schedule.objects.exists()


@pytest.mark.parametrize("declared", [False, True])
def test_pausing_and_resuming_are_done_told_and_logged(planner: Visitor, declared: bool) -> None:
    schedule = ScheduleFactory(name=HOSTILE, declared=declared)
    answer = posted(planner, "pause", schedule)
    assert [(level, "is paused" in text) for level, text in answer.messages] == [("success", True)]
    assert "<script>alert" not in answer.html
    schedule.refresh_from_db()
    assert (schedule.paused, schedule.next_run_at) == (True, None)
    assert {level for level, _ in posted(planner, "pause", schedule).messages} == {"warning"}

    posted(planner, "resume", schedule)
    schedule.refresh_from_db()
    assert not schedule.paused
    assert schedule.next_run_at is not None
    assert {level for level, _ in posted(planner, "resume", schedule).messages} == {"warning"}
    assert [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")] == ["Paused.", "Resumed."]


def test_a_schedule_runs_now_but_not_beside_its_latest_task(planner: Visitor) -> None:
    schedule = ScheduleFactory(name="mine")
    answer = posted(planner, "run", schedule)
    task = Task.objects.get()
    assert task.name == "work"
    assert reverse("admin:cairnq_django_task_change", args=[task.pk]) in answer.html
    assert {level for level, _ in posted(planner, "run", schedule).messages} == {"warning"}
    assert Task.objects.count() == 1


def test_a_full_queue_is_told(planner: Visitor, settings: Any) -> None:
    settings.CAIRNQ = {"MAX_QUEUE_DEPTH": {"narrow": 1}}
    TaskFactory(queue="narrow")
    answer = posted(planner, "run", ScheduleFactory(name="mine", queue="narrow"))
    assert answer.messages == {("error", "“mine” cannot run: its queue, “narrow”, is full")}


def test_several_are_paused_resumed_and_run_at_once(planner: Visitor) -> None:
    both = [ScheduleFactory(), ScheduleFactory()]
    for action, done in (
        ("pause_schedules", lambda: Schedule.objects.filter(paused=True).count() == 2),
        ("resume_schedules", lambda: Schedule.objects.filter(paused=False, next_run_at__isnull=False).count() == 2),
        ("run_schedules_now", lambda: Task.objects.count() == 2),
    ):
        posted(planner, "changelist", action=action, _selected_action=[each.pk for each in both])
        assert done(), action


@pytest.mark.parametrize(("page", "permission"), [("pause", "pause"), ("resume", "resume"), ("run", "run_now")])
def test_each_thing_to_do_takes_a_permission_and_a_post(
    log_in: Callable[..., Visitor], page: str, permission: str
) -> None:
    schedule = ScheduleFactory()
    if page == "resume":
        store.pause("default", schedule.pk)
    without = log_in(*{*DOES_ALL} - {f"{permission}_schedule"}, name="without")
    assert address(page, schedule) not in opened(without, "change", schedule).html
    assert without.client.post(address(page, schedule)).status_code == 403
    assert without.client.get(address(page, schedule)).status_code == 405
    only = log_in("view_schedule", f"{permission}_schedule", name="only")
    assert address(page, schedule) in opened(only, "change", schedule).html
    assert posted(only, page, schedule).status == 200
    assert Task.objects.count() == (page == "run")


def test_who_may_only_view_changes_nothing(log_in: Callable[..., Visitor]) -> None:
    schedule = ScheduleFactory(payload={"a": HOSTILE})
    viewer = log_in("view_schedule")
    assert opened(viewer).status == 200
    page = opened(viewer, "change", schedule)
    assert "<script>alert" not in page.html
    assert viewer.client.post(address("add"), FORM).status_code == 403
    assert viewer.client.post(address("change", schedule), FORM).status_code == 403


def test_a_long_list_takes_no_more_queries(planner: Visitor, django_assert_max_num_queries: Any) -> None:
    for _ in range(10):
        ScheduleFactory(last_run_at=after(-60), last_task_id=TaskFactory(succeeded=True).pk)
    with django_assert_max_num_queries(10):
        opened(planner)
