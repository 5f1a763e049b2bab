"""Acts out the inputs of a scenario on a coordinator; test_scenarios.py says how one is written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice

from psruntime.commands.control import command_of
from psruntime.config import JobConfig
from psruntime.config.schedule import named
from psruntime.core.clocks.adaptive_bound import STEPS
from psruntime.core.coordinator import steered
from psruntime.core.coordinator.answers import job_status
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role, tag_of
from psruntime.core.members.messages import (
    NOT_JOINED,
    Answer,
    GraphsBuilt,
    Join,
    LeaveKind,
    NotYet,
    Prepared,
    PsBeat,
    WorkerBeat,
)
from psruntime.core.members.view import UNKNOWN, Past
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.rounds.round_messages import ActionKind, Applied, Broken, Pushed, Report
from psruntime.core.steering.commands import SteeringStatus
from psruntime.errors import PsRuntimeError

FLAGS = ("chief", "restore", "admitted_by_ps", "close", "stopping", "save", "leave")  # of the instructions
VARIABLES = "w[3,4]b[4]"  # of a worker of which nothing is said


class Scenario:
    """A coordinator, and what its members have heard and said so far."""

    def __init__(self, settings: str) -> None:
        pairs = (pair.split("=", 1) for pair in shlex.split(settings))
        values = {k: float(v) if k.endswith("_s") else int(v) if v.isdecimal() else v for k, v in pairs}
        self.core = Coordinator(JobConfig(**values), 0.0)  # type: ignore[arg-type]
        self.now_s = 0.0
        self.latest: dict[str, int] = {}  # "worker 0" -> incarnation
        self.asked_s: dict[str, float] = {}  # join id -> when it first asked
        self.told: dict[int, Answer] = {}  # by incarnation
        self.said: dict[int, str] = {}  # by incarnation: the facts of its last heartbeat
        self.revision = 0  # of the rounds
        self.commands = 0

    def act(self, line: str) -> list[str]:
        """The answer to one input, and the events."""
        lines = self.answers(line)
        for incarnation in range(1, 1 + max(self.latest.values(), default=0)):
            lines = [text.replace(tag_of(incarnation), str(incarnation)) for text in lines]
        return lines

    def answers(self, line: str) -> list[str]:
        verb, _, rest = line.partition(" ")
        try:
            if verb in ("wait", "pause", "status"):
                return getattr(self, verb)(rest)
            if verb == "control":
                return self.control(rest) + self.events()
            role, index, *facts = rest.split(" ", 2)
            return getattr(self, verb)(f"{role} {index}", " ".join(facts)) + self.events()
        except PsRuntimeError as error:
            return [f"{type(error).__name__}: {error}", *self.events()]

    def events(self) -> list[str]:
        effects = self.core.take_effects()
        lines = [f"* {e.name} " + " ".join(f"{k}={v}" for k, v in e.facts.items()) for e in effects.events]
        lines += [f"> {' '.join(f'{k}={v}' for k, v in record.items())}" for record in effects.records]
        if self.core.state.mode == "sync" and self.revision != effects.actions_revision:
            self.revision = effects.actions_revision
            lines.append("! ask for your next action")
        return lines

    def who(self, member: str) -> tuple[Role, int, int]:
        name, _, incarnation = member.partition("#")
        role, index = name.split()
        return Role(role), int(index), int(incarnation or self.latest[name])

    def join(self, member: str, rest: str) -> list[str]:
        role, index = member.split()
        facts = dict(pair.split("=") for pair in rest.split())
        host, join_id = facts["at"].rsplit(":", 1)[0], facts.get("as", f"{member} at {facts['at']}")
        waited_s = self.now_s - self.asked_s.setdefault(join_id, self.now_s)
        variables = re.findall(r"(\w+)\[([\d,]+)\]", facts.get("with", VARIABLES) if role == "worker" else "")
        specs = tuple(VariableSpec(name, tuple(map(int, shape.split(","))), "float32") for name, shape in variables)
        job_id = facts.get("of", self.core.state.job.job_id)
        step = int(facts.get("knows", 0))  # of the job under an earlier coordinator
        past = Past(began=True, global_step=step, saved_step=step) if step else UNKNOWN
        join = Join(Role(role), int(index), facts["at"], f"{host}:9", join_id, job_id, waited_s, specs, past=past)
        answer = self.core.join(join, 1 + max(self.latest.values(), default=0), self.now_s)
        if isinstance(answer, NotYet):
            return [f"not yet: {answer.reason} (its health: {answer.holder and answer.holder.health_address})"]
        self.latest[member] = answer.incarnation
        return [self.heard(member, answer)]

    def beat(self, member: str, said: str) -> list[str]:
        role, index, incarnation = self.who(member)
        self.said[incarnation] = said
        facts = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", said)}
        told, step = self.told[incarnation].instructions, facts.get("step", 0)
        asked = "asked" in said
        beat: PsBeat | WorkerBeat = PsBeat(told.fence_revision, told.view.number, step, asked_to_stop=asked)
        if role is Role.WORKER:
            beat = WorkerBeat(
                told.view.number, facts.get("steps", 0), step, "stopped" in said, closed_parts=facts.get("parts", 0),
                saved_step=facts.get("saved"), asked_to_stop=asked, prepares=facts.get("prepares", 0),
                saves="saving" in said, paused_epoch=facts.get("paused", 0), step_times_s=took(said),
                graphs=built(said),
            )  # fmt: skip
        return [self.heard(member, self.core.heartbeat(role, index, incarnation, beat, self.now_s))]

    def prepared(self, member: str, facts: str) -> list[str]:
        said = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", facts)}
        return self.report(self.core.report_prepared, member, Prepared(said["step"], said.get("attempt", 0)))

    def refuses(self, member: str, obstacle: str) -> list[str]:
        return self.report(self.core.report_obstacle, member, obstacle)

    def finished(self, member: str, _: str) -> list[str]:
        return self.report(self.core.report_finished, member)

    def report(self, method: Callable[..., Answer], member: str, *facts: Prepared | str) -> list[str]:
        _, index, incarnation = self.who(member)
        view = self.told[incarnation].instructions.view.number
        return [self.heard(member, method(index, incarnation, view, *facts, self.now_s))]

    def next(self, member: str, rest: str) -> list[str]:
        _, index, incarnation = self.who(member)
        view, said = self.told[incarnation].instructions.view.number, rest.split(" in view ")
        view = int(said[1]) if len(said) == 2 else view
        action = self.core.next_action(index, incarnation, view, done_of(said[0]), self.now_s)
        text = f"{member.partition('#')[0]}#{incarnation}: {action.kind} {action.round}/{action.attempt}"
        if action.kind in (ActionKind.PUSH, ActionKind.APPLY):
            text += f", opened as {action.opened}"
        if closes := action.closes:
            text += (
                f", closes {closes.round}/{closes.attempt} of {closes.members} members, {closes.examples:g} examples"
            )
        return [text + (f"; {action.reason}" if action.reason else "")]

    def control(self, words: str) -> list[str]:
        self.commands += words != "again"
        name = f"command {self.commands}"
        if words == "again":
            reply = self.core.control_reply(name)
        else:
            command = replace(command_of(words.split()), request_id=name, by="host-o:9")
            reply = self.core.control(command, self.now_s)
        return [f"{reply.outcome}: {reply.text}"]

    def status(self, _: str) -> list[str]:
        status = job_status(self.core.state, self.now_s)
        line = f"{status.phase}, global step {status.global_step}, lost {status.steps_lost}; {status.reason}"
        return [line, *self.in_force(status.steering)]

    def in_force(self, status: SteeringStatus) -> list[str]:
        if not (status.settings.revision or status.pending):
            return []
        pending = f"; pending: {', '.join(status.pending)}: {status.waits_for}" if status.pending else ""
        return [f"mode {steered.mode_of(self.core.state)} from global step {status.settings.from_global_step}{pending}"]

    def leave(self, member: str, facts: str) -> list[str]:
        kind, _, reason = facts.partition(": ")
        self.core.leave(*self.who(member), LeaveKind(kind), reason, self.now_s)
        return []

    def starts(self, member: str, _: str) -> list[str]:
        self.core.starts(int(member.split()[1]), self.now_s)
        return []

    def ends(self, member: str, facts: str) -> list[str]:
        (role, index), (kind, _, reason) = member.split(), facts.partition(": ")
        self.core.leave(Role(role), int(index), NOT_JOINED, LeaveKind(kind), reason, self.now_s)
        return []

    def gone(self, member: str, _: str) -> list[str]:
        self.core.confirm_lost(self.who(member)[2], self.now_s)
        return []

    def wait(self, rest: str) -> list[str]:
        """A tick each second; members repeat their last heartbeat.  Tells when there is news, and which."""
        seconds, *members = re.findall(r"\d+(?= s)|\w+ \d+(?=,| beat)", rest)
        lines = []
        for _ in range(int(seconds)):
            news = self.pause("1 s")
            for member in list(members):
                try:
                    news += self.beat(member, self.said.get(self.who(member)[2], "")) + self.events()
                except PsRuntimeError as error:
                    members.remove(member)
                    news += [f"{type(error).__name__}: {error}", *self.events()]
            lines += [f"after {self.now_s:g} s: {line}" for line in news if "nothing new" not in line]
        return lines

    def pause(self, rest: str) -> list[str]:
        self.now_s += int(rest.removesuffix(" s"))
        self.core.advance(self.now_s)
        return self.events()

    def heard(self, member: str, answer: Answer) -> str:
        last, self.told[answer.incarnation] = self.told.get(answer.incarnation), answer
        floor = self.core.state.pace.floor
        s, name = answer.instructions, f"{member.partition('#')[0]}#{answer.incarnation}"
        if last is not None and last.revision == answer.revision:
            return f"{name}: nothing new, floor {floor}"
        view = f"view {s.view.number} ({' '.join(e.address for e in s.view.ps)})" if s.view.number else "no view"
        flags = [flag.replace("_", " ") for flag in FLAGS if getattr(s, flag)]
        table = " ".join(f"worker {index}#{n}" for index, n in s.admitted)
        fence = [f"admits {table or 'nobody'}"] if member.startswith("ps") else []
        if s.settings.revision:
            fence.append(f"mode {named(s.settings.mode, s.settings.bound)} of settings {s.settings.revision}")
        if s.pause_epoch:
            fence.append(f"pause {s.pause_epoch} ({s.pause_reason})")
        if s.build:
            fence.append(f"to build mode {s.build} ({s.build_number})")
        return f"{name}: {', '.join([s.phase.value, view, *flags, *fence, f'floor {floor}'])}; {s.reason}"


def took(said: str) -> tuple[float, ...]:
    """What a worker says of its last steps: `took=80,10,10` in milliseconds, again and again."""
    found = re.search(r"took=([\d,]+)", said)
    return tuple(islice(cycle(int(ms) / 1000 for ms in found[1].split(",")), STEPS)) if found else ()


def built(said: str) -> GraphsBuilt:
    """The graphs of a worker: both, or `built=pushes` or `built=rounds`, and `cannot build 1: WHY`."""
    kind, failure = re.search(r"built=(\w+)", said), re.search(r"cannot build (\d+): (.*)", said)
    has = kind[1] if kind else ""
    return GraphsBuilt(has != "pushes", has != "rounds", *((failure[2], int(failure[1])) if failure else ()))


def done_of(text: str) -> Report | None:
    """What `next` says: `pushed 3/5 batch=0 examples=8 [apart]`, `applied 3/5 step=3`, `broken 3/5 REASON`."""
    if not text:
        return None
    verb, numbers, facts = text.split(" ", 2)
    number, attempt = map(int, numbers.split("/"))
    if verb == "broken":
        return Broken(number, attempt, facts)
    values = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", facts)}
    if verb == "applied":
        return Applied(number, attempt, values["step"])
    return Pushed(number, attempt, values["batch"], values["examples"], facts.endswith(" apart"))
