"""The wire format: dataclasses of core to protobuf messages and back, errors to gRPC statuses and back.

Whatever arrives becomes a valid dataclass or an error that names the field.  The lowest room of rpc.
"""
