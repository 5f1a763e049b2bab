"""Scripts of users with their own graph and loop: stock's, moved by two lines."""

from __future__ import annotations

import difflib
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from psruntime import tf1
from psruntime.core.members.job_status import JobStatus
from tests.support.cluster import ROOT, Cluster, Proc, Zygote, cluster
from tests.support.polling import poll_until
from tests.support.selection import long_after, long_but

pytestmark = pytest.mark.cluster

SOFTMAX = ROOT / "psruntime" / "examples" / "softmax.py"
STOCK = ROOT / "tests" / "cluster" / "stock_softmax.py"
PACED = ROOT / "tests" / "cluster" / "paced_script.py"
ADDRESSES = "--worker_hosts=127.0.0.1:0,127.0.0.1:0,127.0.0.1:0"

PAST_THE_END = 2 * 2  # steps of two workers: stock's StopAtStepHook reads the global step before its own step


def events(folder: Path) -> list[Any]:
    """All events of all event files of a folder."""
    return [event for path in folder.glob("events.*") for event in tf1.train.summary_iterator(str(path))]


def tags(folder: Path) -> set[str]:
    return {value.tag for event in events(folder) for value in event.summary.value}


def last_step(folder: Path) -> int:
    """The global step in the newest checkpoint."""
    return int(tf1.train.load_checkpoint(str(folder)).get_tensor("global_step"))


def accuracy(proc: Proc) -> float:
    return float(re.search(r"accuracy ([0-9.]+)", proc.wait_for("held out"))[1])  # type: ignore[index]


