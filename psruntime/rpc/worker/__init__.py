"""The control plane of a worker: its membership, the facts of its heartbeats, and the gate of mode bounded.

What graph/loop expects of a control plane is implemented here.  May use rpc/client and the rooms below it.
"""
