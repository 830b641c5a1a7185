"""`@task`, what it makes of a function, and what it refuses."""

from __future__ import annotations

import asyncio
import functools
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

import cairnq_django
from cairnq_django import Registry, TaskContext, TaskDef, TaskError, Worker, task
from cairnq_django.registry import default_registry

if TYPE_CHECKING:
    from collections.abc import Callable


def double(ctx: TaskContext, payload: int) -> int:
    return payload * 2


async def double_async(ctx: Any, payload: int) -> int:
    return payload * 2


class Doubler:
    def __call__(self, ctx: Any, payload: int) -> int:
        return payload * 2

    def double(self, ctx: Any, payload: int) -> int:
        return payload * 2

    async def double_async(self, ctx: Any, payload: int) -> int:
        return payload * 2


class AsyncDoubler:
    async def __call__(self, ctx: Any, payload: int) -> int:
        return payload * 2


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_bare_decorator_takes_the_name_of_the_function(registry: Registry) -> None:
    definition = registry.task(double)
    assert definition == TaskDef("double")
    assert (definition.name, definition.queue, definition.max_attempts) == ("double", "default", None)
    assert (definition.priority, definition.max_run) == (0, None)
    assert registry.get("double") is definition


def test_a_decorator_takes_options_and_a_name(registry: Registry) -> None:
    named = registry.task("shop.double", queue="mail", max_attempts=5, priority=-2, max_run=timedelta(minutes=1))(
        double
    )
    assert named == TaskDef("shop.double", queue="mail", max_attempts=5, priority=-2, max_run=60.0)
    unnamed = registry.task(queue="mail")(double)
    assert unnamed == TaskDef("double", queue="mail")
    assert registry.task()(double_async).name == "double_async"


def test_the_delays_of_a_retry_are_seconds_or_timedeltas(registry: Registry) -> None:
    definition = registry.task("x", retry_backoff=timedelta(minutes=1), retry_backoff_max=3600)(double)
    assert (definition.retry_backoff, definition.retry_backoff_max) == (60.0, 3600.0)
    for name in ("retry_backoff", "retry_backoff_max"):
        with pytest.raises(ValueError, match=f"^{name} must not be negative, got -1$"):
            TaskDef("x", **{name: -1})  # type: ignore[arg-type]


def test_a_definition_takes_the_place_of_one_of_its_name(registry: Registry) -> None:
    registry.task("a")(double)
    other = registry.task("b")(double)
    replacement = registry.replace(TaskDef("a", handler=double_async))
    assert (registry.get("a"), registry.get("b")) == (replacement, other)
    assert registry.get("a") is replacement
    assert registry.replace(TaskDef("c", handler=double)) is registry.get("c")


def test_a_definition_is_given_its_handler(registry: Registry) -> None:
    contract: TaskDef[int, int] = TaskDef("shop.double", queue="mail")
    definition = registry.task(contract)(double)
    assert definition == contract
    assert (contract.handler, definition.handler) == (None, double)
    assert registry.names == ("shop.double",)


def test_a_registry_is_a_collection_of_definitions(registry: Registry) -> None:
    assert (len(registry), registry.names, registry.get("double")) == (0, (), None)
    definitions = [registry.task("b")(double), registry.task("a")(double_async)]
    assert list(registry) == definitions
    assert (len(registry), registry.names) == (2, ("a", "b"))
    assert "a" in registry
    assert "double" not in registry


def test_registries_know_nothing_of_each_other(registry: Registry) -> None:
    other = Registry()
    registry.task("double")(double)
    other.task("double")(double_async)
    assert registry.get("double") is not other.get("double")
    assert "double" not in default_registry


def test_the_module_s_decorator_is_the_default_registry_s() -> None:
    assert task == default_registry.task


def test_a_worker_s_decorator_registers_on_the_registry_it_serves(registry: Registry) -> None:
    worker = Worker(registry=registry)
    definition = worker.task("double", queue="mail")(double)
    assert registry.get("double") is definition
    assert Worker().task == default_registry.task


