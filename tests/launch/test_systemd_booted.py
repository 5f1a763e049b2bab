"""launch/systemd where systemd runs: what a unit reads, what it may not, and who reaches it.

A program that only looks like psruntime says what it sees.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import booted
from tests.support.booted import Booted
from tests.support.docs import ROOT
from tests.support.polling import poll_until

pytestmark = pytest.mark.skipif(bool(booted.refusal()), reason=booted.refusal() or "possible")

FOLDER = ROOT / "launch" / "systemd"
ROLES = ("ps", "worker")
HERE, MEMBER, STRANGER, PORT = "10.9.7.1", "10.9.7.2", "10.9.7.3", 2222
FILES = {"ca.pem": "the CA", "cert.pem": "a certificate", "key.pem": "its key", "token": "the token"}
VARIABLES = dict(zip(("TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN_FILE"), FILES, strict=True))
CREDENTIALS = "/etc/psruntime/credentials"

PROGRAM = f"""#!/usr/bin/perl
use IO::Socket::INET;
my $listener = IO::Socket::INET->new(LocalPort => {PORT}, Listen => 9, ReuseAddr => 1) or die;
open my $out, ">", "/var/lib/psruntime/report.new" or die $!;
print $out "arguments: @ARGV\\n";
for my $name (grep /^PSRUNTIME_T/, sort keys %ENV) {{
    open my $file, "<", $ENV{{$name}} or die "$name: $!";
    print $out "$name: ", scalar <$file>, "\\n";
}}
for my $path ("{CREDENTIALS}/key.pem", "/etc/shadow", "/root") {{
    print $out "read $path: ", (-r $path && open(my $file, "<", $path)) ? "yes" : "no", "\\n";
}}
for my $path ("/etc", "/opt/psruntime", "/srv", "/usr", "/var/lib/psruntime") {{
    print $out "write $path: ", open(my $file, ">", "$path/written") ? "yes" : "no", "\\n";
}}
for my $host ("127.0.0.1", "{HERE}", "{MEMBER}", "{STRANGER}") {{
    my $caller = IO::Socket::INET->new(PeerAddr => $host, PeerPort => {PORT}, Timeout => 2);
    print $out "reach $host: ", $caller ? "yes" : "no", "\\n";
}}
close $out;
rename "/var/lib/psruntime/report.new", "/var/lib/psruntime/report";
while (1) {{ $listener->accept }}
"""
LISTEN = f"""
import socket, sys
listener = socket.create_server(("", {PORT}))
print("listening", flush=True)
sys.stdin.read()
"""
CONNECT = f"""
import socket, sys
with socket.socket() as caller:
    caller.settimeout(2)
    caller.bind((sys.argv[1], 0))
    print("yes" if caller.connect_ex(("{HERE}", {PORT})) == 0 else "no")
