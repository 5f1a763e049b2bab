"""A push, from the worker to its ps: the gradient as it is sent, messages, guard, sums of rounds, aggregations."""
