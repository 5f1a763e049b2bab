"""What an update makes of a bucket: the optimizers, how a rate is lowered for staleness, which rows were touched."""
