"""What `psruntime compare` shows of several trainings of one model.

`requests` reads what is to be run, `summary` makes numbers of the records, `charts` draws them, `page` puts the page
together.
"""
