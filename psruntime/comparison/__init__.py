"""The page of `psruntime compare` about several trainings of one model.

`requests` reads which are to be run, `summary` computes numbers from the records, `charts` draws them, `page` assembles
the page.
"""
