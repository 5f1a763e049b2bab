"""How a script leaves its block, on a session of this process and a membership that says what the test wants."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.classic.hooks import ChiefOnly, StepHook, Tally, Wrapped
from psruntime.classic.script_session import ScriptSession
from psruntime.classic.shared_session import SharedSession
from psruntime.core.members.messages import Ending, LeaveKind
from psruntime.errors import JobDoneError, JobFailedError, PsRuntimeError, ReplacedError


class Sessions(tf1.train.SessionCreator):  # type: ignore[misc]
    assignment = "assignment"

    def __init__(self, story: list[str]) -> None:
        self.story = story

    def create_session(self) -> Any:
        self.session = tf1.Session()
        return self.session

    def renew(self) -> None:
        self.story.append("renew")
        self.create_session()


class ScriptMember:
    """A membership, and its place; `rests` are what becomes of the worker, an exception to be raised included."""

    def __init__(self, story: list[str], *rests: Ending | Exception) -> None:
        self.story, self.rests, self.joined, self.control_plane = story, list(rests), self, self
        self.gone = False
        self.was_stopped: Exception | None = None
        self.was_asked = False
        self.exit_code: int | None = None

    def await_end(self, assignment: Any) -> Ending:
        self.story.append("rest")
        rest = self.rests.pop(0)
        if isinstance(rest, Exception):
            raise rest
        return rest

    def is_chief(self) -> bool:
        return True

    def is_current(self, assignment: Any) -> bool:
        return True

    def saved(self, global_step: int) -> None:
        pass

    def closed_part(self) -> None:
        pass

    def report_finished(self, assignment: Any) -> None:
        self.story.append("finished")

    def back_off(self, why: str) -> None:
        self.story.append("pause")

    def takes_steps(self) -> bool:
        return True

    def fail(self, error: BaseException) -> None:
        self.leave(LeaveKind.ERROR, type(error).__name__)

    def leave(self, kind: LeaveKind, reason: str) -> None:
        if not self.gone:
            self.story.append(f"leave {kind}: {reason}")
        self.gone = True

    def log(self, event: str, **facts: Any) -> None:
        self.story.append(f"{event} {facts['reason']}")


class Ends(tf1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, name: str, story: list[str], failures: int = 0) -> None:
        self.name, self.story, self.failures = name, story, failures

    def end(self, session: Any) -> None:
        assert session.run(tf1.constant(1)) == 1
        if self.failures:
            self.failures -= 1
            raise tf1.errors.UnavailableError(None, None, "a ps is gone")
        self.story.append(f"end of {self.name}")


def session(story: list[str], *rests: Ending | Exception, failures: int = 0) -> tuple[ScriptSession, ScriptMember]:
    member = ScriptMember(story, *rests)
    chief = ChiefOnly(Ends("the chief's", story, failures), member.is_chief, lambda: None, member.log)  # type: ignore[arg-type]
    own = Wrapped(Ends("its own", story), member.log)
    hook = StepHook(None, None, member, Tally(), member.log)  # type: ignore[arg-type]
    hook.before_run = lambda _: None  # type: ignore[method-assign]
    return ScriptSession(member, Sessions(story), hook, [chief], [own], 1.0), member  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf1.Graph().as_default():
        yield


ENDS: dict[str, tuple[list[Ending | Exception], int, list[str]]] = {
    "others": ([Ending.OVER], 0, ["rest"]),
    "chief": ([Ending.CLOSE, Ending.OVER], 0, ["rest", "end of the chief's", "finished", "rest"]),
    "view lost": (
        [Ending.RESUME, Ending.CLOSE, Ending.OVER], 0,
        ["rest", "renew", "rest", "end of the chief's", "finished", "rest"],
    ),
    "ps lost while it saves": (
        [Ending.CLOSE, Ending.CLOSE, Ending.OVER], 1,
        ["rest", "pause", "renew", "rest", "end of the chief's", "finished", "rest"],
    ),
    "done without it": ([JobDoneError("done")], 0, ["rest"]),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_block(end: str) -> None:
    rests, failures, told = ENDS[end]
    story: list[str] = []
    with session(story, *rests, failures=failures)[0]:
        pass
    assert story == ["end of its own", *told, "leave over: the job is done"]


@pytest.mark.parametrize(
    ("error", "code"), [(JobFailedError("ps 0 is gone"), 1), (ReplacedError("lost its place"), 75)]
)
def test_a_job_that_fails_at_the_end_ends_the_script(error: PsRuntimeError, code: int) -> None:
    story: list[str] = []
    with pytest.raises(SystemExit) as ended, session(story, error)[0]:
        pass
    assert ended.value.code == code
    assert story[-2:] == [f"leave error: {type(error).__name__}", f"error {error}"]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_error_in_the_block_leaves_at_once(error: BaseException) -> None:
    story: list[str] = []
    with pytest.raises(type(error)), session(story)[0]:
        raise error
    assert story == [f"leave error: {type(error).__name__}"]


@pytest.mark.parametrize("error", [StopIteration(), tf1.errors.OutOfRangeError(None, None, "no more data")])
def test_the_end_of_the_data_is_no_error(error: Exception) -> None:
    story: list[str] = []
    with session(story, Ending.OVER)[0]:
        raise error
    assert story[-1] == "leave over: the job is done"


def test_a_job_that_is_done_ends_the_loop_and_a_failed_one_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    story: list[str] = []
    script, _ = session(story, Ending.OVER)
    fails: list[Exception] = [JobDoneError("done"), JobFailedError("gone")]

    def run(*_: Any) -> Any:
        raise fails.pop(0)

    monkeypatch.setattr(SharedSession, "run", run)
    with pytest.raises(tf1.errors.OutOfRangeError, match="done"):
        script.run("anything")
    with pytest.raises(SystemExit) as ended:
        script.run("anything")
    assert ended.value.code == 1 and story == ["leave error: JobFailedError", "error gone"]


def test_a_session_is_closed_once() -> None:
    script, _ = session([], Ending.OVER)
    script.close()
    with pytest.raises(RuntimeError, match="the session is closed"):
        script.close()
