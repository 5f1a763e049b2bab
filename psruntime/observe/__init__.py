"""What an operator sees of a process."""
