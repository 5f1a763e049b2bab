"""The update of a bucket: the optimizers, learning rates lowered by staleness, which rows were touched."""
