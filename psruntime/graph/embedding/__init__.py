"""Embeddings: the rows of tables on the ps, as a worker looks them up, of one table or of all tables of a group
together; and dynamic tables, which assign rows to ids as training meets them (`psruntime.embedding`).

The rows of a dynamic table are in sets of WAYS, as the lines of a processor's cache are.  The hash of an id selects
its set, and the id gets a row of that set: a free one, else that of the least recently used id, as in HierarchicalKV
(github.com/NVIDIA-Merlin/HierarchicalKV), the store behind TensorFlow Recommenders Addons.  So an id is found by one
read, and a table needs nothing beside its variables: no map that has to be built again after a restore, and nothing
that grows.  The sets are spread over the ps as the rows of a table group are.

May use buckets and base.
"""
