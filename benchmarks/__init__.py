"""What the queue costs and what it brings, measured: run one as `python -m benchmarks.NAME`."""

from __future__ import annotations
