"""A running job by its status once a second: its last minutes, and its events."""
