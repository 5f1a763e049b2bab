"""The pages of the dashboard, by Bokeh: each shows what a history of a job holds."""
