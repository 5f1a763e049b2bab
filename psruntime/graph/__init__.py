"""Everything that touches TensorFlow, in rooms of which an upper one uses lower ones only:

loop        the training loop of a worker
recovery    how the variables of a view come to be
checkpoint  writing, finding and restoring checkpoints
step        the graph of a training step
model       the user's model, built on the parameters that a step pulls
input       the user's batches
store       the variables on the ps, and the operations beside them
base        what TensorFlow itself needs

Import `base.environment` and call `prepare` before any other module but `base.allocator`.
"""
