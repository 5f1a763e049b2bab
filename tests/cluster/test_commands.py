"""The real commands, as a user types them, from another folder."""

from __future__ import annotations

import json
import re
import signal
import sys

import pytest

from tests.support.commands import LOCAL, Commands, coordinator_of
from tests.support.polling import poll_until
from tests.support.selection import long_but

pytestmark = pytest.mark.cluster


@pytest.mark.long
def test_a_whole_job_with_one_command(commands: Commands) -> None:
    code, out, err = commands.run(LOCAL, "--workers", "2", "--train-steps", "2000", "--log-dir", "logs")
    assert code == 0, err
    assert float(re.search(r"held out, at global step 200\d: .*accuracy ([0-9.]+)", out)[1]) > 0.9  # type: ignore[index]
    assert "TRAINING step" in out
    logs = sorted((commands.folder / "logs").glob("*.log"))
    assert [log.name for log in logs] == ["ps-0.log", "worker-0.log", "worker-1.log"]
    line = re.compile(r"READY |held out|\d{4}-\d\d-\d\dT[\d:.]+Z (ps|worker) \d+ [a-z_]+( |$)")
    foreign = [text for log in logs for text in log.read_text().splitlines() if not line.match(text)]
    assert not foreign, "lines that are not ours"
    assert not commands.running()


@pytest.mark.long
def test_status_and_signals_of_a_running_job(commands: Commands) -> None:
    paced = (
        "--model",
        "tests.cluster.models",
    )  # a worker that leaves the cores to the commands that ask for the status
    job = commands.start(LOCAL, "--ps", "2", "--workers", "1", "--train-steps", "1000000", *paced)
    address = coordinator_of(job)
    status = (sys.executable, "-m", "psruntime", "status", "--coordinator", address)

    def training() -> dict[str, object] | None:
        code, out, _ = commands.run(*status, "--json")
        facts: dict[str, object] = json.loads(out) if code == 0 else {}
        moving = facts.get("phase") == "TRAINING" and facts["global_step"]
        return facts if moving and facts["workers"][0]["clock"] else None  # type: ignore[index]

    facts = poll_until(training, 90, "training, with the worker's clock reported")
    assert facts
    assert [ps["index"] for ps in facts["ps"]] == [0, 1]  # type: ignore[attr-defined]
    assert facts["job"]["train_steps"] == 1_000_000  # type: ignore[index]
    code, out, _ = commands.run(*status)
    assert code == 0 and "TRAINING" in out and "0 (chief)" in out
    job.send_signal(signal.SIGTERM)
    assert job.wait(30) == 128 + signal.SIGTERM
    job.communicate()
    assert not commands.running()


@pytest.mark.long
def test_the_end_of_the_launcher_is_the_end_of_the_job(commands: Commands) -> None:
    job = commands.start(LOCAL, "--workers", "1", "--train-steps", "1000000")
    coordinator_of(job)
    poll_until(lambda: len(commands.running()) >= 3, 60, "the processes of the job")
    job.kill()
    job.communicate()
    poll_until(lambda: not commands.running(), 30, "the end of all processes")


MISTAKES = {
    ("--mode", "fast"): "psruntime run: mode must be one of async, bounded, sync, got 'fast'",
    ("--ps", "0"): "psruntime run: ps must be at least 1, got 0",
    ("--workers", "-1"): "psruntime run: workers must be at least 1, got -1",
    ("--save-steps", "-3"): "psruntime run: save_steps must be at least 1, got -3",
    ("--job", "no.toml"): "psruntime run: job file no.toml cannot be read: No such file or directory",
    ("--bogus",): "psruntime run: unrecognized argument --bogus; --help lists the flags",
    ("--batch-size", "0"): "psruntime run: batch_size must be at least 1, got 0",
    ("--tls-ca", "ca.pem"): "psruntime run: --tls-ca, --tls-cert, --tls-key belong together; missing: --tls-cert, "
    "--tls-key",
    ("--model", "slow_modles"): "psruntime run: model module 'slow_modles' cannot be imported: No module named "
    "'slow_modles'; --model takes a dotted name, for example psruntime.examples.digits, found from the current folder "
    "or PYTHONPATH",
}


@pytest.mark.parametrize("given", long_but([("--mode", "fast")], MISTAKES), ids=" ".join)
def test_wrong_flags_are_one_line(commands: Commands, given: tuple[str, ...]) -> None:
    assert commands.run(LOCAL, *given) == (2, "", MISTAKES[given] + "\n")


@pytest.mark.long
def test_a_worker_that_cannot_start_ends_the_job(commands: Commands) -> None:
    (commands.folder / "broken.py").write_text("import psruntime\nimport no_such_package\n")
    code, _, err = commands.run(LOCAL, "--workers", "1", "--model", "broken")
    assert code == 2
    assert "worker-0 ended with code 2" in err
    assert f"model module 'broken' failed at {commands.folder}/broken.py:2: ModuleNotFoundError: No module named" in err
    assert "Traceback" not in err


@pytest.mark.long
def test_what_init_writes_trains_and_a_second_run_has_nothing_to_train(commands: Commands) -> None:
    command = (sys.executable, "-m", "psruntime")
    code, out, err = commands.run(*command, "init", "flats")
    assert (code, err) == (0, "")
    train = out.splitlines()[-1].removeprefix("train it:  psruntime ").split()
    run = (*command, *train, "--train-steps", "400", "--checkpoint-dir", "run")
    code, out, err = commands.run(*run)
    assert code == 0, err
    held_out = re.search(r"held out, at global step 40\d: .*accuracy ([0-9.]+)", out)
    assert held_out and float(held_out[1]) > 0.9, out
    again = "already at global step 40\\d of 400 \\(--train-steps\\): nothing to train; raise --train-steps to go on\n"
    assert not re.search(again, out)
    code, out, err = commands.run(*run, "--log-dir", "logs")
    assert code == 0, err
    assert re.search(rf"^{again}worker-\d: {re.escape(held_out[0])}", out, re.MULTILINE)
    for log in (commands.folder / "logs").glob("*.log"):
        assert log.read_text().count(" environment GRPC_FAIL_FAST=true TF_USE_LEGACY_KERAS=1 ") == 1
    assert not commands.running()


@pytest.mark.long
def test_a_port_in_use_and_a_coordinator_that_is_not_there(commands: Commands) -> None:
    ps = commands.start(sys.executable, "-m", "psruntime.ps", "--index", "0", "--coordinator", "127.0.0.1:0")
    assert ps.stdout
    address = ps.stdout.readline().split()[3]
    code, _, err = commands.run(sys.executable, "-m", "psruntime.ps", "--index", "0", "--coordinator", address)
    assert code == 2
    assert f"address {address} is in use; choose another port with --coordinator" in err
    ps.send_signal(signal.SIGTERM)
    ps.communicate(timeout=30)
    code, _, err = commands.run(sys.executable, "-m", "psruntime", "status", "--coordinator", address)
    assert code == 1
    assert len(err.splitlines()) == 1 and address in err
