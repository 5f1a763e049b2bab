"""Addresses and TCP connections: the address of this process for others, and the watch of its connections.

Imports no TensorFlow and no gRPC, whose sockets it finds among the descriptors of the process.  May use core/members.
"""
