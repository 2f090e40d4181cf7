"""Requests to servers that a provider or the owner of a webhook names, under the policy for outbound requests.

The client, its pool and the resolvers exist once per process, and many tasks of one event loop may use them at once.
"""
