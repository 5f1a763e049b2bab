"""What a process of psruntime is on its machine: its flags, its signals and its end, its CPU and its GPUs.

A command line comes in, configs of psruntime.config go out (`flags`); work comes in, an exit code goes out (`process`).
`machine` says what the machine has, without TensorFlow.  Start with `process.run`.
"""
