"""Heavy work, watched: batches, a shared resource, large payloads and a producer that outruns its worker."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connection, connections
from django.test.utils import override_settings

import cairnq_django

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=list(WHAT), help=f"of {', '.join(WHAT)} (all)")
    for what in parser.parse_args().what:
        say(f"{what}: {WHAT[what].__doc__}")
        WHAT[what]()
        cairnq_django.purge(0)


def watch_batches() -> None:
    """10,000 texts for an embedding model that takes up to 256 a call"""
    registry = cairnq_django.Registry()
    sizes: list[int] = []

    @registry.task(batch=256)
    def embed(items: list[cairnq_django.TaskContext]) -> dict[Any, Any]:
        sizes.append(len(items))
        return {item.task_id: [len(item.payload), 0.5] for item in items}

    cairnq_django.submit_many(embed, [f"text {n}" for n in range(10_000)])
    took = run(registry, concurrency=2)
    say(f"  {len(sizes)} calls of {min(sizes)} to {max(sizes)} tasks in {took:.1f} s, {statuses()}")


def watch_a_resource() -> None:
    """500 tasks of two names that share a resource of capacity 1, on 8 threads"""
    registry = cairnq_django.Registry()
    overlap = Holding()

    @registry.task(resource="gpu")
    def render(ctx: cairnq_django.TaskContext, payload: Any) -> None:
        with overlap.of(1):
            time.sleep(0.002)

    @registry.task(resource="gpu")
    def encode(ctx: cairnq_django.TaskContext, payload: Any) -> None:
        with overlap.of(1):
            time.sleep(0.002)

    cairnq_django.submit_many(render, range(250))
    cairnq_django.submit_many(encode, range(250))
    took = run(registry, concurrency=8, resources={"gpu": 1})
    say(f"  at most {overlap.most} handlers at the same time, {took:.1f} s, {statuses()}")


def watch_memory() -> None:
    """100 payloads of 10 MiB and one of 100 MiB under a budget of 64 MiB, on 16 threads"""
    registry = cairnq_django.Registry()
    in_flight = Holding()
    beside = []

    @registry.task
    def hold(ctx: cairnq_django.TaskContext, payload: str) -> None:
        with in_flight.of(len(payload)):
            time.sleep(0.05)
            if len(payload) > 64 * MIB:
                beside.append(in_flight.now - len(payload))

    with override_settings(CAIRNQ={"MAX_PAYLOAD_BYTES": 200 * MIB}):
        for n in range(101):
            cairnq_django.submit(hold, "x" * (100 if n == 50 else 10) * MIB)
    took = run(registry, concurrency=16, max_in_flight_bytes=64 * MIB)
    of_small = max(most for most in in_flight.seen if most < 100 * MIB)
    large, small = beside[0] / MIB, of_small / MIB
    say(f"  peak {small:.0f} MiB, {large:.0f} MiB beside the one of 100 MiB, {took:.1f} s, {statuses()}")


def watch_backpressure() -> None:
    """two producers of 3,000 tasks each against max_queue_depth=1000 and a worker of some 300 tasks a second"""
    registry = cairnq_django.Registry()
    depths = []
    slow = registry.task("slow")(lambda ctx, payload: time.sleep(0.02))

    def produce() -> None:
        for n in range(3_000):
            cairnq_django.submit(slow, n)
        connections.close_all()

    with override_settings(CAIRNQ={"MAX_QUEUE_DEPTH": 1000, "MAX_QUEUE_WAIT": 600}):
        producers = [threading.Thread(target=produce) for _ in range(2)]
        with cairnq_django.Worker(registry=registry).background():
            for producer in producers:
                producer.start()
            while any(producer.is_alive() for producer in producers):
                depths.append(cairnq_django.Task.objects.queued().count())
                time.sleep(0.02)
            while cairnq_django.Task.objects.live().exists():
                time.sleep(0.1)
    full = sum(depth > 900 for depth in depths)
    say(f"  at most {max(depths)} queued in {len(depths)} looks, of which {full} saw more than 900, {statuses()}")


WHAT = {
    "batch": watch_batches,
    "resource": watch_a_resource,
    "memory": watch_memory,
    "backpressure": watch_backpressure,
}


class Holding:
    """How much handlers hold at the same time, by their own account."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = 0
        self.most = 0
        self.seen: list[int] = []

    @contextmanager
    def of(self, amount: int) -> Iterator[None]:
        with self._lock:
            self.now += amount
            self.most = max(self.most, self.now)
            self.seen.append(self.now)
        try:
            yield
        finally:
            with self._lock:
                self.now -= amount


def run(registry: cairnq_django.Registry, **options: Any) -> float:
    """Run all there is to run; return how many seconds it took."""
    began = time.monotonic()
    cairnq_django.Worker(registry=registry, poll_interval=0.1, **options).run(burst=True)
    return time.monotonic() - began


def statuses() -> str:
    counts = Counter(cairnq_django.Task.objects.values_list("status", flat=True))
    return ", ".join(f"{count} {status}" for status, count in counts.items()) + f" on {connection.vendor}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
