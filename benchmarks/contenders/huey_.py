"""huey on SQLite: a thread for each task at a time; a task that ended is a result."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from huey import SqliteHuey

from .contender import CONCURRENCY, SQLITE, Body, Contender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Huey(Contender):
    packages = ("huey",)
    databases = (SQLITE,)
    settings = {"sync": f"{CONCURRENCY} threads, results kept, fsync=False"}

    bulk = False

    tables = ("task", "kv")
    succeeded = ended = "SELECT count(*) FROM kv"
    copies = None

    def install(self) -> None:
        self._huey()

    def submit(self, numbers: Iterable[int]) -> None:
        task = self._huey().task(name="name-0")(lambda n: None)
        for n in numbers:
            task(n)

    def work(self, kind: str, body: Body, go: Callable[[], None], names: int, queues: int, concurrency: int) -> None:
        logging.getLogger("huey").setLevel(logging.CRITICAL)
        huey = self._huey()

        def handle(n: int) -> None:
            body(n)

        huey.task(name="name-0")(handle)
        go()
        huey.create_consumer(workers=concurrency, periodic=False).run()

    def _huey(self) -> SqliteHuey:
        return SqliteHuey(filename=self.path, store_none=True, timeout=20, fsync=False)
