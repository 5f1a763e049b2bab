"""Everything that touches TensorFlow, in rooms of which an upper one uses lower ones only:

loop        the training loop of a worker
session     a worker's session on a view, with the hooks around its steps
recovery    how the variables of a view come to be
export      a trained model for others to serve
replay      the rounds of a job, repeated in plain TensorFlow
checkpoint  writing, finding and restoring checkpoints
step        the graph of a training step
model       the user's model, built on the parameters that a step pulls
input       the user's batches
embedding   tables as a worker reads them, and tables whose rows are given to ids
push        a push, from the worker to its ps
buckets     the variables on the ps, gradients, and what an update makes of them
base        what TensorFlow itself needs, and what is done with the operations of any graph

Import `base.environment` and call `prepare` before any other module.
"""
