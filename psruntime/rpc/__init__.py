"""The coordinator over gRPC: service, client, membership of a process.  The only package that imports grpc."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write to stderr; it reads this when imported
