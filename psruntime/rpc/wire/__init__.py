"""The wire: its format and what protects it.  The lowest room of rpc.

Dataclasses of core become protobuf messages and back, errors gRPC statuses and back: whatever arrives becomes a valid
dataclass or an error that names the field.  TLS and the job token are read here, for both ends.
"""
