"""A model for a table of the user's own."""
