"""The documents: their commands are accepted, their modules train, their tables say what is so."""

from __future__ import annotations

import fnmatch
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psruntime import tf1
from psruntime.errors import UsageError
from psruntime.graph.model.evaluate import PulledEvaluation
from psruntime.model import Context, Model, ModelSpec, load_model
from tests.graph.model.test_refused_models import REFUSED
from tests.support import docs
from tests.support.command_lines import complaint, known_flags
from tests.support.docs import DOCUMENTS, ROOT, Block
from tests.support.local_cluster import LocalCluster, Run, train
from tests.support.small_models import get, linear, model_of

pytestmark = pytest.mark.filterwarnings("ignore:.tf.layers.:UserWarning")  # as in the scripts of those who move

BLOCKS = [block for document in DOCUMENTS for block in docs.blocks(document)]
MODELS = [block for block in BLOCKS if block.check == "model"]
MIGRATING = "docs/migrating.md"
EXCHANGEABLE = [row for row in docs.table(MIGRATING, "optimizers") if "none" not in row[1]]
RUN_ELSEWHERE = {  # tests/cluster/test_docs_scripts.py, test_tutorial.py
    "train.py", "strategy.py", "convert.py", "predict.py", "serve.py",
}  # fmt: skip
RUN_HERE = {"export.py"}
STEPS = 3
SOFTMAX, STOCK = ROOT / "psruntime/examples/softmax.py", ROOT / "tests/cluster/stock_softmax.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.npz and eval.npz, as the documents' models read them."""
    folder, random = tmp_path_factory.mktemp("data"), np.random.RandomState(0)
    for mode, rows in (("train", 200), ("eval", 50)):
        x, y = random.rand(rows, 64).astype(np.float32), random.randint(10, size=rows)
        np.savez(folder / f"{mode}.npz", x=x, y=y)
    return folder


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, from which modules are imported anew."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if not (sys.modules[name].__spec__ and str(sys.modules[name].__spec__.origin).startswith(str(tmp_path))):
            continue
        del sys.modules[name]


def load(block: Block, folder: Path, data: Path) -> Model:
    """The module of a block, as a worker with this --data-dir loads it."""
    (folder / block.file).write_text(block.text)
    model = load_model(block.file.removesuffix(".py"))
    return replace(model, input_fn=lambda context: model.input_fn(replace(context, data_dir=str(data))))


def trained(model: Model, **settings: Any) -> Run:
    """After STEPS steps on 2 ps, and with an evaluation that fits."""
    run = train(LocalCluster(2), model, STEPS, **settings)
    PulledEvaluation(model, Context("eval", 0, 1, 8, "", 0), run.graph.plan, run.cluster.max_workers)
    assert [result.global_step for result in run.results] == list(range(1, STEPS + 1))
    assert not run.graph.unmoved
    return run


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind == "python"], ids=str)
def test_python_is_run_or_says_why_not(block: Block) -> None:
    compile(block.text, str(block), "exec")
    kind, _, why = block.check.partition(", ")
    assert kind in ("model", "script", "compile")
    assert kind != "compile" or why
    assert kind != "script" or block.file in RUN_ELSEWHERE | RUN_HERE


@pytest.mark.long
@pytest.mark.parametrize("block", MODELS, ids=str)
def test_models_train_and_evaluate(block: Block, modules: Path, data: Path) -> None:
    run = trained(load(block, modules, data))
    assert not run.graph.untrained and not any(result.dropped for result in run.results)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_are_accepted(document: Path) -> None:
    found = docs.blocks(document)
    scripts = {block.file: block.text for block in found if block.file}
    refused = {
        " ".join(words): said
        for block in found
        for words in block.commands
        if (said := complaint(words, scripts, docs.made_in(found)))
    }
    assert not refused


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python -m psruntime.ps --index 0 --mode bounded", "mode bounded needs bound"),
        (
            "python -m psruntime.ps --index 0 --train_steps 5",
            "unrecognized argument --train_steps; did you mean --train-steps?",
        ),
        ("python -m psruntime.worker --index 0 --model no_model", "neither ours nor in the document"),
        ("python -m psruntime status --look", "unrecognized argument --look"),
        ("launch/local.sh --ps 2 --mode fast", "mode must be one of"),
        ("launch/ssh.sh a,b --ps 2 --mode fast", "mode must be one of"),
        ("psruntime run --ps 0", "ps must be at least 1"),
        ("psruntime run --model no_model", "neither ours nor in the document"),
        ("psruntime --verson", "did you mean --version?"),
        ("psruntime runn", "did you mean run?"),
        ("psruntime init my-model", "no name of a Python module"),
        ("pip install psruntime[example]", "there is no extra example"),
        ("pip install tensorboard", "no installation of psruntime"),
        ("python other.py", "the document has no other.py"),
        ("python script.py --job-name ps", "script.py has no --job-name"),
        ("make tests", "the Makefile has no tests"),
        ("kubectl apply", "nobody checks kubectl"),
    ],
)
def test_wrong_commands_would_be_found(command: str, said: str) -> None:
    assert said in complaint(command.split(), {"script.py": 'DEFINE_string("job_name", "")'})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_flags_and_links_exist(document: Path) -> None:
    text = document.read_text()
    scripts = {flag for block in docs.blocks(document) for flag in docs.flags_of_script(block.text)}
    assert not docs.flags_in(text) - known_flags() - scripts - docs.flags_of_script(SOFTMAX.read_text())
    for link in docs.links(document):
        path, _, anchor = link.partition("#")
        target = (document.parent / path) if path else document
        assert target.exists(), link
        assert not anchor or anchor in docs.anchors(target), link


