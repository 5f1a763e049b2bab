"""A table of the user's own in CSV files, and the text of a first model for it."""
