"""Thresholds that the alert rules of `deploy/prometheus` and the findings of the operator's pages share. An alert also waits until its state has lasted."""

GAS_FLOORS_MIN = 3
"""A balance below this multiple of `gas_floor` is low."""
GAS_BUDGET_USED_MAX = 0.8
NODE_WINDOW_S = 600
NODE_FAILURES_MAX = 0.2
"""The share of a node's requests that may fail within `NODE_WINDOW_S`."""
NODE_BLOCKS_BEHIND_MAX = 10
"""How many blocks old the newest block of a node may be."""
NODE_HEAD_READ_S = 60
"""How long ago a gateway may have read the newest block of a node (`chain_check_interval_s`)."""
EVENT_WINDOW_S = 900
"""For how long a rare event counts: a disagreement of a node, a lapsed lease."""
SETTLING_AGE_MAX_S = 600
HELD_AGE_MAX_S = 72_000
OWN_FAILURES_WINDOW_S = 300
OWN_FAILURES_MAX = 0.01
"""The share of calls that may fail because of the gateway (`OWN_FAILURES`)."""
CALL_PHASE_WINDOW_S = 600
CALL_PHASE_P95_MAX_S = 0.25
EXTERNAL_PHASES = ("upstream", "settle")
"""Phases of a call in which it waits for a provider or a chain."""
COMMIT_WINDOW_S = 600
COMMIT_P99_MAX_S = 0.2
LOOP_DELAY_WINDOW_S = 300
LOOP_DELAY_P99_MAX_S = 0.5
OVERLOAD_WINDOW_S = 300
OVERLOADED_PER_S_MAX = 1
AUDIT_AGE_MAX_S = 691_200
BACKUP_AGE_MAX_S = 93_600
SALES_HOURS_BEHIND_MAX = 3
WITHDRAWAL_DELAY_MAX = 0.5
"""The share of the delay of a withdrawal by which the channel must be claimed."""
CHANNEL_LOOK_DELAY_MAX = 0.25
"""The share of that delay by which channels must be looked at again: then they take no deposit (`channel_networks.LOOK_DIVISOR`)."""
CHANNEL_CLAIM_STEPS = ("claim", "settle")
CHANNEL_STEP_FAILURES = ("reverted", "refused", "lost")
"""Outcomes of these steps that do not bring what a channel owes to its provider."""
CHANNEL_UNCLAIMED_MAX = 0.8
"""The share of its maximum that a channel may owe; a claim is due at half of it."""