def test_a_definition_is_called_like_its_handler(registry: Registry) -> None:
    ctx: Any = object()
    assert registry.task(double)(ctx, 21) == 42
    assert asyncio.run(registry.task(double_async)(ctx, 21)) == 42
    assert registry.task("object")(Doubler())(ctx, 21) == 42


def test_a_definition_without_a_handler_cannot_be_called() -> None:
    elsewhere: TaskDef[int, int] = TaskDef("elsewhere")
    with pytest.raises(TypeError, match=r"^Task 'elsewhere' has no handler here; it is run by another program$"):
        elsewhere(None, 1)


def test_what_the_handler_raises_comes_through(registry: Registry) -> None:
    @registry.task
    def decline(ctx: TaskContext, payload: None) -> None:
        raise TaskError("No", code="declined")

    with pytest.raises(TaskError, match="No"):
        decline(None, None)


@pytest.mark.parametrize(
    "handler",
    [
        double,
        Doubler(),
        Doubler().double,
        functools.partial(double),
        functools.partial(Doubler()),
        async_to_sync(double_async),
        lambda ctx, payload: None,
    ],
)
def test_a_sync_handler_is_known_as_one(handler: Callable[..., Any]) -> None:
    assert not TaskDef("work", handler=handler).is_async


@pytest.mark.parametrize(
    "handler",
    [
        double_async,
        AsyncDoubler(),
        Doubler().double_async,
        functools.partial(double_async),
        functools.partial(functools.partial(double_async)),
        functools.partial(AsyncDoubler()),
        functools.partial(Doubler().double_async),
        sync_to_async(double),
    ],
)
def test_an_async_handler_is_known_as_one(handler: Callable[..., Any]) -> None:
    assert TaskDef("work", handler=handler).is_async


def test_a_definition_without_a_handler_is_not_async() -> None:
    assert not TaskDef("work").is_async


# What is refused.


@pytest.mark.parametrize("handler", [lambda ctx, payload: None, functools.partial(double), Doubler()])
def test_a_handler_without_a_name_is_refused_until_it_is_given_one(registry: Registry, handler: Any) -> None:
    with pytest.raises(ValueError, match=r'has no name to register it under; give it one: @task\("..."\)$'):
        registry.task(handler)
    with pytest.raises(ValueError, match="has no name"):
        registry.task(queue="mail")(handler)
    assert len(registry) == 0
    assert registry.task("double")(handler).name == "double"


def test_two_handlers_of_one_name_are_refused_with_both_places_named(registry: Registry) -> None:
    first = registry.task("double")(double)
    with pytest.raises(ValueError, match=r"^Two handlers are named 'double': ") as raised:
        registry.task("double")(double_async)
    for handler in (double, double_async):
        place = f"tests.test_registry.{handler.__name__} (line {handler.__code__.co_firstlineno})"
        assert place in str(raised.value)
    assert registry.get("double") is first


def test_two_handlers_of_one_name_in_one_place_are_told_apart_by_their_lines(registry: Registry) -> None:
    def handler(ctx: Any, payload: Any) -> None: ...

    registry.task(handler)

    def handler(ctx: Any, payload: Any) -> None: ...  # type: ignore[no-redef]

    with pytest.raises(ValueError, match=r"handler \(line (\d+)\) and .*handler \(line (?!\1)\d+\)"):
        registry.task(handler)


def test_a_handler_without_a_place_is_named_as_it_is_shown(registry: Registry) -> None:
    partial = functools.partial(double)
    registry.task("double")(partial)
    with pytest.raises(ValueError, match="double") as raised:
        registry.task("double")(partial)
    assert repr(partial) in str(raised.value)


