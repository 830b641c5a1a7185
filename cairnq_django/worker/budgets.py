"""How much a worker may claim now; pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from ..store.claim import Draw


def plan_draws(
    *, queues: Sequence[str], names: Sequence[str], concurrency: int, occupied: int, claim_batch: int
) -> list[Draw]:
    """The claims that fill the free slots: never more than can start at once."""
    limit = min(concurrency - occupied, claim_batch)
    return [Draw(tuple(queues), tuple(names), limit)] if limit > 0 else []
