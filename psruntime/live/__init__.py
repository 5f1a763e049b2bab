"""A running job as somebody sees it who asks for its status every second: its last minutes, and what happened."""
