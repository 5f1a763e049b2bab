"""TLS and the job token: reading secret files, credentials for both ends, and why a handshake failed.

May use rpc/wire.
"""