def test_the_move_changes_two_lines() -> None:
    lines = difflib.unified_diff(STOCK.read_text().splitlines(), SOFTMAX.read_text().splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert sorted(line[0] for line in changed) == ["+", "+", "-", "-"], changed


@pytest.mark.parametrize(
    "mode",
    long_but([{"mode": "bounded", "bound": 2}], [{"mode": "async"}, {"mode": "bounded", "bound": 2}]),
    ids=lambda mode: mode["mode"],
)
def test_a_script_trains_to_its_end_with_stock_hooks(zygote: Zygote, tmp_path: Path, mode: dict[str, Any]) -> None:
    folder = tmp_path / "c"
    flags = [ADDRESSES, f"--checkpoint_dir={folder}", "--last_step=1000", "--save_steps=300"]
    with cluster(zygote, tmp_path, min_workers=2, **mode) as job:
        scripts = [job.start_script(index, SOFTMAX, *flags) for index in range(2)]
        assert job.wait_all() == {"ps-0": 0, "script-0": 0, "script-1": 0}
        assert accuracy(scripts[0]) > 0.9
        for proc in scripts:
            assert "stopped after" in proc.text and "100 steps, loss" in proc.text
        steps = [int(re.search(r"stopped after (\d+) steps", p.text)[1]) for p in scripts]  # type: ignore[index]
        assert sum(steps) == last_step(folder) and 1000 <= sum(steps) < 1000 + PAST_THE_END
    assert {"loss", "global_step/sec"} <= tags(folder)
    saved = sorted({int(step) for p in scripts for step in re.findall(r"Saving checkpoints for (\d+) into", p.text)})
    # The first is the chief's before its own first step: the other one may be ahead by then, within the bound if any.
    assert saved[0] <= mode.get("bound", 298) + 1 and len(saved) >= 4 and saved[-1] == last_step(folder)


def leads(status: JobStatus) -> list[int]:
    """What the workers say of themselves."""
    return [m.worker_stats.max_lead for m in status.members if m.worker_stats]


def chief_of(job: Cluster) -> int | None:
    return next((m.index for m in job.status().members if m.chief), None)


def newest(folder: Path) -> int:
    """The global step that the folder's state file tells."""
    path = tf1.train.latest_checkpoint(str(folder))
    return int(path.rsplit("-", 1)[1]) if path else -1


def written(folder: Path) -> set[str]:
    """The checkpoints that lie there."""
    return {path.stem for path in folder.glob("model.ckpt-*.index")}


def unlisted(folder: Path) -> set[str]:
    """The checkpoint, if any, that a killed saver of TensorFlow had written and not listed, or not removed."""
    state = tf1.train.get_checkpoint_state(str(folder))
    found = written(folder) - {Path(path).name for path in state.all_model_checkpoint_paths}
    assert len(found) <= 1, found
    return found


@pytest.mark.long
def test_a_script_survives_the_loss_of_its_chief_and_of_its_ps(zygote: Zygote, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    job_flags = ["--mode=bounded", "--bound=2", "--min-workers=2", "--lease=3", "--linger=0"]
    flags = [f"--checkpoint_dir={folder}", "--last_step=1500"]
    with cluster(zygote, tmp_path, mode="bounded", bound=2, min_workers=2) as job:
        scripts = [job.start_script(0, PACED, *flags), job.start_script(1, PACED, *flags, "--step_s=0.01")]
        job.wait_for_step(150)
        first = chief_of(job)
        assert first is not None
        second = 1 - first
        scripts[first].wait_for("init_fn ran")
        assert "chief hook" not in scripts[second].text
        event_files = len(list(folder.glob("events.*")))
        scripts[first].kill()
        cut_short = unlisted(folder)
        poll_until(lambda: chief_of(job) == second, 30, "another chief")
        scripts[second].wait_for("chief hook: created 42")
        reached = job.status().global_step
        poll_until(lambda: newest(folder) > reached, 30, "a checkpoint of the new chief")
        assert job.status().steps_lost == 0 and "init_fn" not in scripts[second].text
        assert len(list(folder.glob("events.*"))) == event_files + 1
        kept = "no more than 3 checkpoints: it goes on with its predecessor's list, and removes after it lists"
        poll_until(lambda: len(written(folder) - cut_short) <= 3, 30, kept)
        assert max(leads(job.status())) == 2 and job.status().max_lead <= 2
        back = job.start_script(first, PACED, *flags)
        back.wait_for(" first_step ")

        job.ps[0].kill()
        job.start_ps(0, *job_flags)
        codes = job.wait_all()
        assert codes == {
            "ps-0": -signal.SIGKILL, "ps-0.1": 0,
            f"script-{first}": -signal.SIGKILL, f"script-{first}.1": 0, f"script-{second}": 0,
        }  # fmt: skip
        survivors = scripts[second].text + back.text
        assert survivors.count(" restored ") == 1 and survivors.count("chief hook: ended at") == 1
        assert f"chief hook: ended at {newest(folder)}\n" in survivors
        assert survivors.count("left the block after") == 2 and "Traceback" not in survivors
    assert 1500 <= newest(folder) == last_step(folder) < 1500 + PAST_THE_END


@pytest.mark.long
def test_who_left_its_block_serves_on_and_who_fails_holds_nobody_up(zygote: Zygote, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    flags = [f"--checkpoint_dir={folder}"]
    with cluster(zygote, tmp_path) as job:
        early = job.start_script(0, PACED, *flags, "--last_step=100")
        early.wait_for(" first_step ")
        late = job.start_script(1, PACED, *flags, "--last_step=1200", "--step_s=0.01")
        fails = job.start_script(2, PACED, *flags, "--last_step=1200", "--fail_after=20")
        assert fails.wait() != 0 and "ValueError: no such file" in fails.text
        job.ps[0].wait_for('kind=error reason="ValueError: no such file"')
        early.wait_for('waiting reason="the others to stop"')
        interrupted = job.start_script(2, PACED, *flags, "--last_step=1200")
        interrupted.wait_for(" first_step ")
        interrupted.signal(signal.SIGINT)
        assert interrupted.wait() != 0 and "KeyboardInterrupt" in interrupted.text
        job.ps[0].wait_for('kind=asked reason="interrupted from the keyboard"')
        assert chief_of(job) == 1, "who saves takes part"
        saved = newest(folder)
        assert saved >= 100
        poll_until(lambda: newest(folder) >= saved + 100, 30, "a checkpoint of the one that trains on")

        job.ps[0].kill()
        job.start_ps(0, "--lease=3", "--linger=0")
        assert late.wait() == 0 and early.wait() == 0
        restored = re.findall(r" restored global_step=(\d+)", early.text + late.text)
        assert len(restored) == 1 and int(restored[0]) >= saved + 100
        job.wait_all()
    assert 1200 <= newest(folder) == last_step(folder)


@pytest.mark.long
def test_a_job_with_a_limit_ends_its_scripts_and_turns_latecomers_away(zygote: Zygote, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    flags = [f"--checkpoint_dir={folder}", "--last_step=1000000"]
    with cluster(zygote, tmp_path, train_steps=100, linger_s=20) as job:
        script = job.start_script(0, PACED, *flags)
        assert script.wait() == 0 and "left the block after 100 steps" in script.text
        assert last_step(folder) == newest(folder) == 100
        late = job.start_script(1, PACED, *flags)
        assert late.wait() == 0
        assert "the job is done" in late.wait_for(" over ") and "Traceback" not in late.text
        job.ps[0].signal(signal.SIGTERM)
        job.wait_all()


def test_a_session_that_does_not_come_is_waited_for_as_long_as_the_script_says(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, min_workers=2) as job:
        script = job.start_script(0, PACED, "--last_step=10", "--max_wait=1")
        assert script.wait() == 75 and "Traceback" not in script.text
        assert "no session within 1 s (max_wait_secs): waiting for workers: 1 of at least 2" in script.wait_for(
            " error "
        )
        job.ps[0].signal(signal.SIGTERM)
        job.wait_all()


HEAD = """
from psruntime import MonitoredTrainingSession, tf1 as tf
tf.disable_v2_behavior()
tf.flags.DEFINE_integer("task_index", 0, "")
tf.flags.DEFINE_string("ps_hosts", "", "")
FLAGS = tf.flags.FLAGS

def graph(ps=1, worker=None, count=True):
    worker = FLAGS.task_index if worker is None else worker
    with tf.device(tf.train.replica_device_setter(ps_tasks=ps, worker_device=f"/job:worker/task:{worker}")):
        variables(count)

def variables(count=True):
    w = tf.get_variable("w", [3])
    tf.get_variable("v", [3])
    step = tf.train.get_or_create_global_step()
    tf.train.AdamOptimizer().minimize(tf.reduce_sum(w), global_step=step if count else None)

def main(_):
    BODY
    with MonitoredTrainingSession(coordinator=FLAGS.ps_hosts, index=FLAGS.task_index, connect_timeout_s=1) as session:
        raise AssertionError("it was let in")

tf.app.run(main)
"""
MISTAKES = {
    "variables()": "variable 'w' is not on a ps, so the workers would not share it",
    "pass": "the graph has no global step",
    "graph(count=False)": "nothing counts the global step 'global_step'",
    "graph(ps=2)": "is on ps 1, but the job has 1 ps, from 0",
    "graph(worker=7)": "is built for worker 7, but index is 1",
    "tf.enable_v2_behavior()": "there is no graph: call tf.disable_v2_behavior()",
    "graph(); tf.get_default_graph().finalize()": "the graph is finalized",
    "graph(); FLAGS.ps_hosts = '127.0.0.1:1'": "coordinator 127.0.0.1:1 was not reached for 1 s",
    "graph(); FLAGS.ps_hosts = 'nowhere'": "address 'nowhere' is not host:port",
    "import os; os.environ['PSRUNTIME_TLS_CA'] = 'ca.pem'; graph()": "--tls-ca, --tls-cert, --tls-key belong together",
    "graph()": "worker 1 has another model than the job, first difference: optimizer ApplyAdam, lr: 0.001, where",
}


@pytest.mark.long
def test_each_mistake_of_a_script_is_one_line(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path) as job:
        job.start_script(0, PACED, f"--checkpoint_dir={tmp_path / 'c'}", "--last_step=1000000")
        job.wait_for_step(5)
        for position, (body, complaint) in enumerate(MISTAKES.items()):
            path = tmp_path / f"mistake_{position}.py"
            path.write_text(HEAD.replace("BODY", body))
            script = job.start_script(1, path)
            assert script.wait() == 2, (body, script.text)
            assert len([line for line in script.text.splitlines() if complaint in line]) == 1, (body, script.text)
            assert "Traceback" not in script.text, script.text
        model = job.start_worker(2, "--model=tests.cluster.models")
        assert model.wait() == 2
        assert "has another model than the job" in model.wait_for(" error ")
        job.procs[1].signal(signal.SIGTERM)
        assert job.procs[1].wait() == 128 + signal.SIGTERM
        assert job.ps[0].wait() == 75
    assert last_step(tmp_path / "c") == newest(tmp_path / "c")


NOT_FOR_SCRIPTS = [
    ({"mode": "sync"}, "for mode sync write the model as a psruntime.ModelSpec"),
    ({"local_steps": 2}, "MonitoredTrainingSession knows neither local_steps nor pipeline nor wire"),
    ({"pipeline": 2}, "for these write the model as a psruntime.ModelSpec"),
    ({"top_k": 0.01}, "neither local_steps nor pipeline nor wire nor top_k"),
    ({"delta_every": 10, "checkpoint_dir": "/saved"}, "MonitoredTrainingSession does not know delta_every"),
    ({"staleness_lr": "inverse"}, "MonitoredTrainingSession does not know staleness_lr"),
    ({"schedule": "async:9, bounded 1"}, "MonitoredTrainingSession does not know schedule"),
    ({"warm_start": "/other"}, "for a warm start use the scaffold's init_fn"),
    ({"wire": "bfloat16"}, "for these write the model as a psruntime.ModelSpec"),
]


@pytest.mark.parametrize(
    ("settings", "instead"),
    long_after(1, NOT_FOR_SCRIPTS),
)
def test_a_job_that_is_not_for_scripts_is_refused_with_what_to_use_instead(
    settings: dict[str, Any], instead: str, zygote: Zygote, tmp_path: Path
) -> None:
    with cluster(zygote, tmp_path, **settings) as job:
        script = job.start_script(0, PACED, "--last_step=10")
        assert script.wait() == 2
        assert instead in script.wait_for(" error ")
        assert "Traceback" not in script.text
        job.ps[0].signal(signal.SIGTERM)
        job.wait_all()


@pytest.mark.long
def test_the_stock_form_trains_on_stock_servers(zygote: Zygote, tmp_path: Path) -> None:
    """So that what was moved is known to have worked before."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        hosts = [f"127.0.0.1:{probe.getsockname()[1]}" for probe in (one, other)]
    flags = [f"--ps_hosts={hosts[0]}", f"--worker_hosts={hosts[1]}", f"--checkpoint_dir={tmp_path / 'c'}"]
    flags.append("--last_step=300")
    ps = zygote.start("ps", ["script", str(STOCK), "--job_name=ps", *flags], tmp_path / "ps.log", [])
    worker = zygote.start("worker", ["script", str(STOCK), *flags], tmp_path / "worker.log", [])
    try:
        assert worker.wait() == 0, worker.text
        assert accuracy(worker) > 0.8 and last_step(tmp_path / "c") == 300
    finally:
        for proc in (ps, worker):
            if proc.code is None:
                proc.signal(signal.SIGKILL)
                proc.wait()
