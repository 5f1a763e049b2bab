"""A whole job in one thread, from a seed: the product's control plane and rounds against faults of every kind.

    python -m tests.simulation --seed 564           # the trace of one schedule; its hash is the same each time
    python -m tests.simulation --seeds 0:1000       # how many go wrong, and which; --mode async or bounded
    python -m tests.simulation --seed 564 --smaller # the smallest schedule that still goes wrong
    python -m tests.simulation --mutants            # the first seed that finds each fault of mutants.py

| module | what it stands for |
|---|---|
| kernel.py | threads, clocks, event loops |
| network.py | gRPC |
| servers.py | the graph of the ps: fence, sums, rounds, ledgers |
| session.py, training.py | TensorFlow's sessions, steps and rounds; the training loop |
| checkpoints.py | checkpoints, the preparation of a view |
| stand_ins.py | names of the product, and what stands for them |
| schedules.py | jobs and faults, from a seed |
| cluster.py | main functions, launcher |
| audit.py | what must hold |
| round_model.py, round_records.py | the rounds as moves, searched whole; whether a record shows nothing else |
"""
