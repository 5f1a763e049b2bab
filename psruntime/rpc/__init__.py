"""The coordinator over gRPC: service, client, membership of a process.  The only package that imports grpc."""
