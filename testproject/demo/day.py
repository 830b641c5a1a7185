"""A day of the shop's queue, made up: tasks in every state, as a screenshot should show them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils import timezone

from cairnq_django import Task, TaskError, TaskStatus, __version__
from cairnq_django.envelopes import Envelope, from_exception
from cairnq_django.ids import first_id_at
from cairnq_django.models import Activity, TaskAttempt, TaskKey, WorkerProcess
from cairnq_django.statuses import AttemptOutcome
from cairnq_django.store.activity import HOUR, MINUTE, begin_of_span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


WORKERS = ("shop-1-4711-9f2c66d1", "shop-1-4712-07b3a5e8", "shop-2-2203-c41d9e70")
HOURS = 24
PAUSED = "newsletters"  # a queue that waits for somebody to resume it
OUTAGE = (timedelta(minutes=50), timedelta(minutes=38))  # ago: when the mail server was busy


@dataclass(frozen=True)
class Kind:
    """One sort of task: how often it comes, how long it takes, what it is about."""

    name: str
    queue: str
    per_hour: int
    seconds: tuple[float, float]
    payload: Callable[[int], dict[str, Any]]
    result: Callable[[int], Any]
    max_attempts: int = 3
    key: str = ""  # takes the number
    fails: Callable[[Day, timedelta], Failing | None] = lambda day, ago: None


@dataclass(frozen=True)
class Failing:
    error: Envelope
    attempts: int  # that fail
    is_final: bool = False


def told(error: TaskError) -> Envelope:
    return from_exception(error, max_depth=20)


MAIL_BUSY = told(TaskError("The mail server is busy, try again later (421)", code="mail_server_busy"))
DECLINED = told(
    TaskError(
        "The bank declined the card",
        code="card_declined",
        retryable=False,
        details={"card_ending": "0002", "amount": "49.90"},
    )
)
NO_ORDERS = Envelope(
    type="ZeroDivisionError",
    code="unexpected_exception",
    message="division by zero",
    retryable=True,
    details={
        "traceback": """\
Traceback (most recent call last):
  File "/srv/shop/testproject/shop/tasks.py", line 77, in average_basket
    return float(sum(amounts) / len(amounts))
                 ~~~~~~~~~~~~~^~~~~~~~~~~~~~
ZeroDivisionError: division by zero
"""
    },
)
NO_ANSWER = Envelope(
    type="ConnectionRefusedError",
    code="unexpected_exception",
    message="[Errno 111] Connection refused",
    retryable=True,
    details={
        "traceback": """\
Traceback (most recent call last):
  File "/srv/shop/testproject/shop/tasks.py", line 91, in sync_stock
    with socket.create_connection((warehouse.host, 4420), timeout=5) as line:
         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.13/socket.py", line 864, in create_connection
    raise exceptions[0]
  File "/usr/lib/python3.13/socket.py", line 849, in create_connection
    sock.connect(sa)
    ~~~~~~~~~~~~^^^^
