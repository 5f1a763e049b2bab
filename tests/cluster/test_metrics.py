"""Metrics of a real job: their sums are its ledger, and a real Prometheus raises the alarm for a paused worker."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from psruntime.rpc.client.coordinator_client import CoordinatorClient
from tests.observe.test_metrics import read
from tests.support.cluster import ROOT
from tests.support.commands import LOCAL, Commands, coordinator_of
from tests.support.free_ports import free_ports
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

NEVER = 10**9  # steps
SCRAPED_S = 60.0
PHASES_OF_ASYNC = ("gate", "input", "pull", "compute", "push")


class Watched:
    """A job of `psruntime run` with 2 ps and `workers` workers, all with metrics at any free port."""

    def __init__(self, commands: Commands, workers: int) -> None:
        self._commands = commands
        self._logs = commands.folder / "logs"
        self._names = [*(f"ps-{i}" for i in range(2)), *(f"worker-{i}" for i in range(workers))]
        self.process = commands.start(
            LOCAL, "--ps=2", f"--workers={workers}", f"--train-steps={NEVER}", "--metrics-port=0", "--mode=async",
            f"--checkpoint-dir={commands.folder / 'c'}", "--model=tests.cluster.models", f"--log-dir={self._logs}",
        )  # fmt: skip
        self.coordinator = coordinator_of(self.process)

    def urls(self) -> list[str]:
        """Where each process serves, ps first."""
        return [poll_until(lambda name=name: self._url(name), 60, f"metrics of {name}") for name in self._names]

    def _url(self, name: str) -> str:
        log = self._logs / f"{name}.log"
        found = re.search(r" metrics url=(\S+)", log.read_text()) if log.exists() else None
        return found[1] if found else ""

    def control(self, *words: str) -> None:
        """As an operator types it."""
        python, where = self._commands.environment["PYTHON"], f"--coordinator={self.coordinator}"
        code, _, err = self._commands.run(python, "-m", "psruntime", "control", where, *words)
        assert code == 0, err

    def drain(self) -> None:
        """Ends in good order."""
        self.control("drain")
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0


def sums(told: list[dict[tuple[str, ...], float]]) -> tuple[float, dict[str, float], float]:
    """Over all processes: updates received, what became of them, and updates that workers sent."""
    every = [(key, value) for each in told for key, value in each.items()]

    def total(name: str) -> float:
        return sum(value for key, value in every if key[0] == name)

    became = {way: total(f"ps_updates_{way}") for way in ("applied_total", "dropped_total")}
    became["pending"] = total("ps_updates_pending")
    return total("ps_updates_received_total"), became, total("worker_updates_sent_total")


@pytest.mark.long
def test_the_sums_of_all_processes_are_the_ledger(commands: Commands) -> None:
    job = Watched(commands, workers=2)
    urls = job.urls()
    client = CoordinatorClient(job.coordinator)
    try:
        poll_until(lambda: client.get_status()[0].global_step > 100, 60, "steps")
        job.control("pause")
        told = poll_until(lambda: settled(urls), 20, "all that was sent to be told by every ps")
        ps = [m.ps_stats for m in client.get_status()[0].members if m.ps_stats]
    finally:
        client.close()
    received, became, sent = sums(told)
    assert received == sum(became.values()) == sum(stats.received for stats in ps) > 0
    buckets = sum(stats.buckets for stats in ps)
    assert received == sent * buckets, "each update reached every bucket"
    of_job, of_worker = told[0], told[-1]
    assert of_job["job_paused",] == 1 and of_job["job_phase", "TRAINING"] == 1 and of_job["job_members", "worker"] == 2
    assert of_job["job_global_step",] == of_job["ps_updates_applied_total", "0"] / buckets_of(of_job)
    steps = of_worker["worker_steps_total", "1"]
    phases = [of_worker["worker_step_phase_seconds_sum", phase, "1"] for phase in PHASES_OF_ASYNC]
    assert {of_worker["worker_step_phase_seconds_count", phase, "1"] for phase in PHASES_OF_ASYNC} == {steps}
    assert all(seconds > 0 for seconds in phases)
    assert sum(phases) == pytest.approx(of_worker["worker_step_seconds_sum", "1"])
    job.drain()


def buckets_of(told: dict[tuple[str, ...], float]) -> float:
    return told["ps_buckets", "0"]


def settled(urls: list[str]) -> list[dict[tuple[str, ...], float]] | None:
    """What all tell, once every ps has told of all that was sent."""
    told = [read(url) for url in urls]
    received, became, sent = sums(told)
    buckets = sum(value for each in told for key, value in each.items() if key[0] == "ps_buckets")
    return told if received == sum(became.values()) == sent * buckets else None


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """A Prometheus with the files of launch/grafana, which reads these targets; gives its address."""
    program = shutil.which("prometheus")
    assert program
    (folder / "alerts.yml").write_text((ROOT / "launch/grafana/alerts.yml").read_text())
    lines = (ROOT / "launch/grafana/prometheus.yml").read_text().splitlines()
    kept = [line for line in lines if not line.strip().startswith("- 127.0.0.1:")]
    at = next(number for number, line in enumerate(kept) if line.strip().startswith("- targets:"))
    kept[at + 1 : at + 1] = [f"          - {target}" for target in targets]
    (folder / "prometheus.yml").write_text("\n".join(kept))
    [port] = free_ports(1)
    process = subprocess.Popen(
        [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def asked(server: str, path: str, **query: str) -> Any:
    url = f"{server}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return {"result": [], "alerts": []}


def value_of(server: str, query: str) -> float | None:
    result = asked(server, "query", query=query)["result"]
    return float(result[0]["value"][1]) if result else None


def firing(server: str) -> set[str]:
    return {a["labels"]["alertname"] for a in asked(server, "alerts")["alerts"] if a["state"] == "firing"}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(not shutil.which("prometheus"), reason="there is no prometheus (Debian has it as a package)")
def test_a_prometheus_scrapes_a_job_and_raises_the_alarm_for_a_paused_worker(commands: Commands) -> None:
    job = Watched(commands, workers=3)
    urls = job.urls()
    client = CoordinatorClient(job.coordinator)
    folder = commands.folder / "prometheus"
    folder.mkdir()
    targets = [url.removeprefix("http://").removesuffix("/metrics") for url in urls]
    with prometheus(folder, targets) as server:
        try:
            poll_until(lambda: value_of(server, "sum(up)") == len(targets), 60, "every process to be read")
            began = value_of(server, "vector(time())")
            assert began
            poll_until(
                lambda: (value_of(server, "vector(time())") or 0) >= began + SCRAPED_S, 90, "a minute of readings"
            )
            readings = value_of(server, "min(count_over_time(up[1m]))")
            assert readings and readings >= 10, "every process was read every 5 s"
            assert not firing(server), "nothing is wrong yet"
            worker = commands.pid_of("psruntime.worker", "--index", "2")
            assert worker
            os.kill(worker, signal.SIGSTOP)
            try:
                poll_until(lambda: "PsruntimeMemberSilent" in firing(server), 30, "the alert of a silent member")
                poll_until(lambda: "PsruntimeMemberLost" in firing(server), 60, "the alert of a lost member")
            finally:
                os.kill(worker, signal.SIGCONT)
            poll_until(lambda: value_of(server, 'psruntime_job_members{role="worker"}') == 3, 60, "its return")
            job.control("pause")
            ps = poll_until(lambda: all_received(client), 30, "the ledgers to be told")
            received = sum(stats.received for stats in ps)

            def told() -> bool:
                return value_of(server, "sum(psruntime_ps_updates_received_total)") == received

            poll_until(told, 30, "the sum of its counters to be the ledger's")
            ways = ["applied_total", "dropped_total", "pending"]
            became = [value_of(server, f"sum(psruntime_ps_updates_{way})") or 0 for way in ways]
            assert sum(became) == received
            assert became[0] == sum(stats.applied for stats in ps)
        finally:
            client.close()
        job.drain()


def all_received(client: CoordinatorClient) -> list[Any] | None:
    """The ledgers of all ps, once nothing is under way."""
    before, after = ([m.ps_stats for m in client.get_status()[0].members if m.ps_stats] for _ in range(2))
    return after if before == after else None


@pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool (Debian's package prometheus has it)")
def test_promtool_finds_no_fault_in_the_files_and_the_dashboard(tmp_path: Path) -> None:
    dashboard = json.loads((ROOT / "launch/grafana/psruntime.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # YAML too
    for what, file in (("config", ROOT / "launch/grafana/prometheus.yml"), ("rules", tmp_path / "panels.yml")):
        outcome = subprocess.run(["promtool", "check", what, str(file)], capture_output=True, text=True)
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def job_series(steps: str, phase: str = "1x40", paused: str = "0x40") -> list[dict[str, str]]:
    """What ps 0 tells every 10 s, in the notation of promtool."""
    at = 'instance="ps-0"'
    return [
        {"series": f"psruntime_job_global_step{{{at}}}", "values": steps},
        {"series": f'psruntime_job_phase{{{at}, phase="TRAINING"}}', "values": phase},
        {"series": f"psruntime_job_paused{{{at}}}", "values": paused},
    ]


@pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool (Debian's package prometheus has it)")
@pytest.mark.parametrize(
    ("series", "after_s", "fires"),
    [
        (job_series("500x40"), 0, False),  # Prometheus has just begun to read it
        (job_series("500x40"), 50, False),
        (job_series("500x40"), 190, True),
        (job_series("0+7x10 70x30"), 200, False),
        (job_series("0+7x40"), 300, False),
        (job_series("0+7x10 70x30"), 300, True),
        (job_series("0+7x10 70x30", paused="0x10 1x30"), 300, False),
        (job_series("0+7x10 20+7x30"), 160, False),  # a rollback
        (job_series("0+7x10 70x30", phase="1x10 0x30"), 300, False),
    ],
)
def test_no_progress_is_told_after_three_minutes_of_it(
    series: list[dict[str, str]], after_s: int, fires: bool, tmp_path: Path
) -> None:
    told = {
        "exp_labels": {"severity": "critical", "instance": "ps-0"},
        "exp_annotations": {
            "summary": "The job trains, and counts no update",
            "description": "psruntime status says who waits for whom.",
        },
    }
    case = {
        "interval": "10s",
        "input_series": series,
        "alert_rule_test": [
            {"eval_time": f"{after_s}s", "alertname": "PsruntimeNoProgress", "exp_alerts": [told] if fires else []}
        ],
    }
    test = {"rule_files": [str(ROOT / "launch/grafana/alerts.yml")], "evaluation_interval": "10s", "tests": [case]}
    (tmp_path / "test.yml").write_text(json.dumps(test))  # YAML too
    outcome = subprocess.run(["promtool", "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
