"""launch/ssh.sh: what it starts where, what it starts again, and that nothing outlives it."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from psruntime.launch.sources import read_host_lists
from tests.support.command_lines import complaint
from tests.support.fake_ssh import Launcher
from tests.support.polling import await_line
from tests.support.selection import long_but
from tests.support.sshd import start_group

pytestmark = [
    pytest.mark.usefixtures("sigint_as_in_a_terminal"),
    pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl: apt-get install openssl"),
]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    made.kill_all()


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_each_host_has_a_worker_and_the_first_one_the_ps(launcher: Launcher) -> None:
    code, out, err = launcher.run("a,user@b,fd00::5", "--insecure", "--mode=sync")
    assert code == 0, err
    assert launcher.hosts() == ["a", "a", "fd00::5", "user@b"]
    calls = {call.task: call.words for call in launcher.calls()}
    assert sorted(calls) == ["ps-0", "worker-0", "worker-1", "worker-2"]
    for name, words in calls.items():
        assert words[:2] == ["task", "--lifeline"] and words[-2:] == ["--insecure", "--mode=sync"]
        assert value(words, "--ps-hosts") == "a:2222" and value(words, "--worker-hosts") == "a:0,b:0,[fd00::5]:0"
        assert complaint(["psruntime", *words], {}) == ""
        assert f"{name}: began\n" in out
    assert len(re.findall(r"^launch/ssh.sh: \S+ on \S+: psruntime task ", err, re.MULTILINE)) == 4
    assert "worker-1 on user@b: psruntime task --lifeline --ps-hosts a:2222 --worker-hosts a:0,b:0" in err


def test_roles_are_dealt_to_the_hosts_of_a_file_in_turn(launcher: Launcher) -> None:
    (launcher.folder / "machines").write_text("# those that are free\nuser@a  # with the disk\n\nb\n")
    flags = ["--ps", "3", "--workers=1", "--coordinator-port", "4711", "--insecure"]
    code, _, err = launcher.run("machines", *flags)
    assert code == 0, err
    assert launcher.hosts() == ["b", "user@a", "user@a", "user@a"]
    for name, _, _, words, _ in launcher.calls():
        lists = value(words, "--ps-hosts"), value(words, "--worker-hosts")
        assert lists == ("a:4711,b:0,a:0", "a:0")
        task = read_host_lists(*lists, value(words, "--role"), int(value(words, "--index")), lambda _: False)
        assert f"{task.role}-{task.index}" == name


@pytest.mark.parametrize("word", ["two words", "it's", 'a "b"', "$HOME `id` \\ *", "", "two\nlines", "ü;&|<>(){}!#~"])
def test_a_flag_arrives_as_it_was_given(launcher: Launcher, word: str) -> None:
    code, _, err = launcher.run("a", "--data-dir", word, "--insecure")
    assert code == 0, err
    assert [call.words[-3:] for call in launcher.calls()] == [["--data-dir", word, "--insecure"]] * 2


def test_the_command_and_its_folder_are_those_of_the_environment(launcher: Launcher) -> None:
    place = launcher.folder / "it's here"
    place.mkdir()
    launcher.commands.environment |= {"DIR": str(place), "PSRUNTIME": "env A=b psruntime", "SSH": "ssh -o User=me"}
    code, _, err = launcher.run("a")
    assert code == 0, err
    assert {call.folder for call in launcher.calls()} == {str(place)}
    assert "worker-0 on a: env A=b psruntime task" in err


def test_by_default_it_is_the_current_folder(launcher: Launcher) -> None:
    assert launcher.run("a")[0] == 0
    assert {call.folder for call in launcher.calls()} == {str(launcher.folder)}


def test_a_folder_that_is_not_there_ends_the_job(launcher: Launcher) -> None:
    launcher.commands.environment["DIR"] = "/no/such"
    code, out, _ = launcher.run("a")
    assert code == 2 and not launcher.calls()
    assert "worker-0: there is no folder /no/such on this machine; DIR names another\n" in out


def test_a_command_that_is_not_there_ends_the_job(launcher: Launcher) -> None:
    launcher.commands.environment["PSRUNTIME"] = "psrun"
    code, _, err = launcher.run("a")
    assert code == 127
    assert "psrun cannot be run on a; PSRUNTIME names another command\n" in err


@pytest.mark.parametrize("crash", long_but(["75"], ["75", "-9", "-11"]))
def test_what_crashes_is_started_again_after_a_pause(launcher: Launcher, crash: str) -> None:
    launcher.plan(ps_0="waits0", worker_1=f"{crash} {crash} 0")
    code, _, err = launcher.run("a,b")
    assert code == 0, err
    assert [call.task for call in launcher.calls()].count("worker-1") == 3 and len(launcher.calls()) == 5
    code = int(crash) if int(crash) > 0 else 128 - int(crash)
    assert err.count(f"worker-1 on b ended with {code}\n") == 2
    assert re.findall(r"worker-1 is started again in (\d+) s", err) == ["1", "2"]


@pytest.mark.long
def test_pauses_grow_to_32_seconds(launcher: Launcher) -> None:
    launcher.plan(ps_0="waits0", worker_0="75 75 75 75 75 75 75 0")
    code, _, err = launcher.run("a")
    assert code == 0, err
    pauses = re.findall(r"worker-0 is started again in (\d+) s", err)
    assert pauses == ["1", "2", "4", "8", "16", "32", "32"]


@pytest.mark.parametrize("last", [1, 2, 126])
def test_a_code_that_is_final_ends_the_job_by_ps_0(launcher: Launcher, last: int) -> None:
    launcher.plan(ps_0="waits143", ps_1="waits143", worker_0=str(last), worker_1="waits143")
    code, out, err = launcher.run("a,b", "--ps", "2")
    assert code == last, err
    assert len(launcher.calls()) == 4 and "started again" not in err
    stopped = re.findall(r"^(\S+): asked to stop$", out, re.MULTILINE)
    assert stopped[0] == "ps-0" and sorted(stopped) == ["ps-0", "ps-1", "worker-1"]


def test_ps_0_need_not_wait_for_latecomers(launcher: Launcher) -> None:
    launcher.plan(ps_0="waits0")
    assert launcher.run("a")[0] == 0


def test_a_worker_may_end_after_ps_0(launcher: Launcher) -> None:
    """It runs the `end` of its hooks, in which nobody disturbs it."""
    launcher.plan(worker_0="waits3")
    process = launcher.start("a")
    await_line(process.stderr, "ps-0 on a ended with 0")
    launcher.await_calls(2)
    (worker,) = [call.pid for call in launcher.calls() if call.task == "worker-0"]
    os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "ended with 137" in err and "started again" not in err


def test_a_host_that_cannot_be_reached_ends_the_job(launcher: Launcher) -> None:
    launcher.plan(ps_0="waits143", worker_0="waits143")
    code, out, err = launcher.run("a,down")
    assert code == 255
    assert "worker-1: ssh: connect to host down port 22: Connection refused\n" in out
    assert "launch/ssh.sh: down cannot be reached; try: ssh -o BatchMode=yes" in err


@pytest.mark.long
def test_a_connection_that_is_cut_off_later_is_made_again(launcher: Launcher) -> None:
    launcher.plan(ps_0="waits0", worker_0="75 255 0")
    code, _, err = launcher.run("a")
    assert code == 0, err
    assert "worker-0 on a ended with 255\n" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_first_signal_asks_ps_0_and_the_others_when_it_is_gone(launcher: Launcher, number: int) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("the signal is ignored by the tests, as under nohup, and so by the script")
    launcher.plan(ps_0="waits143", ps_1="waits75", worker_0="waits75")
    process = launcher.start("a", "--ps=2")
    launcher.await_calls(3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    stopped = re.findall(r"^(\S+): asked to stop$", out, re.MULTILINE)
    assert stopped[0] == "ps-0" and sorted(stopped) == ["ps-0", "ps-1", "worker-0"]
    assert len(launcher.calls()) == 3 and "started again" not in err
    launcher.await_end()


def test_a_signal_to_all_of_its_processes_is_one_to_the_script(launcher: Launcher) -> None:
    """As of a terminal, or of those who end a process group."""
    launcher.plan(ps_0="waits143", worker_0="waits75")
    process = start_group(launcher.commands, "a")
    launcher.await_calls(2)
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143 and out.count("asked to stop") == 2, err
    launcher.await_end()
    assert "ps-0 on a ended with 143\n" in err and "worker-0 on a ended with 75\n" in err


@pytest.mark.long
def test_nothing_is_started_again_after_a_signal(launcher: Launcher) -> None:
    launcher.plan(ps_0="waits143", worker_0="75 75 75 75 75")
    process = launcher.start("a")
    launcher.await_calls(4)  # and the next pause is of 4 s
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130 and len(launcher.calls()) == 4
    launcher.await_end()


@pytest.mark.long
def test_nor_is_ps_0_and_then_all_are_asked(launcher: Launcher) -> None:
    launcher.plan(ps_0="75 75 75 75 75", worker_0="waits143")
    process = launcher.start("a")
    launcher.await_calls(4)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and len(launcher.calls()) == 4
    assert "worker-0: asked to stop\n" in out


def test_a_second_signal_ends_all_at_once(launcher: Launcher) -> None:
    launcher.plan(ps_0="hangs", worker_0="hangs", worker_1="waits143")
    process = launcher.start("a,b")
    launcher.await_calls(3)
    process.send_signal(signal.SIGINT)
    await_line(process.stderr, "stops the job; a second signal ends it at once")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert all(f"{name} ended with 137\n" in err for name in ("ps-0 on a", "worker-0 on a", "worker-1 on b"))
    launcher.await_end()


@pytest.mark.parametrize("crashing", long_but(["waits143"], ["waits143", "75 75 75 waits143"]))
def test_nothing_outlives_a_script_that_was_killed(launcher: Launcher, crashing: str) -> None:
    launcher.plan(ps_0="waits143", worker_0="waits143", worker_1=crashing)
    process = launcher.start("a,b")
    launcher.await_calls(2 + len(crashing.split()))
    process.kill()
    process.communicate(timeout=60)
    launcher.await_end()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "HOSTS is missing"),
        (["--ps", "2"], "HOSTS is missing"),
        ([","], "there is no host in ,"),
        (["machines.txt/"], "'machines.txt/' is neither a file nor a host"),
        (["a:4,b"], "'a:4' is neither"),
        (["a,-oProxyCommand=x"], "'-oProxyCommand=x' is neither"),
        (["a", "--ps", "two"], "--ps must be a number from 1, got 'two'"),
        (["a", "--workers=0"], "--workers must be a number from 1, got '0'"),
        (["a", "--coordinator-port"], "--coordinator-port must be a number from 1, got ''"),
        (["a", "--role", "ps"], "leave out --role, which is made of HOSTS"),
        (["a", "--ps-hosts=b:1"], "leave out --ps-hosts=b:1, which"),
    ],
)
def test_bad_input_is_one_line(launcher: Launcher, words: list[str], said: str) -> None:
    code, out, err = launcher.run(*words)
    assert (code, out) == (2, "") and err.startswith(f"launch/ssh.sh: {said}") and err.count("\n") == 1


def test_help_says_what_it_takes(launcher: Launcher) -> None:
    code, out, err = launcher.run("--help")
    assert (code, err) == (0, "")
    assert out.startswith("A psruntime job") and all(word in out for word in ("--ps N", "--coordinator-port N", "DIR"))
