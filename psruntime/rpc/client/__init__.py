"""Calling the coordinator: one call, retries, joining, and the membership that heartbeats keep alive.

May use rpc/wire; does not know rpc/server.
"""