@pytest.mark.parametrize(
    "handler",
    [
        lambda: None,
        lambda ctx: None,
        lambda payload, *, ctx: None,
        lambda ctx, payload, other: None,
        lambda ctx, payload, *, other: None,
        Doubler.double,
        object(),
        7,
        (1).__abs__,
    ],
)
def test_a_handler_that_does_not_take_ctx_and_payload_is_refused(registry: Registry, handler: Any) -> None:
    with pytest.raises(TypeError, match=r"handler of task 'work' is to .*\(ctx, payload\)"):
        registry.task("work")(handler)
    with pytest.raises(TypeError, match="handler of task 'work' is to"):
        TaskDef("work", handler=handler)
    assert len(registry) == 0


@pytest.mark.parametrize(
    "handler",
    [
        lambda *args: None,
        lambda ctx, payload=None: None,
        lambda ctx, payload, other=1: None,
        lambda anything, goes, **options: None,
        functools.partial(lambda prefix, ctx, payload: None, "prefix"),
        functools.partial(lambda ctx, payload, *, option: None, option=1),
        max,
    ],
)
def test_a_handler_may_take_more_as_long_as_it_can_be_called_with_two(registry: Registry, handler: Any) -> None:
    assert registry.task("work")(handler).handler is handler


def test_what_is_no_function_is_refused(registry: Registry) -> None:
    with pytest.raises(TypeError, match=r"^A handler is a function that takes \(ctx, payload\), got 7$"):
        registry.task(7)  # type: ignore[call-overload]


def test_options_beside_a_definition_are_refused(registry: Registry) -> None:
    with pytest.raises(TypeError, match=r"^Task 'work' is defined by its TaskDef; set priority, queue there$"):
        registry.task(TaskDef("work"), queue="mail", priority=3)  # type: ignore[call-overload]


def test_a_definition_with_a_handler_is_not_given_another(registry: Registry) -> None:
    definition = registry.task(double)
    with pytest.raises(ValueError, match=r"^Task 'double' has a handler already: tests\.test_registry\.double"):
        registry.task(definition)(double)
    with pytest.raises(TypeError, match="handler of task 'again' is to be a function"):
        registry.task("again")(definition)


