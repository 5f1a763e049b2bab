"""The peer of the table benchmarks in PyTorch: a worker of TorchRec, as its own users write it.  Has no TensorFlow.

    .venv-torchrec/bin/python -m benchmarks.torchrec_tables --index N --address HOST:PORT --workers W --batch-size B
                                                            [--losses STEPS]

An EmbeddingBagCollection under DistributedModelParallel on the processor, over gloo; worker 0 listens at the address.
Tables are sharded table by table, the first ones on worker 0, or by rows if there are fewer than workers.  It tells
its steps as step_times.py does.  --losses: makes so many steps from table_data.parameters(), and prints `loss VALUE`
of its own batch before each.

Tables, ids, labels, layers, loss, batch size, optimizer, its accumulators and learning rate are those of
embedding_tables.py.  Gradients are means over the workers, as in mode sync.  These differ:

- There is no ps: the workers have the tables and the optimizer's state, and each keeps the dense layers whole.
- The batches are KeyedJaggedTensors made before the first step; those of TensorFlow come from a tf.data pipeline.
- The update of tables is fused with their backward pass, and all tables of a worker are one operation.
- Initial values are of the same distributions, and drawn by PyTorch.
- Several workers have one thread each for an operation, as torchrun has it; TensorFlow's have one for each core.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import distributed, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from benchmarks.step_lines import StepLines
from benchmarks.table_data import HIDDEN, INITIAL, INITIAL_ACCUMULATOR, LEARNING_RATE, Tables, drawn, here, parameters

FUSED = EmbeddingComputeKernel.FUSED.value
EPSILON = {"adagrad": 0.0, "rowwise-adagrad": 1e-8, "sgd": 0.0}
OF_TABLES = {
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise-adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "sgd": EmbOptimType.EXACT_SGD,
}
OF_LAYERS = {
    "adagrad": partial(torch.optim.Adagrad, initial_accumulator_value=INITIAL_ACCUMULATOR, eps=0.0),
    "rowwise-adagrad": partial(RowWiseAdagrad, initial_accumulator_value=INITIAL_ACCUMULATOR, eps=1e-8),
    "sgd": torch.optim.SGD,
}


class Model(nn.Module):  # type: ignore[misc]
    """Squared error of a layer of HIDDEN units on the concatenated sums of rows.  Its tables are made when sharded."""

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        configs = [
            EmbeddingBagConfig(
                name=f"table_{number}",
                feature_names=[f"id_{number}"],
                num_embeddings=tables.rows,
                embedding_dim=tables.width,
                weight_init_min=-INITIAL,
                weight_init_max=INITIAL,
            )
            for number in range(tables.count)
        ]
        self.tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(torch.empty(tables.count * tables.width, HIDDEN)))
        self.head = nn.Parameter(nn.init.xavier_uniform_(torch.empty(HIDDEN, 1)))

    def forward(self, ids: KeyedJaggedTensor, labels: torch.Tensor) -> torch.Tensor:
        rows = self.tables(ids).values()
        error = (torch.relu(rows @ self.kernel) @ self.head)[:, 0] - labels
        return error.square().mean()


def sharded(model: Model, tables: Tables, workers: int) -> DistributedModelParallel:
    """The model of all workers, whose tables are updated in the backward pass."""
    fused = {
        "optimizer": OF_TABLES[tables.optimizer],
        "learning_rate": LEARNING_RATE,
        "eps": EPSILON[tables.optimizer],
    }
    sharder = EmbeddingBagCollectionSharder(fused_params=fused)
    by_rows = tables.count < workers
    each = {  # neighbours on one worker: the sums of rows come ordered by worker
        f"table_{number}": row_wise(compute_kernel=FUSED)
        if by_rows
        else table_wise(number * workers // tables.count, compute_kernel=FUSED)
        for number in range(tables.count)
    }
    plan = construct_module_sharding_plan(model.tables, each, sharder, workers, workers, "cpu")
    device = torch.device("cpu")
    result = DistributedModelParallel(model, device=device, plan=ShardingPlan({"tables": plan}), sharders=[sharder])
    for states in result.fused_optimizer.state.values():
        for name, state in states.items():
            if name.endswith("momentum1"):  # Adagrad's accumulator, which FBGEMM begins with 0
                for shard in state.local_shards():
                    shard.tensor.fill_(INITIAL_ACCUMULATOR)
    return result


def load(model: DistributedModelParallel, values: dict[str, Any]) -> None:
    """Sets all parameters, of which `values` has the whole ones by name; of tables the shards of this worker."""
    for name, parameter in model.state_dict().items():
        value = torch.from_numpy(values[name.removeprefix("tables.embedding_bags.").removesuffix(".weight")])
        if isinstance(parameter, ShardedTensor):
            for shard in parameter.local_shards():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.copy_(value[row : row + rows, column : column + columns])
        else:
            parameter.copy_(value)


def batches(tables: Tables, batch_size: int, worker: int) -> Iterator[tuple[KeyedJaggedTensor, torch.Tensor]]:
    """(ids, labels) of each step, the same again and again."""
    ids, labels = drawn(tables, batch_size, worker)
    keys = [f"id_{number}" for number in range(tables.count)]
    lengths = torch.full((tables.count * batch_size,), tables.ids, dtype=torch.int32)
    made = []
    for begin in range(0, len(ids), batch_size):
        part = slice(begin, begin + batch_size)
        values = torch.from_numpy(ids[part].swapaxes(0, 1).reshape(-1).copy())
        made.append((KeyedJaggedTensor(keys, values, lengths=lengths), torch.from_numpy(labels[part])))
    return itertools.cycle(made)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--losses", type=int, default=0)
    arguments = parser.parse_args()
    tables = here()
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{arguments.address}", rank=arguments.index, world_size=arguments.workers
    )
    model = sharded(Model(tables), tables, arguments.workers)
    if arguments.losses:
        load(model, parameters(tables))
    layers = [layer for _, layer in in_backward_optimizer_filter(model.named_parameters())]
    optimizer = OF_LAYERS[tables.optimizer](layers, lr=LEARNING_RATE)
    lines = StepLines()
    for ids, labels in batches(tables, arguments.batch_size, arguments.index):
        loss = model(ids, labels)
        if arguments.losses:
            print(f"loss {loss.item():.9f}", flush=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lines.step_done()
        if lines.count == arguments.losses:  # without it the benchmark ends this process
            break
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
