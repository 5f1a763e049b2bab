"""Nothing that a member or a foreign coordinator sends reaches a terminal as a control character."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from psruntime.commands import control, status
from psruntime.core.fields import visible
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import FailedSaves, LeaveKind, PsBeat, PsStats, RowCounts, WorkerBeat, WorkerStats
from psruntime.errors import PsRuntimeError
from psruntime.rpc.wire.codec import to_wire
from psruntime.rpc.wire.messages import Leave
from psruntime.v1 import coordination_pb2 as pb
from psruntime.v1 import coordination_pb2_grpc as pb_grpc
from tests.rpc.conftest import a_beat, a_join

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b31m\u202egnp\u2028\r\b"


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    """What the last command has written."""
    out, err = capsys.readouterr()
    for line in (out + err).split("\n"):
        assert visible(line) == line, ascii(line)
    return out + err


def test_no_command_writes_a_control_character(stage, server, client, capsys) -> None:
    where = f"127.0.0.1:{server.port}"
    ps, worker = client.join(a_join(Role.PS, 0)), client.join(a_join(Role.WORKER, 0))
    rows = RowCounts(EVIL, 1, 2, 3, 4, 5, 6)
    client.heartbeat(a_beat(ps, Role.PS, 0, PsBeat(stats=PsStats(row_counts=(rows,), dropped={EVIL: 3}))))
    facts = WorkerBeat(stats=WorkerStats(waiting=EVIL), failed_saves=FailedSaves(2, EVIL))
    client.heartbeat(a_beat(worker, Role.WORKER, 0, facts))
    assert status.main([where]) == 0
    assert "red" in shown(capsys)
    client.leave(Leave(Role.WORKER, 0, worker.incarnation, LeaveKind.FATAL, EVIL))
    for words in ([where], [where, "--follow"], [where, "--watch"], [where, "--json"]):
        assert status.main(words) == 0
        assert "red" in shown(capsys)
    assert control.main([where, "pause"]) in (1, 2)
    assert "red" in shown(capsys)
    with pytest.raises(PsRuntimeError) as refused:
        client.join(a_join(Role.WORKER, 1))
    assert visible(str(refused.value)) == str(refused.value)


def test_a_variable_whose_name_is_no_text_is_refused(stage, client) -> None:
    join = to_wire(a_join(Role.WORKER, 0), pb.JoinRequest)
    join.variables[0].name = EVIL
    with pytest.raises(grpc.RpcError) as refused:
        client._stub.Join(join, timeout=10)
    assert "name must have visible characters only" in refused.value.details()
    assert visible(refused.value.details()) == refused.value.details()


class Rogue(pb_grpc.CoordinationServiceServicer):
    """A foreign coordinator: each text that it sends has control characters, and each refusal."""

    def __init__(self, answer: pb.GetStatusResponse) -> None:
        self.answer = answer

    def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        return self.answer

    def Control(self, request: pb.ControlRequest, context: Any) -> None:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, EVIL)


def texts(message: Any) -> list[tuple[Any, Any]]:
    """Each text field of a message that is set, or could be, with the message that has it."""
    found = []
    for field in message.DESCRIPTOR.fields:
        repeated = getattr(field, "is_repeated", None)
        repeated = field.label == field.LABEL_REPEATED if repeated is None else repeated
        if field.message_type is None:
            found += [(message, field)] if field.type == field.TYPE_STRING and not repeated else []
        elif repeated and not field.message_type.GetOptions().map_entry:
            for each in getattr(message, field.name):
                found += texts(each)
        elif not repeated and message.HasField(field.name):
            found += texts(getattr(message, field.name))
    return found


def test_a_foreign_coordinator_changes_no_terminal(stage, server, client, capsys) -> None:
    client.join(a_join(Role.PS, 0)), client.join(a_join(Role.WORKER, 0))
    clean = client._stub.GetStatus(pb.GetStatusRequest(), timeout=10)
    with ThreadPoolExecutor(2) as pool:
        foreign, rogue = grpc.server(pool), Rogue(clean)
        pb_grpc.add_CoordinationServiceServicer_to_server(rogue, foreign)
        where = f"127.0.0.1:{foreign.add_insecure_port('127.0.0.1:0')}"
        foreign.start()
        names = [(type(message).__name__, field.name) for message, field in texts(clean)]
        for place in range(len(names)):
            rogue.answer = pb.GetStatusResponse()
            rogue.answer.CopyFrom(clean)
            message, field = texts(rogue.answer)[place]
            setattr(message, field.name, EVIL)
            code = status.main([where])
            assert shown(capsys), names[place]
            assert code in (0, 2)
        assert control.main([where, "pause"]) == 2
        assert "red" in shown(capsys)
        foreign.stop(None).wait()
    assert len(names) > 10


def test_a_text_with_other_alphabets_stays_as_it_is() -> None:
    for text in ("modèle", "模型", "модель", "a b", ""):
        assert visible(text) == text
