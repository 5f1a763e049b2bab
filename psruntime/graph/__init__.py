"""Everything that touches TensorFlow.  Import `environment` and call `prepare` before any other module of it but
`allocator`.
"""
