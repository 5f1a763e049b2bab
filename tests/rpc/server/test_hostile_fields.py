"""Any value in any field of any request: one of the stated statuses, and a coordinator that keeps its laws.

The requests and their fields are found in the descriptors of the protos, so a new one is covered by itself.
"""

from __future__ import annotations

import random
import secrets
import time
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role, tag_of
from psruntime.core.members.messages import STALENESS_LIMITS
from psruntime.rpc.wire.codec import to_wire
from psruntime.rpc.wire.messages import Model
from psruntime.v1 import coordination_pb2 as pb
from tests.rpc.conftest import JOB_ID, SPECS
from tests.rpc.server.honest import JOB, PLACES, Honest
from tests.rpc.server.watching import WatchedCoordinator
from tests.support.messages import changed, messages, whole
from tests.support.selection import examples

SERVICE = pb.DESCRIPTOR.services_by_name["CoordinationService"]
METHODS = {method.name: method for method in SERVICE.methods}
JUNK = (b"\xff" * 99, b"\x0b" * 9999, b"\x0a\xff\xff\xff\xff\x0f", b"\0", b"\x0a\x02\xc3\x28", b"\0" * 2**17)
FOR_THE_CHIEF = ("ReportPrepared", "ReportFinished")
EXAMPLES = examples(30)  # for each request
MODES = {
    "bounded": replace(JOB, train_steps=None),
    "sync": replace(JOB, train_steps=None, mode="sync", bound=None),
}
OK, INVALID, HELD, REPLACED = (
    grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION,
)  # fmt: skip
STATED = {OK, INVALID, HELD, REPLACED}  # by the header of the proto, while the job is not over


class Caller:
    """Sends requests as worker `index`: as a stranger, or as a member that takes its place again when it lost it."""

    def __init__(self, channel: grpc.Channel, health: str, index: int, is_member: bool) -> None:
        self._admitted: set[tuple[int, int]] = set()  # index and incarnation
        self._channel = channel
        self._place = {
            "role": pb.ROLE_WORKER, "index": index, "worker_index": index, "join_id": f"join {index}",
            "job_id": JOB_ID, "address": "127.0.0.1:8", "health_address": health, "waited": {},
            "variables": to_wire(Model(SPECS), pb.Model).variables, "identity": {},
        }  # fmt: skip
        self._is_member, self._is_lost = is_member, True
        self._incarnation = 1 + secrets.randbelow(2**62)
        self._incarnations = {self._incarnation}  # and those before

    def requests(self, rpc: str) -> list[Message]:
        """What is right of a member, with every field and part."""
        facts = {"kind": pb.LEAVE_KIND_ERROR, "seen_revision": 0, "wanted_floor": 0, "max_wait": {}}
        facts["incarnation"], facts["failure"] = self._incarnation, ""
        if rpc == "Control":
            facts["kind"] = pb.CONTROL_COMMAND_PAUSE
        facts["staleness_counts"] = [1] * (len(STALENESS_LIMITS) + 1)
        return whole(METHODS[rpc].input_type._concrete_class, {**self._place, **facts})

    def send(self, rpc: str, request: Any, what: str = "what is right") -> Any:
        """The status.  What a member sends under an incarnation that it had goes under the one that it has."""
        if self._is_member:
            if isinstance(request, pb.LeaveRequest) and request.kind == pb.LEAVE_KIND_FATAL:
                return OK  # it may end the job, and there would be nothing more to see
            if isinstance(request, pb.HeartbeatRequest) and (request.worker.failure or request.worker.early_stop):
                return OK  # the same
            if self._is_lost:
                self._arrive()
            if getattr(request, "incarnation", 0) in self._incarnations:
                request.incarnation = self._incarnation
        code = self.send_bytes(rpc, request.SerializeToString(), what)
        self._is_lost = code is REPLACED or rpc in ("Join", "Leave")
        return code

    def send_bytes(self, rpc: str, request: bytes, what: str) -> Any:
        try:
            self._answer(rpc, request)
            code, details = OK, ""
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
        assert code in STATED, f"{rpc} with {what}: {code.name} {details}"
        return code

    def be_itself(self, request: Any) -> None:
        """Makes a request that comes from somebody one of this caller's own."""
        for name, value in (*self._place.items(), ("incarnation", self._incarnation)):
            if name in ("role", "index", "worker_index", "incarnation") and name in request.DESCRIPTOR.fields_by_name:
                setattr(request, name, value)

    def claim(self) -> None:
        """Asks for its own place as if it were another."""
        (join,) = self.requests("Join")
        join.join_id = secrets.token_hex(8)
        self.send_bytes("Join", join.SerializeToString(), "another id")

    def come_anew(self) -> None:
        """As a member with a fresh lease, whatever became of the one before on a busy machine."""
        self.leave()
        self._is_lost = True

    def leave(self) -> None:
        """With all that was admitted."""
        while self._admitted:
            index, incarnation = self._admitted.pop()
            request = pb.LeaveRequest(role="ROLE_WORKER", index=index, incarnation=incarnation, kind="LEAVE_KIND_ASKED")
            self.send_bytes("Leave", request.SerializeToString(), "a goodbye")

    def _arrive(self) -> None:
        """A repeat of a join has the answer of the first, as long as that is a member."""
        (join,) = self.requests("Join")
        answer = self._answer("Join", join.SerializeToString())
        self._incarnation = answer.admitted.incarnation
        self._incarnations.add(self._incarnation)

    def _answer(self, rpc: str, request: bytes) -> Any:
        call = self._channel.unary_unary(f"/{SERVICE.full_name}/{rpc}")
        answer = METHODS[rpc].output_type._concrete_class.FromString(call(request, timeout=30))
        if rpc == "Join" and answer.HasField("admitted"):
            self._admitted.add((pb.JoinRequest.FromString(request).index, answer.admitted.incarnation))
        return answer


