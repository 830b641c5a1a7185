"""What the queue costs and what it brings, measured: `python -m benchmarks`."""
