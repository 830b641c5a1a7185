"""See what a test submitted, and say what it did not."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from pprint import pformat, saferepr
from typing import TYPE_CHECKING, Any, TypedDict

from django.utils.text import Truncator

from ..arguments import Seconds, integer, seconds
from ..models import Task
from ..registry import TaskDef
from ..statuses import TaskStatus
from ..store.engine import task_database
from ..submission import TaskId, as_task_id, definition_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

# What failed is the test: unittest leaves the frames of such modules out of its reports, as pytest those that hide.
__unittest = True

SHOWN = 10  # tasks that a message lists
SHOWN_LENGTH = 200  # characters of a value that a line shows
SHOWN_LINES = 40  # of a difference
DELAY_TOLERANCE = 1.0  # seconds


class Expected(TypedDict, total=False):
    """What else can be expected of a task: what `submit()` was given, and how it stands."""

    key: str | None
    queue: str
    priority: int
    delay: Seconds
    run_at: datetime
    max_attempts: int
    metadata: dict[str, Any]
    correlation_id: str | None
    parent: Task | TaskId | None
    status: TaskStatus | str


def submitted(
    task: TaskDef[Any, Any] | str | None = None, payload: Any = ..., **expected: Unpack[Expected]
) -> list[Task]:
    """The tasks there are, in the order they were submitted: all, or those of a name, a payload, and so on.

    In a test, what it submitted, since its database begins empty. `payload` and the values of `expected` are compared
    as JSON; one that equals more than itself, such as `unittest.mock.ANY`, may be part of them. `delay` is that from
    the submit to when the task is due, give or take a second. Raises `TypeError` for what cannot be expected.
    """
    return _Expectation(task, payload, expected).matching(_all())


def assert_submitted(
    task: TaskDef[Any, Any] | str, payload: Any = ..., *, times: int = 1, **expected: Unpack[Expected]
) -> list[Task]:
    """Check that so many tasks like this were submitted, no more and no less, and return them.

    What can be expected is what `submitted()` takes. Raises `AssertionError`, saying what was submitted instead.
    """
    __tracebackhide__ = True
    return _check(_Expectation(task, payload, expected), integer(times, "times", minimum=0))


def assert_not_submitted(
    task: TaskDef[Any, Any] | str | None = None, payload: Any = ..., **expected: Unpack[Expected]
) -> None:
    """Check that no task like this was submitted, or none at all. Raises `AssertionError` with those that were."""
    __tracebackhide__ = True
    _check(_Expectation(task, payload, expected), 0)


def _check(expectation: _Expectation, times: int) -> list[Task]:
    __tracebackhide__ = True
    tasks = _all()
    matching = expectation.matching(tasks)
    if len(matching) != times:
        raise AssertionError(_message(expectation, times, matching, tasks))
    return matching


def _all() -> list[Task]:
    return list(Task.objects.using(task_database()).order_by("created_at", "pk"))


class _Expectation:
    def __init__(self, task: TaskDef[Any, Any] | str | None, payload: Any, expected: Mapping[str, Any]) -> None:
        self.name = definition_of(task).name if task is not None else None
        self._expected: dict[str, Any] = {} if payload is ... else {"payload": _plain(payload)}
        for field, value in expected.items():
            if field not in Expected.__annotations__:
                known = ", ".join(Expected.__annotations__)
                raise TypeError(f"Tasks are not compared by {field!r}, but by payload, {known}")
            self._expected[field] = _comparable(field, value)

    def __str__(self) -> str:
        said = " and ".join(f"{field} {_shown(value)}" for field, value in self._expected.items())
        return f"{self.name or 'any task'}{f' with {said}' if said else ''}"

    def matching(self, tasks: Iterable[Task]) -> list[Task]:
        return [task for task in tasks if self.name in (None, task.name) and not self._unequal(task)]

    def differences(self, task: Task) -> list[str]:
        """In words, how the task is not as expected."""
        lines = []
        for field, (wanted, found) in self._unequal(task).items():
            if isinstance(wanted, (dict, list)) and isinstance(found, (dict, list)):
                lines += [f"{field}, expected (-) and found (+):", *(f"  {line}" for line in _diff(wanted, found))]
            else:
                lines.append(f"{field}: {_shown(found)}, not {_shown(wanted)}")
        return lines

    def _unequal(self, task: Task) -> dict[str, tuple[Any, Any]]:
        """What was expected and what is found, where these differ."""
        found = {field: _of(task, field) for field in self._expected}
        return {
            field: (wanted, found[field])
            for field, wanted in self._expected.items()
            # What is expected comes first, so that its own idea of what it equals counts.
            if not (abs(wanted - found[field]) <= DELAY_TOLERANCE if field == "delay" else wanted == found[field])
        }


def _of(task: Task, field: str) -> Any:
    if field == "delay":
        return (task.run_at - task.created_at).total_seconds()
    return task.parent_id if field == "parent" else getattr(task, field)


def _comparable(field: str, value: Any) -> Any:
    if field == "delay":
        return seconds(value, "delay")
    if field == "parent" and value is not None:
        return as_task_id(value, "parent")
    return _plain(value)


def _plain(value: Any) -> Any:
    """The value as JSON gives it back; what is not JSON is left, to be compared in its own way."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _message(expectation: _Expectation, times: int, matching: Sequence[Task], tasks: Sequence[Task]) -> str:
    namesakes = [task for task in tasks if task.name == expectation.name]
    lines = [f"{expectation} was submitted {_times(len(matching))}, not {_times(times)}."]
    if matching:
        lines += _listed(matching)
    elif namesakes:
        lines += ["Under that name there is:", *_listed(namesakes, expectation.differences)]
    elif tasks:
        close = difflib.get_close_matches(str(expectation.name), {task.name for task in tasks}, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        lines += [f"Nothing was submitted under that name{hint}, but:", *_listed(tasks)]
    else:
        lines.append("Nothing was submitted at all.")
    return "\n".join(lines)


def _diff(wanted: Any, found: Any) -> list[str]:
    """What differs between the lines, which takes no long time however large the values are."""
    before, after = (pformat(value, width=100).splitlines() for value in (wanted, found))
    diff = [Truncator(line).chars(SHOWN_LENGTH) for line in difflib.unified_diff(before, after, n=2, lineterm="")]
    header = 3  # no names of files here, nor where the first part begins
    return diff[header : SHOWN_LINES + header] + (["..."] if len(diff) > SHOWN_LINES + header else [])


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _listed(tasks: Sequence[Task], differences: Callable[[Task], list[str]] = lambda task: []) -> list[str]:
    lines = []
    for task in tasks[:SHOWN]:
        lines.append(f"  {task.name} {_shown(task.payload)} in queue {task.queue!r}, {task.status}")
        lines += [f"    {line}" for line in differences(task)]
    return [*lines, f"  and {len(tasks) - SHOWN} more"] if len(tasks) > SHOWN else lines


def _shown(value: Any) -> str:
    return Truncator(saferepr(value)).chars(SHOWN_LENGTH)