def test_an_unknown_option_is_refused(registry: Registry) -> None:
    with pytest.raises(TypeError, match=r"^@task has no option 'retries'; its options are aliases, atomic, batch,"):
        registry.task(retries=3)(double)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": ""}, ValueError, "name must not be empty"),
        ({"name": " "}, ValueError, "name must not be blank, got ' '"),
        ({"name": "x" * 201}, ValueError, "name must have at most 200 characters"),
        ({"name": 7}, TypeError, "name must be a string"),
        ({"queue": ""}, ValueError, "queue must not be empty"),
        ({"queue": "q" * 101}, ValueError, "queue must have at most 100 characters"),
        ({"queue": None}, TypeError, "queue must be a string"),
        ({"max_attempts": 0}, ValueError, "max_attempts must be at least 1, got 0"),
        ({"max_attempts": True}, TypeError, "max_attempts must be an integer"),
        ({"priority": 2**15}, ValueError, "priority must be at most 32,767"),
        ({"priority": None}, TypeError, "priority must be an integer"),
        ({"max_run": 0}, ValueError, "max_run must be at least 0.001 seconds, got 0"),
        ({"max_run": "60"}, TypeError, "max_run must be a number of seconds, a timedelta or None, got str"),
        ({"cron": "bad"}, ValueError, "cron must be minute, .* got 'bad': it has five fields"),
        ({"cron": 5}, TypeError, "cron must be a string, got int"),
        ({"cron": "* * * * *", "timezone": "Berlin"}, ValueError, "timezone must be .* got 'Berlin'"),
        ({"cron": "* * * * *", "every": 60}, ValueError, "Give cron or every, not both"),
        ({"every": 0}, ValueError, "every must be at least 1 seconds, got 0"),
        ({"every": 60, "timezone": "UTC"}, ValueError, "timezone goes with cron, got 'UTC'"),
        ({"every": 60, "missed": "twice"}, ValueError, "missed must be one of 'once', 'none', 'all', got 'twice'"),
        ({"every": 60, "overlap": None}, ValueError, "overlap must be one of 'skip', 'allow', got None"),
        ({"every": 60, "missed": "all"}, ValueError, 'missed="all" submits several .* set overlap="allow"$'),
        ({"timezone": "UTC"}, ValueError, "timezone goes with cron or every, got 'UTC' without either"),
        ({"missed": "all"}, ValueError, "missed goes with cron or every, got 'all' without either"),
        ({"overlap": "allow"}, ValueError, "overlap goes with cron or every, got 'allow' without either"),
    ],
    ids=str,
)
def test_a_bad_argument_of_a_definition_is_named(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        TaskDef(**{"name": "work", **arguments})


def test_a_schedule_is_part_of_the_definition(registry: Registry) -> None:
    nightly = registry.task("nightly", cron=" 0  3 * * * ", timezone="Europe/Berlin")(double)
    assert (nightly.cron, nightly.timezone, nightly.every) == ("0 3 * * *", "Europe/Berlin", None)
    often = registry.task("often", every=timedelta(minutes=1), missed="none", overlap="allow")(double)
    assert (often.every, often.missed, often.overlap) == (60.0, "none", "allow")
    assert [nightly.is_periodic, often.is_periodic, TaskDef("work").is_periodic] == [True, True, False]


def test_a_definition_does_not_change() -> None:
    definition: TaskDef[int, int] = TaskDef("work")
    with pytest.raises(AttributeError):
        definition.queue = "mail"  # type: ignore[misc]
    assert hash(definition) == hash(TaskDef("work"))


# Where handlers are found.


def test_the_tasks_modules_of_installed_apps_are_discovered() -> None:
    assert "tests.app.tasks" in sys.modules
    assert "increment_counter" in default_registry
    assert cairnq_django.task == default_registry.task


def test_a_definition_is_found_by_its_aliases(registry: Registry) -> None:
    definition = registry.task("shop.double", aliases=["double", "twice"])(double)
    assert definition.aliases == ("double", "twice")
    assert definition.names == ("shop.double", "double", "twice")
    assert all(registry.get(name) is definition for name in definition.names)
    assert "twice" in registry
    assert (len(registry), list(registry)) == (1, [definition])
    assert registry.names == ("double", "shop.double", "twice")
    assert registry.task(TaskDef("contract", aliases=["agreement"]))(double) is registry.get("agreement")
    assert hash(TaskDef("double", aliases=[])) == hash(TaskDef("double"))


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (
            {"name": "a"},
            {"name": "b", "aliases": ["a"]},
            r"'a': .*double .*, which has that name and .* is 'b' with that alias\.",
        ),
        (
            {"name": "b", "aliases": ["a"]},
            {"name": "a"},
            r"'a': .*double .*, which is 'b' with that alias and .* has that name\.",
        ),
        (
            {"name": "b", "aliases": ["a"]},
            {"name": "c", "aliases": ["x", "a"]},
            r"'a': .* is 'b' with that alias and .* is 'c' with that alias\.",
        ),
    ],
)
def test_a_name_is_one_handler_s_whether_as_name_or_alias(
    registry: Registry, first: dict[str, Any], second: dict[str, Any], told: str
) -> None:
    registry.task(first.pop("name"), **first)(double)
    before = registry.names
    with pytest.raises(ValueError, match=rf"^Two handlers are to run tasks named {told}"):
        registry.task(second.pop("name"), **second)(double_async)
    assert (registry.names, len(registry)) == (before, 1), "what is refused leaves nothing behind"


@pytest.mark.parametrize(
    ("aliases", "error", "told"),
    [
        ("double", TypeError, r"^aliases of task 'x' must be a list of names, got 'double'$"),
        ([7], TypeError, r"^aliases\[0\] must be a string"),
        (["a", ""], ValueError, r"^aliases\[1\] must not be empty$"),
        (["x"], ValueError, r"^aliases of task 'x' must be other names of it, but 'x' is its name already$"),
        (["a", "a"], ValueError, r"^aliases of task 'x' must be other names of it, but 'a' is there twice$"),
    ],
)
def test_wrong_aliases_are_refused(aliases: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        TaskDef("x", aliases=aliases)