def test_the_softmax_script_moves_by_the_two_lines_of_its_page() -> None:
    (block,) = [b for b in BLOCKS if b.check == "diff of softmax.py"]
    moved = docs.moved(STOCK.read_text(), block.text)
    assert moved.split('"""')[2] == SOFTMAX.read_text().split('"""')[2]


@pytest.mark.long
def test_the_model_with_everything_has_what_it_says(modules: Path, data: Path) -> None:
    run = trained(
        load(docs.block("docs/model.md", "everything.py"), modules, data),
        checkpoint_dir=str(modules / "run"),
        summary_steps=100,
    )
    plan = run.graph.plan
    tables = {piece.variable for b in (*plan.buckets, *plan.copies) if b.is_table for piece in b.pieces}
    assert tables == {"wide/bias", "deep/items", "deep/prices"}
    assert [b.name for b in plan.copies if b.is_table] == ["deep/prices"]
    assert {"level", "deep/norm/moving_mean"} <= set(run.graph.model.worker_copies.changed)
    assert set(run.graph.model.captured.constraints) == {"deep/head"}
    saved = tf1.train.load_checkpoint(run.checkpoints.latest())
    assert saved.has_tensor("wide/bias/Ftrl") and saved.has_tensor("deep/items/Adagrad")
    assert np.linalg.norm(saved.get_tensor("deep/head")) <= 1.0 + 1e-6 and saved.get_tensor("level") > 0
    (events,) = (modules / "run").glob("events.*")
    tags = [v.tag for e in tf1.train.summary_iterator(str(events)) for v in e.summary.value]
    assert [tag for tag in tags if not tag.startswith("psruntime/")] == ["loss"]


def test_every_block_of_yaml_is_checked() -> None:
    assert {b.check for b in BLOCKS if b.kind == "yaml"} == {"kustomization"}  # tests/launch/test_kubernetes.py


@pytest.mark.long
def test_every_refusal_is_one() -> None:
    def keras_optimizer(x: Any, y: Any, _: Any) -> ModelSpec:
        import tf_keras

        return ModelSpec(linear(x, get("kernel", [5, 1]), y), tf_keras.optimizers.Adam)

    said = []
    for build in (*REFUSED.values(), keras_optimizer):
        with pytest.raises(UsageError) as caught:
            train(LocalCluster(1), model_of(build), 1)
        said.append(str(caught.value))
    for _, quoted, _ in docs.table(MIGRATING, "refusals"):
        pattern = "*" + "*".join(glob_escaped(part) for part in quoted.split("...")) + "*"
        assert any(fnmatch.fnmatchcase(text, pattern) for text in said), quoted


def glob_escaped(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


@pytest.mark.parametrize("row", EXCHANGEABLE, ids=lambda row: row[0])
def test_optimizers_give_the_same_numbers_where_it_is_said(row: list[str]) -> None:
    import tf_keras

    gradients = np.random.RandomState(1).normal(0, 1e-4, [20, 4, 3]).astype(np.float32)  # small: an epsilon shows
    start = np.linspace(-1e-3, 1e-3, 12, dtype=np.float32).reshape(4, 3)
    there = eval(row[0].strip("`"), vars(tf_keras.optimizers))
    there.learning_rate = 0.3
    weights = importlib.import_module("tensorflow").Variable(start)
    for gradient in gradients:
        there.apply_gradients([(gradient, weights)])
    here = eval(row[1].strip("`"), {"partial": partial, "tf": tf1})(0.3)
    with tf1.Graph().as_default(), tf1.Session() as session:
        kernel = tf1.get_variable("kernel", initializer=start)
        fed = tf1.placeholder(tf1.float32, start.shape)
        update = here.apply_gradients([(fed, kernel)])
        session.run(tf1.global_variables_initializer())
        for gradient in gradients:
            session.run(update, {fed: gradient})
        ours = session.run(kernel)
    difference = np.abs(ours - weights.numpy()).max() / np.abs(ours - start).max()
    assert (difference < 1e-4) == row[2].startswith("yes"), difference


@pytest.mark.long
def test_the_export_gives_what_the_checkpoint_holds(modules: Path, data: Path) -> None:
    run = trained(load(docs.block(MIGRATING, "digits_model.py"), modules, data), checkpoint_dir=str(modules / "run"))
    script = modules / "export.py"
    script.write_text(docs.block(MIGRATING, "export.py").text)
    environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    command = [sys.executable, "export.py", "run", "export"]  # a process of its own, where psruntime sets nothing
    done = subprocess.run(
        command, cwd=modules, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    pixels = np.load(data / "eval.npz")["x"]
    with tf1.Graph().as_default(), tf1.Session() as session:
        served = tf1.saved_model.loader.load(session, ["serve"], str(modules / "export"))
        signature = served.signature_def["serving_default"]
        classes = session.run(signature.outputs["classes"].name, {signature.inputs["pixels"].name: pixels})
    saved = tf1.train.load_checkpoint(run.checkpoints.latest())
    kernel, bias, head, last = (
        saved.get_tensor(name) for name in ("hidden/kernel", "hidden/bias", "logits/kernel", "logits/bias")
    )
    np.testing.assert_array_equal(classes, np.argmax(np.maximum(pixels @ kernel + bias, 0) @ head + last, axis=1))
