"""The dashboard of a running job, by Bokeh: what has been seen of the job by its status once a second, and its pages.

`history` and `job_events` need no Bokeh; `psruntime status --watch` shows their events, too.
"""
