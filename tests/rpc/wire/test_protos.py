"""The protos: what is committed is current, and each house rule catches a violation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"

GOOD = """syntax = "proto3";
package house.v1;
import "google/protobuf/duration.proto";
// Says hello.
service HelloService {
  // Says it once.
  rpc Greet(GreetRequest) returns (GreetResponse);
}
// How it is said.
enum Tone {
  TONE_UNSPECIFIED = 0;  // never sent
  TONE_WARM = 1;  // with a smile
}
message GreetRequest {
  // How it is said.
  Tone tone = 1;
  // Longest time to wait.
  google.protobuf.Duration max_wait = 2;
  // How far to go.
  int64 walk_steps = 3;
  // Greetings per second.
  double greetings_per_s = 4;
  // Whom.
  oneof whom {
    // By name.
    string name = 5;
  }
  // How often each was greeted, from 0.
  map<string, int64> count = 6;
  // When absent, nobody.
  optional string by = 7;
}
message GreetResponse {
  message Part {
    // The words.
    string text = 1;
  }
  // What was said.
  repeated Part parts = 1;
}
"""


@pytest.fixture
def lint(tmp_path, monkeypatch):
    """Lints one proto, which is put at house/v1/hello.proto."""
    monkeypatch.syspath_prepend(str(TOOLS))
    from lint_protos import lint

    def run(text: str, path: str = "house/v1/hello.proto") -> list[str]:
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
        return [line.removeprefix(f"{path}: ") for line in lint(tmp_path)]

    return run


def test_a_proto_that_follows_the_rules_passes(lint):
    assert lint(GOOD) == []


@pytest.mark.parametrize(
    ("was", "now", "line"),
    [
        ("  // How far to go.\n", "", "field GreetRequest.walk_steps has no comment"),
        ("    // The words.\n", "", "field GreetResponse.Part.text has no comment"),
        ("  // Whom.\n", "", "oneof GreetRequest.whom has no comment"),
        ("// How it is said.\nenum", "enum", "enum Tone has no comment"),
        ("  // with a smile", "", "enum value TONE_WARM has no comment"),
        ("// Says hello.\n", "", "service HelloService has no comment"),
        ("  // Says it once.\n", "", "rpc HelloService.Greet has no comment"),
        ("TONE_WARM", "WARM", "enum value WARM lacks the prefix TONE_"),
        ("TONE_UNSPECIFIED", "TONE_NONE", "enum Tone: the zero value is TONE_NONE, not TONE_UNSPECIFIED"),
        ("HelloService", "Hello", "service Hello does not end in Service"),
        ("rpc Greet(", "rpc Say(", "rpc Say does not take SayRequest and answer SayResponse"),
        ("google.protobuf.Duration max_wait ", "double max_wait_s ", "field GreetRequest.max_wait_s is a time"),
        ("google.protobuf.Duration max_wait ", "int64 timeout_ms ", "field GreetRequest.timeout_ms is a time"),
        ("int64 walk_steps", "int32 walk_steps", "field GreetRequest.walk_steps is not an int64"),
        ("int64 walk_steps", "uint64 walk_bytes", "field GreetRequest.walk_bytes is not an int64"),
        ("string text", "bytes text", "field GreetResponse.Part.text is opaque"),
    ],
)
def test_a_violation_is_caught(lint, was, now, line):
    assert was in GOOD
    (found,) = lint(GOOD.replace(was, now))
    assert found.startswith(line)


def test_a_package_without_a_version_is_caught(lint):
    assert lint(GOOD.replace("house.v1", "house"), "house/hello.proto") == [
        "package 'house' does not end in a version like .v1"
    ]


def test_a_folder_that_is_not_the_package_is_caught(lint):
    assert lint(GOOD, "home/v1/hello.proto") == ["package 'house.v1' lies in folder 'home/v1'"]


def test_the_committed_code_is_current_whatever_the_folder(tmp_path):
    check = subprocess.run(
        [sys.executable, str(TOOLS / "protos.py"), "check"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (check.returncode, check.stdout) == (0, "protos ok\n")


def test_code_that_is_not_current_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import protos

    protos.generate(tmp_path)
    (tmp_path / "psruntime/v1/coordination_pb2.pyi").write_text("# edited\n")
    monkeypatch.setattr(protos, "ROOT", tmp_path)
    (line,) = protos.stale()
    assert line.startswith("psruntime/v1/coordination_pb2.pyi is not what grpcio-tools ")
    assert line.endswith("run: python tools/protos.py generate")
