"""Webhooks: events, messages, the schedule of attempts, and the sender.

A method of a port raises `StorageUnavailable`, and is safe to call from many tasks and gateways at once.
"""
