"""Repeats the rounds of a sync job in one process with plain TensorFlow: each worker's batch by itself, the sum and the
update of each bucket as its ps makes them, to the bit."""
