"""One process of a contender: `python -m benchmarks.contenders NAME URL ACTION [arguments]`.

It says "ready", waits for a line, acts, and says "done".
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TypeVar

from benchmarks.stamps import stamp

from . import load
from .contender import Contender

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")


def main() -> None:
    name, url, action, *arguments = sys.argv[1:]
    ACTIONS[action](load(name)(url), *arguments)
    say("done")


def install(contender: Contender) -> None:
    go()
    contender.install()


def submit(contender: Contender, count: str) -> None:
    contender.submit(after_go(range(int(count))))


def submit_many(contender: Contender, count: str, size: str) -> None:
    numbers = range(int(count))
    contender.submit_many(after_go([numbers[at : at + int(size)] for at in range(0, len(numbers), int(size))]))


def submit_by_turns(contender: Contender, turns: str, seconds: str) -> None:
    """Submit with announcements on and off by turns, the same in all processes; stamp how many that were."""
    turn = float(seconds)
    submitted = {True: 0, False: 0}

    def numbers() -> Iterator[int]:
        began = time.monotonic()
        while (now := time.monotonic()) < began + int(turns) * turn:
            is_on = int(now / turn) % 2 == 0
            contender.switch_announcements(is_on)
            yield submitted[is_on]
            submitted[is_on] += 1

    contender.submit(after_go(numbers()))
    stamp("on", 0, float(submitted[True]))
    stamp("off", 0, float(submitted[False]))


def pick_up(contender: Contender, count: str, pause: str) -> None:
    """Submit task by task, each to an idle worker, and stamp when it was committed."""

    def numbers() -> Iterator[int]:
        for n in range(int(count)):
            time.sleep(float(pause))
            yield n
            stamp("submitted", n)

    contender.submit(after_go(numbers()))


def call(contender: Contender, count: str, pause: str) -> None:
    def numbers() -> Iterator[int]:
        for n in range(int(count)):
            time.sleep(float(pause))
            stamp("called", n)
            yield n
            stamp("answered", n)

    contender.call(after_go(numbers()))


def claims(contender: Contender, count: str, names: str, queues: str) -> None:
    """Claim and give back, again and again, and stamp how long each took."""
    go()
    for n, seconds in enumerate(contender.claims(int(count), int(names), int(queues))):
        stamp("claim", n, seconds)


def work(contender: Contender, kind: str, body: str, names: str, queues: str, concurrency: str) -> None:
    contender.work(kind, BODIES[body], go, int(names), int(queues), int(concurrency))


def nothing(n: int) -> None:
    pass


def start(n: int) -> None:
    stamp("started", n)


def failure(n: int) -> None:
    raise ValueError(f"number {n} fails")


def rest(n: int) -> None:
    time.sleep(600)


ACTIONS = {
    action.__name__: action for action in (install, submit, submit_many, submit_by_turns, pick_up, call, claims, work)
}
BODIES = {"nothing": nothing, "start": start, "failure": failure, "rest": rest}


def go() -> None:
    say("ready")
    sys.stdin.readline()


def after_go(items: Iterable[T]) -> Iterator[T]:
    go()
    yield from items


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
