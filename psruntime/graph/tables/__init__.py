"""How a worker reads the tables on the ps: by rows, of one table or of all tables of a group together.

It builds the operations of the model's lookups.  May use store and base.
"""
