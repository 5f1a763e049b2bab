"""Everything that touches TensorFlow, in rooms of which an upper one uses lower ones only:

loop        the training loop of a worker
hooks       what is done around steps
session     a worker's session on a view
recovery    how the variables of a view come to be
export      a trained model for others to serve
checkpoint  writing, finding and restoring checkpoints
step        the graph of a training step
model       the user's model, built on the parameters that a step pulls
tables      tables as a worker reads them
input       the user's batches
ps          what a ps does by itself
dynamic     tables whose rows are given to ids
push        what becomes of a push on its ps
update      what an update makes of a bucket
store       the variables on the ps, and gradients
base        what TensorFlow itself needs, and what is done with the operations of any graph

Import `base.environment` and call `prepare` before any other module.
"""