ConnectionRefusedError: [Errno 111] Connection refused
"""
    },
)


@dataclass
class Day:
    """Rows in the making; the same ones each time, but for their times."""

    now: datetime = field(default_factory=timezone.now)
    chance: random.Random = field(default_factory=lambda: random.Random(4))
    tasks: list[Task] = field(default_factory=list)
    attempts: list[TaskAttempt] = field(default_factory=list)

    def save(self) -> None:
        Task.objects.bulk_create(self.tasks, batch_size=500)
        TaskAttempt.objects.bulk_create(self.attempts, batch_size=500)
        TaskKey.objects.bulk_create(TaskKey(key=task.key, task=task) for task in self.tasks if task.key)
        WorkerProcess.objects.bulk_create(self.workers())
        Activity.objects.bulk_create(self.activity(), batch_size=500)

    def workers(self) -> Iterator[WorkerProcess]:
        running = Counter(task.worker_id for task in self.tasks if task.is_running)
        for hours, worker_id in enumerate(WORKERS, start=5):
            yield WorkerProcess(
                id=worker_id,
                host=worker_id[:6],
                pid=int(worker_id[7:11]),
                version=__version__,
                queues=sorted({kind.queue for kind in KINDS}),
                names=sorted(BY_NAME),
                concurrency=4,
                busy=running[worker_id],
                started_at=self.now - timedelta(hours=hours),
                seen_at=self.now + timedelta(minutes=10),  # nobody says so again
            )

    def activity(self) -> list[Activity]:
        """What the workers would have added up."""
        rows: dict[tuple[int, datetime, str], Activity] = {}

        def count(what: str, queue: str, moment: datetime, waited: timedelta = timedelta()) -> None:
            for seconds in (MINUTE, HOUR):
                begins_at = begin_of_span(moment, seconds)
                new = Activity(seconds=seconds, begins_at=begins_at, queue=queue)
                row = rows.setdefault((seconds, begins_at, queue), new)
                setattr(row, what, getattr(row, what) + 1)
                row.waited += waited.total_seconds()
                row.longest_wait = max(row.longest_wait, waited.total_seconds())

        for task in self.tasks:
            if task.started_at is not None:
                count("started", task.queue, task.started_at, max(timedelta(), task.started_at - task.run_at))
            if task.completed_at is not None:
                count(task.status, task.queue, task.completed_at)
        for attempt in self.attempts:
            if attempt.outcome == AttemptOutcome.RETRIED:
                count("retried", attempt.task.queue, attempt.ended_at)
        return list(rows.values())

    def add(self, kind: Kind, ago: timedelta, **fields: Any) -> Task:
        """A task that was submitted that long ago."""
        created = self.now - ago
        number = 20_000 + len(self.tasks)
        # As ids are made: a time, then what no other has.
        task_id = UUID(int=first_id_at(created).int | len(self.tasks) << 64 | self.chance.getrandbits(60))
        task = Task(
            **{
                "id": task_id,
                "root_id": task_id,
                "name": kind.name,
                "queue": kind.queue,
                "payload": kind.payload(number),
                "max_attempts": kind.max_attempts,
                "key": kind.key.format(number) or None,
                "correlation_id": f"request-{self.chance.getrandbits(32):08x}",
                "created_at": created,
                "updated_at": created,
                "run_at": created,
                "expires_at": None,
                **fields,
            }
        )
        self.tasks.append(task)
        return task

    def run(self, kind: Kind, ago: timedelta) -> Task:
        """A task that has ended, with its failed attempts."""
        task = self.add(kind, ago)
        start = task.created_at + timedelta(seconds=self.chance.uniform(0.02, 0.6))
        failing = kind.fails(self, ago)
        failed = failing.attempts if failing else 0
        for number in range(1, failed + 1):
            assert failing is not None
            last = failing.is_final and number == failed
            end = self.end_of_an_attempt(kind, start)
            self.attempts.append(
                TaskAttempt(
                    task=task,
                    number=number,
                    worker_id=self.chance.choice(WORKERS),
                    started_at=start,
                    ended_at=end,
                    outcome=AttemptOutcome.FAILED if last else AttemptOutcome.RETRIED,
                    error=failing.error,
                    **kind_of_failure(task, failing.error),
                )
            )
            if last:
                task.attempt, task.status, task.error = number, TaskStatus.FAILED, failing.error
                task.started_at, task.completed_at, task.worker_id = start, end, self.attempts[-1].worker_id
                return task
            start = task.run_at = end + timedelta(seconds=2 ** (number - 1) * self.chance.uniform(0.5, 1))
        task.attempt, task.status = failed + 1, TaskStatus.SUCCEEDED
        task.started_at, task.completed_at = start, self.end_of_an_attempt(kind, start)
        task.worker_id, task.result = self.chance.choice(WORKERS), kind.result(20_000 + len(self.tasks))
        return task

    def start(self, kind: Kind, ago: timedelta, **fields: Any) -> Task:
        """A task that runs."""
        task = self.add(kind, ago, **fields)
        task.status, task.attempt, task.worker_id = TaskStatus.RUNNING, 1, self.chance.choice(WORKERS)
        task.started_at, task.lease_until = task.created_at, self.now + timedelta(minutes=5)
        return task

    def end_of_an_attempt(self, kind: Kind, start: datetime) -> datetime:
        return start + timedelta(seconds=self.chance.uniform(*kind.seconds))


def make_up_a_day() -> None:
    day = Day()
    for kind in KINDS:
        for ago in moments(day, kind.per_hour):
            day.run(kind, ago)
    end_in_other_ways(day)
    for name, seconds, failing in RECENT:
        day.run(replace(BY_NAME[name], fails=lambda day, ago, failing=failing: failing), timedelta(seconds=seconds))
    for name, seconds, progress, message in RUNNING:
        day.start(BY_NAME[name], timedelta(seconds=seconds), progress=progress, message=message)
    wait(day)
    nightly(day)
    day.save()


def moments(day: Day, per_hour: int) -> Iterator[timedelta]:
    """How long ago tasks came: fewer at night than in the evening."""
    for hour in range(HOURS):
        busy = 0.35 + 0.65 * abs(12 - hour) / 12
        for _ in range(round(per_hour * busy)):
            yield timedelta(hours=hour, seconds=day.chance.uniform(45, 3600))


def end_in_other_ways(day: Day) -> None:
    for name, ago in (("build_report", 400), ("sync_stock", 2_000), ("build_report", 9_000)):
        task = day.start(BY_NAME[name], timedelta(seconds=ago), progress=0.3)
        task.status, task.lease_until = TaskStatus.CANCELED, None
        task.cancel_requested_at = task.created_at + timedelta(seconds=30)
        task.completed_at = task.created_at + timedelta(seconds=31)
    day.run(BY_NAME["average_basket"], timedelta(seconds=95))


RUNNING = (
    # name, seconds ago, progress, message
    ("build_report", 52, 0.42, "page 50 of 120"),
    ("resize_photos", 9, 0.75, "beach-6.jpg"),
    ("sync_stock", 4, None, ""),
    ("resize_photos", 3, 0.12, "portrait-1.jpg"),
)


# What has ended just now, so that the newest page of the list has something of everything.
RECENT = (
    # name, seconds ago, failing
    ("send_receipt", 5, None),
    ("charge_card", 11, Failing(DECLINED, 1, True)),
    ("send_receipt", 13, None),
    ("fetch_rates", 17, None),
    ("resize_photos", 27, None),
    ("sync_stock", 31, Failing(NO_ANSWER, 1)),
)


def wait(day: Day) -> None:
    """Tasks that are due, that wait for their next attempt, and that are for later."""
    for ago in (4, 2):
        day.add(BY_NAME["send_receipt"], timedelta(seconds=ago))
    day.add(BY_NAME["charge_card"], timedelta(seconds=1), priority=5)
    retried = day.add(BY_NAME["send_receipt"], timedelta(seconds=38), attempt=2, error=MAIL_BUSY)
    for number, ago in ((1, 37), (2, 30)):
        start = day.now - timedelta(seconds=ago)
        day.attempts.append(
            TaskAttempt(
                task=retried,
                number=number,
                worker_id=WORKERS[number],
                started_at=start,
                ended_at=start + timedelta(seconds=5),
                outcome=AttemptOutcome.RETRIED,
                error=MAIL_BUSY,
                **kind_of_failure(retried, MAIL_BUSY),
            )
        )
    retried.started_at, retried.worker_id, retried.run_at = start, WORKERS[2], day.now + timedelta(minutes=4)
    for seconds in range(40):
        day.add(BY_NAME["send_newsletter"], timedelta(minutes=70, seconds=seconds))
    for days in (1, 3):
        day.add(BY_NAME["remind_customer"], timedelta(seconds=30 * days), run_at=day.now + timedelta(days=days))


def nightly(day: Day) -> None:
    """A task that has submitted others."""
    parent = day.start(BY_NAME["close_books"], timedelta(seconds=75), progress=0.6, message="3 of 5 regions")
    for region in range(5):
        child = day.run(BY_NAME["sum_region"], timedelta(seconds=70 - region))
        child.parent_id, child.root_id = parent.pk, parent.pk


def kind_of_failure(task: Task, error: Envelope) -> dict[str, str]:
    """What an attempt is grouped by."""
    return {"name": task.name, "queue": task.queue, "error_code": error["code"], "error_type": error["type"]}


def mail(day: Day, ago: timedelta) -> Failing | None:
    if OUTAGE[1] < ago < OUTAGE[0]:
        return Failing(MAIL_BUSY, 5, True) if day.chance.random() < 0.5 else Failing(MAIL_BUSY, 4)
    return Failing(MAIL_BUSY, 1) if day.chance.random() < 0.03 else None


def card(day: Day, ago: timedelta) -> Failing | None:
    return Failing(DECLINED, 1, True) if day.chance.random() < 0.05 else None


def stock(day: Day, ago: timedelta) -> Failing | None:
    chance = day.chance.random()
    return Failing(NO_ANSWER, 3, True) if chance < 0.02 else Failing(NO_ANSWER, 1) if chance < 0.08 else None


KINDS = (
    Kind(
        "send_receipt",
        "mail",
        40,
        (0.2, 1.6),
        lambda number: {"order": number, "email": "ada@example.com"},
        lambda number: {"sent_to": "ada@example.com"},
        max_attempts=5,
        key="receipt:{}",
        fails=mail,
    ),
    Kind(
        "resize_photos",
        "photos",
        25,
        (3, 20),
        lambda number: {"product": number, "photos": [f"beach-{photo}.jpg" for photo in range(1, 9)]},
        lambda number: {"resized": 8},
    ),
    Kind(
        "charge_card",
        "default",
        20,
        (0.4, 2.5),
        lambda number: {"order": number, "card_ending": "0002", "amount": "49.90"},
        lambda number: {"receipt": f"ch_{number}"},
        fails=card,
    ),
    Kind(
        "sync_stock",
        "default",
        12,
        (1, 6),
        lambda number: {"warehouse": ("Lyon", "Kobe", "Leipzig")[number % 3]},
        lambda number: {"changed": number % 17},
        fails=stock,
    ),
    Kind(
        "fetch_rates",
        "default",
        4,
        (1.5, 3),
        lambda number: {"currencies": ["USD", "GBP", "CHF", "JPY"]},
        lambda number: {"USD": 1.08, "GBP": 0.85, "CHF": 0.96, "JPY": 169.3},
    ),
    Kind("build_report", "reports", 2, (60, 190), lambda number: {"pages": 120}, lambda number: {"pages": 120}),
    Kind(
        "average_basket",
        "reports",
        1,
        (0.01, 0.02),
        lambda number: {"day": "2026-03-01", "amounts": []},
        lambda number: 41.7,
        fails=lambda day, ago: Failing(NO_ORDERS, 3, True),
    ),
    Kind("remind_customer", "mail", 0, (1, 2), lambda number: {"order": number}, lambda number: None),
    Kind("send_newsletter", PAUSED, 0, (1, 2), lambda number: {"customer": number}, lambda number: None),
    Kind("close_books", "reports", 0, (60, 90), lambda number: {"month": "February"}, lambda number: None),
    Kind("sum_region", "reports", 0, (2, 9), lambda number: {"region": number % 5}, lambda number: {"total": "814.20"}),
)
BY_NAME = {kind.name: kind for kind in KINDS}
