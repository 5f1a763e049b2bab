"""Answering calls: the gRPC server of a process with its health service, and on ps 0 the coordinator's service.

The servicer owns the Coordinator, reads the clock for it, and keeps the long polls.  May use rpc/wire; does not
know rpc/client.
"""
