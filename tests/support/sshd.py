"""launch/ssh.sh against a real server of OpenSSH, on this machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.support.cluster import ROOT
from tests.support.commands import MARK, Commands
from tests.support.free_ports import free_ports
from tests.support.polling import poll_until

SCRIPT = str(ROOT / "launch" / "ssh.sh")
SSHD = "/usr/sbin/sshd"  # it wants to be called by its whole path
PRIVILEGES = Path("/run/sshd")  # an empty folder, which it needs when it runs as root


def refusal() -> str:
    """Why there can be no server here; empty if there can."""
    missing = [name for name in (SSHD, "ssh", "ssh-keygen") if not shutil.which(name)]
    return f"needs OpenSSH: apt-get install openssh-server; missing: {', '.join(missing)}" if missing else ""


def start_group(commands: Commands, *words: str) -> subprocess.Popen[str]:
    """The script, as the leader of a process group."""
    return subprocess.Popen(
        [SCRIPT, *words], cwd=commands.folder, env=commands.environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@contextmanager
def privileges() -> Iterator[None]:
    """The folder is there; the last of the tests that run at a time takes it away, if one of them made it."""
    ours = PRIVILEGES / "of-tests"
    with open(SSHD, "rb") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with suppress(FileExistsError):
            PRIVILEGES.mkdir()
            ours.touch()
        try:
            yield
        finally:
            with suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if ours.exists():
                    ours.unlink()
                    PRIVILEGES.rmdir()


class Machines:
    """127.0.0.1 and localhost, with a server of OpenSSH that has everything of it in a folder."""

    def __init__(self, folder: Path, at_exit: ExitStack) -> None:
        keys, (port, self.coordinator_port) = folder / "ssh", free_ports(2)
        keys.mkdir(mode=0o700)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True)
        (keys / "known").write_text(f"[127.0.0.1]:{port},[localhost]:{port} {(keys / 'host.pub').read_text()}")
        self.commands = Commands(folder)
        self.commands.environment |= {
            "SSH": f"ssh -F {keys / 'client'}",
            "PSRUNTIME": f"{sys.executable} -m psruntime",
        }
        # The server gives the processes the mark and where our code is; it does not have the mark itself.
        given = {name: self.commands.environment[name] for name in (MARK, "PYTHONPATH")}
        (keys / "server").write_text(
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {keys / 'host'}\nAuthorizedKeysFile {keys / 'user.pub'}\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nMaxStartups 100\n"
            f"SetEnv {' '.join(f'{name}={text}' for name, text in given.items())}\n"
        )
        (keys / "client").write_text(
            f"Port {port}\nIdentityFile {keys / 'user'}\nIdentitiesOnly yes\nUserKnownHostsFile {keys / 'known'}\n"
            "StrictHostKeyChecking yes\nBatchMode yes\nConnectTimeout 10\nLogLevel ERROR\n"
        )
        if os.geteuid() == 0:
            at_exit.enter_context(privileges())
        log = at_exit.enter_context((keys / "log").open("w"))
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", keys / "server"], stdin=subprocess.DEVNULL, stderr=log)
        at_exit.callback(server.wait, 30)
        at_exit.callback(server.terminate)
        at_exit.callback(self._kill_all)
        poll_until(lambda: "listening on" in (keys / "log").read_text(), 30, "a server that listens")

    def _kill_all(self) -> None:
        """What is left after a failure."""
        for pid in self.commands.running():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self, *flags: str) -> subprocess.Popen[str]:
        where = [f"--coordinator-port={self.coordinator_port}", f"--checkpoint-dir={self.commands.folder / 'run'}"]
        return start_group(self.commands, "127.0.0.1,localhost", *where, *flags)

    def await_end(self, timeout_s: float) -> None:
        poll_until(lambda: not self.commands.running(), timeout_s, "the end of all processes")

    def saved(self) -> list[int]:
        """Global steps of the checkpoints."""
        return sorted(int(path.stem.split("-")[1]) for path in (self.commands.folder / "run").glob("*.index"))
