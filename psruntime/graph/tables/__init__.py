"""How a worker reads the tables on the ps: by rows, of one table or of all tables of a group together.

A lookup of the model's becomes operations here.  May use store and base.
"""