class Scene:
    """A coordinator, under watch in mode bounded; honest members; a stranger and a member that has lost its mind."""

    def __init__(self, stage: Any, mode: str) -> None:
        job, began_s = MODES[mode], time.monotonic()
        self.drains = mode == "sync"  # the member has said that it stops by then, and nothing is steered any more
        make = Coordinator if mode == "sync" else lambda job, _: WatchedCoordinator(job)
        self.server = stage.coordinator(job, make=lambda s: make(job, s), now=lambda: time.monotonic() - began_s)
        self.honest = Honest(stage, self.server, stage.events.named, job)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self.server.port}")
        self.stranger = Caller(self._channel, stage.health(), 6, is_member=False)
        self.member = Caller(self._channel, stage.health(), 2, is_member=True)

    def close(self) -> None:
        self.member.leave()
        self.stranger.leave()
        self._channel.close()
        self.honest.check(with_liar=True)


@pytest.fixture(params=MODES)
def scene(stage, request, monkeypatch):
    monkeypatch.setattr("psruntime.rpc.server.servicer.NEXT_BEAT_S", 0.01)  # for claims of what the same caller holds
    scene = Scene(stage, request.param)
    yield scene
    scene.close()


@pytest.mark.long
def test_each_value_in_each_field(scene):
    """All boundary values one by one, in requests that are right otherwise."""
    for rpc in METHODS:
        scene.member.come_anew()
        codes = {scene.member.send(rpc, request) for request in scene.member.requests(rpc)}
        is_ok = rpc not in FOR_THE_CHIEF and not (rpc == "Control" and scene.drains)
        assert (OK in codes) == is_ok, f"what is meant to be right is not: {rpc} {codes}"
        for caller in (scene.member, scene.stranger):
            others = {what: other for request in caller.requests(rpc) for what, other in changed(request)}
            for what, other in others.items():
                caller.send(rpc, other, what)
                if rpc == "Join" and caller is scene.stranger:
                    caller.claim()  # so that what it said of its health is used
                    caller.leave()


def test_what_is_not_there_and_what_is_too_much(scene):
    """Messages that end too soon, have fields that nobody knows, or are none."""
    unknown = b"\xfa\x7f\x03abc" + b"\xf8\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for rpc in METHODS:
        for request in scene.stranger.requests(rpc):
            right = request.SerializeToString()
            expected = scene.stranger.send_bytes(rpc, right, "what is right")
            assert scene.stranger.send_bytes(rpc, right + unknown, "unknown fields") is expected
            for end in range(len(right)):
                scene.stranger.send_bytes(rpc, right[:end], f"its first {end} bytes")
        for junk in JUNK:
            scene.stranger.send_bytes(rpc, junk, repr(junk[:10]))
        for _ in range(EXAMPLES):
            noise = draw.randbytes(draw.randrange(1, 200))
            scene.stranger.send_bytes(rpc, noise, repr(noise))


def test_any_values_together(scene):
    for rpc, method in METHODS.items():
        requests = messages(method.input_type._concrete_class)
        callers = st.sampled_from([scene.stranger, scene.member])

        @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
        @given(requests, callers, st.booleans(), st.just(rpc))
        def check(request, caller, as_itself, rpc):
            if as_itself:
                caller.be_itself(request)
            caller.send(rpc, request, str(request))

        check()


def test_a_stranger_learns_no_incarnation(stage):
    """Whoever knows that of a member can act as the member: not even who asks as if it were one is told it."""
    honest = Honest(stage, stage.coordinator(JOB), stage.events.named)
    told = []
    with grpc.insecure_channel(honest.client.address) as channel:
        for role, index in PLACES:
            place = {"role": f"ROLE_{role.name}", "index": index, "worker_index": index, "incarnation": 7}
            for rpc, method in METHODS.items():
                join = {"join_id": "another", "job_id": JOB_ID, "waited": {}}
                join |= {"address": "127.0.0.1:8", "health_address": "127.0.0.1:9"}
                join["variables"] = to_wire(Model(SPECS), pb.Model).variables if role is Role.WORKER else []
                for request in whole(method.input_type._concrete_class, place | join):
                    try:
                        call = channel.unary_unary(f"/{SERVICE.full_name}/{rpc}")
                        told.append(call(request.SerializeToString(), timeout=30))
                    except grpc.RpcError as error:
                        told.append(error.details().encode())
    everything = b"".join(told)
    for incarnation in honest.incarnations:
        assert tag_of(incarnation).encode() in everything, "they are spoken of, by their tags"
        one = pb.AdmittedWorker(incarnation=incarnation).SerializeToString()[1:]
        for form in (one, f"{incarnation:x}".encode(), str(incarnation).encode()):
            assert form not in everything
    honest.check()
