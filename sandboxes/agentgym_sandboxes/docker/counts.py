"""The names of all that a Docker sandbox counts, beside what every sandbox measures (`meter.py`)."""

from __future__ import annotations

# Why a container was replaced. lost: its stream ended. dirty: a call left something that can't be removed.
# uses, age: it was worn. ping: its agent was silent. backstop: a call went on past its wall limit.
CAUSES = ("lost", "dirty", "uses", "age", "ping", "backstop")

# Counts since the start.
RETRIES = "retries_total"  # calls made again on another container
OOM_KILLS = "oom_kills_total"  # calls that ended for want of memory
LEAKS = "leaks_total"  # calls that left something behind: it was swept, or the container was thrown away
REAPED = "reaped_total"  # containers of dead owners, or forgotten, that were removed
START_FAILURES = "start_failures_total"  # containers that did not start
REPLACED = tuple(f"replaced_{cause}_total" for cause in CAUSES)
NETWORK = {  # of sessions with an allow list: connections by what became of them, and bytes
    "allowed": "network_allowed_total",
    "refused": "network_refused_total",
    "failed": "network_failed_total",
    "sent_bytes": "network_sent_bytes_total",
    "received_bytes": "network_received_bytes_total",
}
SESSIONS = "sessions_total"
SESSIONS_LOST = "sessions_lost_total"  # that ended with their container
COUNTS = (
    RETRIES, OOM_KILLS, LEAKS, REAPED, START_FAILURES, *REPLACED, SESSIONS, SESSIONS_LOST, *NETWORK.values(),
)  # fmt: skip

# True now.
SLOTS_USED = "slots_used"
SLOTS = "slots"
CALLS_WAITING = "calls_waiting"
CONTAINERS_LIVE = "containers_live"  # that serve
CONTAINERS_SPARE = "containers_spare"  # that are ready to
ENGINES_OPEN = "engines_open"  # whose circuit is open: nothing is started on them
SESSIONS_OPEN = "sessions_open"
SESSIONS_WAITING = "sessions_waiting"
GAUGES = (
    SLOTS_USED, SLOTS, CALLS_WAITING, CONTAINERS_LIVE, CONTAINERS_SPARE, SESSIONS_OPEN, SESSIONS_WAITING, ENGINES_OPEN,
)  # fmt: skip
