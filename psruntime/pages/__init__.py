"""The pages of the dashboard, by Bokeh: each shows a part of a job's history."""
