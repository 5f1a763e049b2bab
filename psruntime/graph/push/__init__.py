"""What becomes of a push on its ps: messages, the guard, the sums of rounds, and which entries have changed since."""
