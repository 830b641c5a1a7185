"""How long and how large the parts of a task and of a worker may be; the columns are made to these."""

from __future__ import annotations

NAME_LENGTH = 200
QUEUE_LENGTH = 100
KEY_LENGTH = 255
WORKER_ID_LENGTH = 200
HOST_LENGTH = 255
VERSION_LENGTH = 50
CORRELATION_ID_LENGTH = 200
CRON_LENGTH = 200
ZONE_LENGTH = 64
USER_LENGTH = 200  # of who paused a queue
ERROR_KIND_LENGTH = 200  # of an envelope's code, and of its type
MESSAGE_LENGTH = 2_000  # of a progress message; a longer one is cut

MIN_PRIORITY = -32_768
MAX_PRIORITY = 32_767
MAX_ATTEMPTS = 1_000_000
MAX_BATCH = 10_000  # tasks of one call; SQLite takes some 30,000 parameters in a statement
MAX_QUEUE_DEPTH = 2_147_483_647
SHORTEST = 0.001  # seconds, of a duration that cannot be zero
SHORTEST_INTERVAL = 1  # seconds, of a schedule