"""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


class Machine:
    """A machine with the units as the page installs them, and another one, beside it, with two addresses."""

    def __init__(self, folder: Path, at_exit: ExitStack) -> None:
        self.booted = Booted(folder, at_exit)
        self._outside = f"psruntime-{self.booted.pid}"
        run("ip", "netns", "add", self._outside)
        at_exit.callback(run, "ip", "netns", "delete", self._outside)
        cable = ["type", "veth", "peer", "name", "eth0", "netns", str(self.booted.pid)]
        run("ip", "-n", self._outside, "link", "add", "name", "eth0", *cable)
        for address in (MEMBER, STRANGER):
            run("ip", "-n", self._outside, "address", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", self._outside, "link", "set", "eth0", "up")
        self.booted.must("ip", "address", "add", f"{HERE}/24", "dev", "eth0")
        self.booted.must("ip", "link", "set", "eth0", "up")
        self._listener = subprocess.Popen(
            [*self._enter, sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        at_exit.callback(self._listener.communicate, timeout=30)
        assert self._listener.stdout and self._listener.stdout.readline() == "listening\n"
        self._install()

    @property
    def _enter(self) -> list[str]:
        return ["ip", "netns", "exec", self._outside]

    def _install(self) -> None:
        write = self.booted.write
        self.booted.must("useradd", "--system", "--home-dir", "/var/lib/psruntime", "psruntime")
        write("/opt/psruntime/bin/psruntime", PROGRAM, "755")
        for name in ("job.env", "job.toml"):
            write(f"/etc/psruntime/{name}", (FOLDER / name).read_text())
        for role in ROLES:
            name = f"psruntime-{role}@.service"
            write(f"/etc/systemd/system/{name}", (FOLDER / name).read_text())
        slice_, count = re.subn(
            r"^IPAddressAllow=.*$",
            f"IPAddressAllow={HERE} {MEMBER}",
            (FOLDER / "psruntime.slice").read_text(),
            flags=re.M,
        )
        assert count == 1
        write("/etc/systemd/system/psruntime.slice", slice_)
        for name, text in FILES.items():
            write(f"{CREDENTIALS}/{name}", text, "600")
        self.booted.must("chmod", "700", CREDENTIALS)
        self.booted.must("systemctl", "daemon-reload")

    def start(self, role: str) -> dict[str, str]:
        """What a unit of this role, index 0, sees."""
        self.booted.must("systemctl", "start", f"psruntime-{role}@0")
        report = "/var/lib/psruntime/report"
        try:
            poll_until(lambda: self.booted.run("test", "-e", report)[0] == 0, 60, "a report")
        except AssertionError as error:
            raise AssertionError(self.booted.run("journalctl", "--no-pager", "-u", f"psruntime-{role}@0")[1]) from error
        lines = [line.partition(": ") for line in self.booted.must("cat", report).splitlines()]
        return {name: value for name, _, value in lines}

    def reached_from(self, address: str) -> str:
        return run(*self._enter, sys.executable, "-c", CONNECT, address).strip()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as at_exit:
        yield Machine(tmp_path, at_exit)


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
def test_a_unit_reads_its_credentials_writes_little_and_reaches_the_members_alone(machine: Machine, role: str) -> None:
    seen = machine.start(role)
    assert seen.pop("arguments").startswith(f"{role} --index=0 --coordinator=")
    assert {name: seen.pop(f"PSRUNTIME_{name}") for name in VARIABLES} == {n: FILES[f] for n, f in VARIABLES.items()}
    reached = {host: seen.pop(f"reach {host}") for host in ("127.0.0.1", HERE, MEMBER, STRANGER)}
    assert reached == {"127.0.0.1": "yes", HERE: "yes", MEMBER: "yes", STRANGER: "no"}
    assert machine.reached_from(MEMBER) == "yes" and machine.reached_from(STRANGER) == "no"
    assert {what for what, done in seen.items() if done == "yes"} == {"write /var/lib/psruntime"}
    path = f"/run/credentials/psruntime-{role}@0.service/key.pem"
    assert machine.booted.run("setpriv", "--reuid=nobody", "--clear-groups", "cat", path)[0] != 0


@pytest.mark.long
def test_a_unit_does_not_start_without_credentials_unless_that_is_chosen(machine: Machine) -> None:
    machine.booted.must("rm", f"{CREDENTIALS}/token")
    machine.booted.run("systemctl", "start", "psruntime-ps@0")
    show = ["systemctl", "show", "psruntime-ps@0", "--property=ExecMainStatus", "--value"]
    poll_until(lambda: machine.booted.must(*show).strip() == "243", 60, "a unit that failed for its credentials")
    assert machine.booted.run("test", "-e", "/var/lib/psruntime/report")[0] != 0
    machine.booted.must("systemctl", "stop", "psruntime-ps@0")
    machine.booted.write(
        "/etc/systemd/system/psruntime-ps@.service.d/insecure.conf", (FOLDER / "insecure.conf").read_text()
    )
    machine.booted.must("systemctl", "daemon-reload")
    machine.booted.run("systemctl", "reset-failed")
    assert not any(name.startswith("PSRUNTIME_") for name in machine.start("ps"))
