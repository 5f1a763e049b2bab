"""The error family, and the exit code that each kind ends a process with.

Every message is one line with the error, its place and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence

EXIT_DONE = 0  # the job reached DONE
EXIT_FAILED = 1  # the job failed
EXIT_USAGE = 2  # bad usage or configuration
EXIT_RESTART = (
    75  # the process lost its membership or crashed, and the job can continue with it restarted (EX_TEMPFAIL)
)


class PsRuntimeError(Exception):
    """Base of all errors that psruntime raises on purpose; its text is meant for the user.

    detail: lines that the log has below the text, such as a traceback; usually none.
    """

    exit_code = EXIT_RESTART
    detail = ""


class UsageError(PsRuntimeError):
    """A flag, a setting, a model or a request is malformed; repeating it cannot help."""

    exit_code = EXIT_USAGE


class CredentialsError(UsageError):
    """The coordinator refuses this process, or this process the coordinator, by a certificate or the token."""


class IndexHeldError(UsageError):
    """A live member has the requested index."""


class ModelDiffersError(UsageError):
    """A worker's model is not the model of the job."""


class OtherJobError(UsageError):
    """A process is of another job than the coordinator that it called."""


class CannotPrepareError(PsRuntimeError):
    """This worker cannot prepare the view as the chief, and another may: it does not see the newest checkpoint."""


class DeviceError(PsRuntimeError):
    """A device of this machine failed, or has no memory left: the process ends, and may be started again."""


class ReplacedError(PsRuntimeError):
    """The caller's incarnation is not, or no longer, a member: it joins again or exits."""


class UnreachableError(PsRuntimeError):
    """The coordinator did not answer in time."""


class JobOverError(PsRuntimeError):
    """The job has ended without a failure: there is nothing left to do."""


class JobDoneError(JobOverError):
    """The job is already DONE: nothing is left to do, which is no failure."""

    exit_code = EXIT_DONE


class JobStoppedError(JobOverError):
    """The job was asked to stop: it continues from its last checkpoint when it is started again."""


class JobFailedError(PsRuntimeError):
    """The job ended as FAILED, or this error ends it."""

    exit_code = EXIT_FAILED


class UserCodeError(JobFailedError):
    """The user's own code failed while the job ran: an operation of the model, or the input.  It would fail again."""


class PassingError(UserCodeError):
    """The user's own code failed for a reason that may pass, such as a file or a service that is away for a moment.

    The job continues with the others, and with this process when it is started again.
    """

    exit_code = EXIT_RESTART


class CheckpointError(JobFailedError):
    """A checkpoint cannot be written or read, or does not fit the model."""


class FolderOwnedError(CheckpointError):
    """The folder of the checkpoints belongs to another job, which is running."""

    exit_code = EXIT_USAGE


class DivergedError(CheckpointError):
    """A parameter is not finite: another try, without a push in between, would find the same."""


class PassedRoundError(CheckpointError):
    """A round was applied while the parameters were copied, so the copy is of no round; another may be."""


class DamagedCheckpointError(CheckpointError):
    """The files of a checkpoint cannot be read; an older one may be whole."""


class StopRequested(PsRuntimeError):
    """This process was asked to stop (SIGTERM, SIGINT) while it waited."""


def some(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """For a message: the first of these texts, and the number of the others."""
    first = str.join(separator, texts[:most])
    if len(texts) <= most:
        return first
    return f"{first}{' ' if separator == ', ' else separator}and {len(texts) - most} more"
