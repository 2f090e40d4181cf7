"""Limits of requests per time, in the memory of a process and on a server that gateways share.

A limiter and its windows exist once per process, and many tasks of one event loop may use them at once. They never raise for an outage.
"""
