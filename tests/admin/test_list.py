"""The list of tasks: what it shows, finds and filters, at a price that does not grow with the table."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.timezone import localtime

from cairnq_django.admin import TaskAdmin, changelist
from cairnq_django.clock import after
from cairnq_django.ids import first_id_at, new_task_id
from cairnq_django.statuses import TaskStatus
from cairnq_django.store.engine import task_database
from cairnq_django.store.maintenance import expire
from tests.factories import TaskAttemptFactory, TaskFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.pages import Visitor

pytestmark = pytest.mark.django_db


def text_of(html: str, column: str) -> list[str]:
    """The texts of a column, from the top."""
    cells = re.findall(rf'<t[dh] class="[^"]*field-{column}[^"]*">(.*?)</t[dh]>', html, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in cells]


def test_the_newest_task_comes_first(operator: Visitor) -> None:
    old, new = TaskFactory(), TaskFactory()

    assert operator.open_list().tasks == [new, old]


def test_the_oldest_can_come_first(operator: Visitor) -> None:
    old, new = TaskFactory(), TaskFactory()
    link = re.search(r'column-age.*?href="\?o=([^"]*)" class="toggle', operator.open_list().html, re.DOTALL)
    assert link is not None

    assert operator.open_list(o=link[1]).tasks == [old, new]


def test_a_row_tells_the_main_facts_of_a_task(operator: Visitor) -> None:
    task = TaskFactory(
        failed=True,
        name="send_receipt",
        queue="mail",
        priority=7,
        max_attempts=5,
        created_at=after(-7_300),
        started_at=after(-80),
        completed_at=after(-5),
        error={
            "type": "TaskError",
            "code": "bounced",
            "message": "No such mailbox",
            "retryable": True,
            "details": None,
        },
    )

    html = operator.open_list().html

    assert text_of(html, "task") == [f"send_receipt …{str(task.pk)[-8:]} · mail · priority 7"]
    assert f'href="{operator.page_url(task)}' in html
    assert text_of(html, "state_and_progress") == ["failed"]
    assert text_of(html, "tries") == ["3/5"]
    assert text_of(html, "age") == ["2 h ago"]
    exact = localtime(task.created_at).isoformat()
    assert f'<time datetime="{exact}" title="{exact}">2 h ago' in html
    assert text_of(html, "took") == ["1 min 15 s"]
    assert text_of(html, "short_error") == ["bounced: No such mailbox"]


def test_of_an_unexpected_exception_the_list_shows_which_one(operator: Visitor) -> None:
    envelope = {"type": "shop.errors.Oops", "code": "unexpected_exception", "message": "boom"}
    TaskFactory(failed=True, error=envelope)

    assert text_of(operator.open_list().html, "short_error") == ["Oops: boom"]


def test_a_task_that_expired_says_so(operator: Visitor) -> None:
    TaskFactory(too_late=True)
    expire(task_database())

    html = operator.open_list().html

    assert text_of(html, "state_and_progress") == ["canceled"]
    assert text_of(html, "short_error")[0].startswith("expired: The task expired at ")


def test_a_long_error_is_cut(operator: Visitor) -> None:
    TaskFactory(failed=True, error={"code": "long", "message": "x" * 4_000})

    (text,) = text_of(operator.open_list().html, "short_error")

    assert text.startswith("long: xxx")
    assert len(text) < 200


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({}, "queued"),
        ({"run_at": after(7_300)}, "queued due in 2 h"),
        ({"run_at": after(130), "attempt": 1}, "queued retry in 2 min"),
        ({"running": True}, "running"),
        ({"cancel_requested": True}, "running cancel requested"),
        ({"running": True, "progress": 0.42}, "running 42 %"),
        ({"succeeded": True}, "succeeded"),
        ({"canceled": True}, "canceled"),
    ],
)
def test_the_status_is_told_in_words(operator: Visitor, state: dict[str, object], shown: str) -> None:
    TaskFactory(**state)

    assert text_of(operator.open_list().html, "state_and_progress") == [shown]


def test_a_task_canceled_between_two_attempts_has_no_duration(operator: Visitor) -> None:
    TaskFactory(canceled=True, attempt=1, started_at=after(-900))

    assert text_of(operator.open_list().html, "took") == ["-"]


@pytest.mark.parametrize(
    "write", [str, lambda pk: pk.hex, lambda pk: str(pk).upper(), lambda pk: pk.urn, repr, "  {}\n".format]
)
def test_an_id_finds_its_task_however_it_is_written(operator: Visitor, write: Callable[[object], str]) -> None:
    task = TaskFactory()
    TaskFactory()

    assert operator.open_list(q=write(task.pk)).tasks == [task]


@pytest.mark.parametrize("column", ["key", "correlation_id", "name"])
@pytest.mark.parametrize("value", ["receipt:7", "two words", " padded ", "100%"])
def test_a_text_finds_the_tasks_that_have_it(operator: Visitor, column: str, value: str) -> None:
    task = TaskFactory(**{column: value})
    TaskFactory(name="other", key="other", correlation_id="other")

    assert operator.open_list(q=value).tasks == [task]


def test_a_part_of_a_text_finds_nothing(operator: Visitor) -> None:
    TaskFactory(name="send_receipt", key="receipt:7", payload={"receipt": "receipt"})

    assert operator.open_list(q="receipt").tasks == []


def test_keys_and_correlation_ids_that_are_uuids_are_found_beside_ids(operator: Visitor) -> None:
    request_id = uuid4()
    tasks = [TaskFactory(correlation_id=str(request_id)), TaskFactory(key=request_id.hex)]

    assert operator.open_list(q=str(request_id)).tasks == tasks[::-1]


@pytest.mark.parametrize("column", ["status", "queue", "name"])
def test_the_list_can_be_filtered(operator: Visitor, column: str) -> None:
    task = TaskFactory(failed=True, queue="mail", name="send_receipt")
    for other in ({"succeeded": True}, {"running": True}, {}):
        TaskFactory(**other)

    assert operator.open_list(**{column: str(getattr(task, column))}).tasks == [task]


def test_each_status_has_a_shape_of_its_own(operator: Visitor) -> None:
    shapes = set()
    for each in TaskStatus.values:
        TaskFactory(**({each: True} if each != "queued" else {}))
        (shape,) = set(re.findall(r'<svg class="cairnq-icon.*?<path d="([^"]*)"', operator.open_list(status=each).html))
        shapes.add(shape)
    assert len(shapes) == 5


@pytest.mark.parametrize("status", ["queued", "running", "succeeded", "failed", "canceled"])
def test_each_status_can_be_filtered_for(operator: Visitor, status: str) -> None:
    tasks = [
        TaskFactory(**traits)
        for traits in ({}, *({name: True} for name in ("running", "succeeded", "failed", "canceled")))
    ]

    assert operator.open_list(status=status).tasks == [task for task in tasks if task.status == status]


def test_the_list_can_be_filtered_by_the_code_of_the_error(operator: Visitor) -> None:
    failed = TaskFactory(failed=True, error={"code": "card_declined"})
    retried = TaskFactory(delayed=True, attempt=1, error={"code": "card_declined"})
    TaskFactory(failed=True, error={"code": "other"})
    TaskFactory(failed=True, error=["card_declined"])
    TaskFactory()

    assert operator.open_list(error="card_declined").tasks == [retried, failed]
    assert operator.open_list(error="card_declined", status="failed").tasks == [failed]
    assert operator.open_list(error="nothing").tasks == []


def test_the_codes_of_the_newest_failed_attempts_are_offered(operator: Visitor) -> None:
    for error in ({"code": "card_declined"}, {"code": "<b>"}, {"code": None}, [], "text"):
        TaskAttemptFactory(error=error)

    html = operator.open_list().html

    assert "?error=card_declined" in html
    assert "&lt;b&gt;" in html


def test_the_list_can_be_filtered_by_retries(operator: Visitor) -> None:
    retried = [TaskFactory(succeeded=True, attempt=2), TaskFactory(delayed=True, attempt=1), TaskFactory(failed=True)]
    first = [TaskFactory(), TaskFactory(running=True), TaskFactory(succeeded=True)]

    assert operator.open_list(retries="yes").tasks == retried[::-1]
    assert operator.open_list(retries="no").tasks == first[::-1]


@pytest.mark.parametrize(
    ("age", "found"),
    [("1h", ["now"]), ("1d", ["now", "hours"]), ("7d", ["now", "hours", "days"]), ("older", ["weeks"])],
)
def test_the_list_can_be_filtered_by_age(operator: Visitor, age: str, found: list[str]) -> None:
    for name, seconds in (("weeks", 20 * 86_400), ("days", 3 * 86_400), ("hours", 7_200), ("now", 1)):
        when = timezone.now() - timedelta(seconds=seconds)
        TaskFactory(name=name, id=first_id_at(when), created_at=when)

    assert [task.name for task in operator.open_list(age=age).tasks] == found


@pytest.mark.parametrize("text", ["ada@example.com", "ü", 'a "quoted" word', "order", "7", "50%_"])
def test_payloads_are_searched_where_that_is_asked_for(operator: Visitor, text: str) -> None:
    task = TaskFactory(payload={"order": 7, "for": ["ada@example.com", "Jürgen", 'a "quoted" word', "50%_"]})
    TaskFactory(payload={"for": "nobody 50"}, key="order:1")

    assert operator.open_list(q=f"payload:{text}").tasks == [task]
    assert operator.open_list(q=f"payload: {text} ", queue="nowhere").tasks == []


def test_a_search_in_payloads_looks_into_the_newest_alone_and_says_so(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelist, "LOOKED_INTO", 2)
    tasks = [TaskFactory(payload="x") for _ in range(3)]

    answer = operator.open_list(q="payload:x")

    assert answer.tasks == tasks[:0:-1]
    assert "Only the newest 2 tasks were looked at." in answer.html


@pytest.mark.parametrize("query", [{"queue": "mail"}, {"name": "work"}, {"retries": "no"}, {"q": "work"}])
def test_what_has_no_index_is_looked_for_in_the_newest_of_what_an_index_finds(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch, query: dict[str, str]
) -> None:
    monkeypatch.setattr(changelist, "LOOKED_AT", 2)
    old = TaskFactory(queue="mail", running=True)
    newer = [TaskFactory(queue="mail") for _ in range(2)]

    answer = operator.open_list(**query)

    assert answer.tasks == newer[::-1]
    assert "Only the newest 2 tasks were looked at." in answer.html
    by_index = operator.open_list(**query, status="running")
    assert by_index.tasks == [old]
    assert "were looked at" not in by_index.html


def test_fewer_errors_are_looked_at(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelist, "LOOKED_AT_ERRORS", 2)
    failed = [TaskFactory(failed=True, queue="mail", error={"code": "x"}) for _ in range(3)]
    TaskFactory()

    answer = operator.open_list(error="x", queue="mail")

    assert answer.tasks == failed[:0:-1]
    assert "Only the newest 2 tasks were looked at." in answer.html


def test_filters_offer_what_is_in_use_and_what_handlers_declare(operator: Visitor) -> None:
    TaskFactory(name="no_handler_here", queue="mail")

    html = operator.open_list().html

    assert "?name=no_handler_here" in html
    assert "?name=write_line" in html  # tests/app/tasks.py
    assert "?queue=mail" in html


def test_a_filter_offers_the_value_that_is_chosen_even_if_no_task_has_it(operator: Visitor) -> None:
    assert "?queue=nowhere" in operator.open_list(queue="nowhere", q="x").html.replace("q=x&amp;", "")


def test_filters_look_at_the_newest_tasks_alone(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelist, "NEWEST", 2)
    for name in ("old", "newer", "newest"):
        TaskFactory(name=name)

    html = operator.open_list().html

    assert "?name=newer" in html
    assert "?name=newest" in html
    assert "?name=old" not in html


@pytest.mark.parametrize(
    "query",
    [
        {"q": "\x00"},
        {"name": "a\x00b"},
        {"queue": "\x00"},
        {"status": "\x00"},
        {"status": "lost"},
        {"o": "99.-1.x"},
        {"q": "x" * 5_000},
    ],
)
def test_nonsense_in_the_address_finds_nothing_or_everything(operator: Visitor, query: dict[str, str]) -> None:
    TaskFactory()

    assert operator.open_list(**query).status == 200


def test_the_queries_are_the_same_for_any_number_of_tasks(operator: Visitor) -> None:
    TaskFactory(failed=True, key="first")
    few = queries_of(operator)
    for _ in range(20):
        TaskFactory(failed=True, payload={"x": 1}, parent_id=new_task_id())

    assert len(queries_of(operator)) == len(few)


def test_no_query_counts_the_table_or_reads_its_json(operator: Visitor) -> None:
    TaskFactory(failed=True)
    quote = connection.ops.quote_name
    queries = queries_of(operator)
    counts = [sql for sql in queries if "COUNT(" in sql and "cairnq_django_task" in sql]

    assert len(counts) == 1
    assert f"LIMIT {changelist.COUNTED + 1}" in counts[0]
    assert not any(quote(column) in sql for sql in queries for column in ("payload", "result", "metadata"))


def test_counting_stops_early_and_the_page_says_so(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelist, "COUNTED", 60)
    for _ in range(65):
        TaskFactory()

    last = operator.open_list(p="2")

    assert len(last.tasks) == 10
    assert "There are more than 60" in last.html
    assert "60 results" not in last.html


def test_a_complete_count_says_nothing_of_more(operator: Visitor) -> None:
    TaskFactory()

    html = operator.open_list().html

    assert "1 task\n" in html
    assert "There are more than" not in html


def test_nobody_without_permission_sees_the_list(log_in: Callable[..., Visitor]) -> None:
    assert log_in("cancel_task", "retry_task").open_list().status == 403


def queries_of(visitor: Visitor) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        visitor.open_list()
    return [query["sql"] for query in captured]


@pytest.mark.parametrize("lookup", ["payload__icontains", "error__icontains", "message", "status__in", "id__gt"])
def test_what_no_filter_offers_cannot_be_looked_up(operator: Visitor, lookup: str) -> None:
    assert operator.open_list(**{lookup: "x"}).status == 400


def test_a_filter_that_a_project_adds_can_be_used(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    urgent, other = TaskFactory(priority=5), TaskFactory()
    assert operator.open_list(priority__exact="5").status == 400

    monkeypatch.setattr(TaskAdmin, "list_filter", [*TaskAdmin.list_filter, "priority"])

    assert operator.open_list(priority__exact="5", status="queued").tasks == [urgent]
    assert other in operator.open_list().tasks
