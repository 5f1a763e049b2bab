"""The error family: what can go wrong, and the exit code each kind ends a process with.

Every message is one line that says what is wrong, where, and what to do about it.
"""

from __future__ import annotations

EXIT_DONE = 0  # the job reached DONE
EXIT_FAILED = 1  # the job failed
EXIT_USAGE = 2  # bad usage or configuration
EXIT_LOST_PLACE = 75  # the process lost its place and may be restarted (EX_TEMPFAIL of sysexits.h)


class PsRuntimeError(Exception):
    """Base of all errors that psruntime raises on purpose; its text is meant for the user."""

    exit_code = EXIT_FAILED


class UsageError(PsRuntimeError):
    """A flag, a setting, a model or a request is malformed; repeating it cannot help."""

    exit_code = EXIT_USAGE


class IndexHeldError(UsageError):
    """A live member holds the index that was asked for."""


class ModelDiffersError(UsageError):
    """A worker's model is not the model of the job."""


class ReplacedError(PsRuntimeError):
    """The caller's incarnation is not, or no longer, a member: it joins again or exits."""

    exit_code = EXIT_LOST_PLACE


class UnreachableError(PsRuntimeError):
    """The coordinator did not answer in time."""

    exit_code = EXIT_LOST_PLACE


class JobDoneError(PsRuntimeError):
    """The job is already DONE: nothing is left to do, which is no failure."""

    exit_code = EXIT_DONE


class JobFailedError(PsRuntimeError):
    """The job ended as FAILED, or this error ends it."""


class CheckpointError(JobFailedError):
    """A checkpoint cannot be written or read, or does not fit the model."""


class StopRequested(PsRuntimeError):
    """This process was asked to stop (SIGTERM, SIGINT) while it waited."""
