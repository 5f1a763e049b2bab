"""Addresses and TCP connections: at which address this process is reached, and what becomes of its connections.

Knows no TensorFlow and no gRPC, whose sockets it finds among the descriptors of the process.  May use core/members.
"""
