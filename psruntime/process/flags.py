"""Command lines: one flag for each setting, the same names as in the configs and in a job file."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field
from typing import Any, NoReturn, TypeVar

from psruntime.config import JobConfig
from psruntime.config.job_settings import ON, SWITCH
from psruntime.config.process import DEFAULT_COORDINATOR, ProcessConfig, SecurityConfig, WorkerConfig, split_address
from psruntime.config.settings import HEADINGS, OF_THE_MODEL, Params, default_text, flag_of, settings_of, suggestion
from psruntime.errors import EXIT_USAGE, UsageError
from psruntime.process import job_file
from psruntime.process.job_file import TYPES, local_file, resolved

_HELP_COLUMN = 34
LIFELINES = ("end", "kill")  # what the end of stdin does
MOST_USED, CHECKED = "most used", "checked against the settings of the job"  # headings, with HEADINGS
OF_EVALUATION = ("model", "data_dir", "batch_size", "set", "seed", "eval_batches")  # that measuring a checkpoint needs
COORDINATOR = "PSRUNTIME_COORDINATOR"  # in the environment: the address of a job that a command asks
INPUT_SEED = {"seed": "context.seed of input_fn"}  # the help where no worker's index is mixed in
_Config = TypeVar("_Config")


class TextFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves a text below the flags as it is."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_HELP_COLUMN)


class _HelpAll(argparse._HelpAction):
    """As --help, of all flags."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> None:
        assert isinstance(parser, Parser)
        parser.shows_all = True
        super().__call__(parser, *arguments)


class _ListFlags(argparse.Action):
    """Writes a line for each flag, with its value, choices and help, for `psruntime completion`; ends.

    A line without a flag has the words that may follow the command.
    """

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.format_help()  # which decides whether there is a --help-all
        if isinstance(parser, Parser) and parser.offers:
            sys.stdout.write(f"\t\t{' '.join(parser.offers)}\t\n")
        for action in parser._actions:
            if action.help != argparse.SUPPRESS:
                choices = re.fullmatch(r"\{(.*)\}", str(action.metavar or ""))
                words = choices[1].split(",") if choices else action.choices or ()
                for flag in action.option_strings[-1:]:
                    value = "" if action.nargs == 0 else "value"
                    sys.stdout.write(f"{flag}\t{value}\t{' '.join(words)}\t{action.help or ''}\n")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """The flags of one command, of which --help lists the most used, and --help-all all, under their headings.

    A complaint is one line, and says what was probably meant.
    """

    def __init__(self, prog: str, description: str, first: Sequence[str] = (), usage: str = "") -> None:
        """first: names of the most used, in the order of the help."""
        super().__init__(
            prog=prog, description=description, usage=usage or f"{prog} [flags]", allow_abbrev=False, add_help=False,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=_HELP_COLUMN),
        )  # fmt: skip
        self.complaint = ""  # why the flags are refused
        self.shows_all = False
        self.offers: Sequence[str] = ()  # words that may follow the command, in a shell that completes
        self._first = first
        self._headings = {title: self.add_argument_group(title) for title in (MOST_USED, *HEADINGS, CHECKED)}
        self._headings[MOST_USED].add_argument("-h", "--help", action="help", help="show this text and end")
        self._help_all = self._headings[MOST_USED].add_argument("--help-all", action=_HelpAll)
        self.add_argument("--list-flags", action=_ListFlags, nargs=0, help=argparse.SUPPRESS)

    def heading(self, title: str, name: str = "") -> argparse._ArgumentGroup:
        """Where a flag goes, under this title unless its name is of the most used."""
        return self._headings[MOST_USED if name in self._first else title]

    def add_settings(
        self, config: type, only: Iterable[str] = (), defaults: Mapping[str, Any] | None = None,
        helps: Mapping[str, str] | None = None, checked: bool = False, but: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """The flags of a config, or of some of its settings.  A flag that is not given is absent from the namespace.

        defaults, helps: what the help says of those that this command has a default, or a use, of its own for.
        checked: whether they are only compared with the settings of the job.
        """
        for setting in settings_of(config):
            if (not only or setting.name in only) and setting.name not in but:
                heading = self.heading(CHECKED if checked else setting.metadata["heading"], setting.name)
                own = (defaults or {}).get(setting.name)
                text = (helps or {}).get(setting.name, setting.metadata["help"])
                _add(heading, setting, text, default_text(setting) if own is None else f"default: {own}")

    def format_help(self) -> str:
        """The help of the most used flags, or of all if `shows_all`."""
        every, used = self._action_groups, [self._positionals, self._headings[MOST_USED]]
        hides = any(a.help != argparse.SUPPRESS for group in every if group not in used for a in group._group_actions)
        self._help_all.help = "show all flags, by subject, and end" if hides else argparse.SUPPRESS
        order = ("help", "help_all", *self._first)
        self._headings[MOST_USED]._group_actions.sort(key=lambda a: order.index(a.dest) if a.dest in order else 99)
        try:
            self._action_groups = every if self.shows_all else used
            return super().format_help()
        finally:
            self._action_groups = every

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Unknown flags come first: that one is misspelt tells more than that the right one is missing."""
        words = list(sys.argv[1:] if args is None else args)
        for word in words[: words.index("--")] if "--" in words else words:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in self._option_string_actions:
                of_the_model = OF_THE_MODEL.get(flag.removeprefix("--").replace("-", "_"), "")
                hint = ", which has no effect here" if flag in _FLAGS else of_the_model
                hint = hint or suggestion(flag.replace("_", "-"), self._option_string_actions)
                self.error(f"unrecognized argument {flag}{hint}")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        address = re.fullmatch(r"unrecognized arguments: (\S+:[0-9]+)", message)
        if address and "--coordinator" in self._option_string_actions:
            message = f"unrecognized argument {address[1]}; write --coordinator {address[1]}"
        module = re.fullmatch(r"unrecognized arguments: (\w+)(\.py)?", message)
        if module and "--model" in self._option_string_actions and os.path.exists(f"{module[1]}.py"):
            message = f"unrecognized argument {module[1]}{module[2] or ''}; write --model {module[1]}"
        self.complaint = message
        hint = "" if message.endswith("?") else "; --help lists the flags"
        self.exit(EXIT_USAGE, f"{self.prog}: {message}{hint}\n")


class LenientParser(Parser):
    """The same flags, out of a command line that may be wrong elsewhere: it passes over flags that it does not know.

    Raises:
        UsageError: one that it knows has a value that cannot be read, or is missing; or --help is given.
    """

    def __init__(self) -> None:
        super().__init__("", "")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return argparse.ArgumentParser.parse_known_args(self, args, namespace)

    def print_help(self, file: Any = None) -> None:  # noqa: ARG002
        raise UsageError("--help")

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


_FLAGS = {
    flag_of(setting.name)
    for config in (JobConfig, WorkerConfig, ProcessConfig, SecurityConfig)
    for setting in settings_of(config)
}


def _add(heading: argparse._ArgumentGroup, setting: Field[Any], text: str, default: str) -> None:
    reads, switch = setting.metadata["reads"], setting.metadata["choices"] == SWITCH
    heading.add_argument(
        flag_of(setting.name),
        action=_AddParam if TYPES[str(setting.type)] is tuple else "store",
        dest=setting.name,
        type=_reader(reads, "") if reads else _READERS[TYPES[str(setting.type)]],
        nargs="?" if switch else None,
        const=ON if switch else None,
        default=argparse.SUPPRESS,
        required=setting.default is MISSING,
        metavar=_metavar(setting),
        help=f"{text} ({default})" if default else text,
    )


class _AddParam(argparse.Action):
    """Adds a parameter to those before it."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: Any) -> None:
        before: Params = getattr(namespace, self.dest, ())
        if value[0] in dict(before):
            parser.error(f"argument --{self.dest}: '{value[0]}' is given twice")
        setattr(namespace, self.dest, (*before, value))


def _reader(reads: Callable[[str], Any], wanted: str) -> Callable[[str], Any]:
    """The `type` of an argument: what makes its value of a word.  wanted: what a word must be for which that fails."""

    def read(word: str) -> Any:
        try:
            return reads(word)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be {wanted}, got '{word}'") from error

    return read


def _whole(word: str) -> int:
    """The whole number that a word says, also as 1e4."""
    if word.lstrip("+-").isdecimal():
        return int(word)
    if not (value := float(word)).is_integer():
        raise ValueError(word)
    return int(value)


whole_number, number = _reader(_whole, "a whole number"), _reader(float, "a number")
_READERS: dict[type, Callable[[str], Any]] = {int: whole_number, float: number, str: str}


def _metavar(setting: Field[Any]) -> str:
    if setting.metadata["choices"]:
        return "{" + ",".join(setting.metadata["choices"]) + "}"
    if setting.metadata["metavar"]:
        return str(setting.metadata["metavar"])
    if setting.name.endswith("_s"):
        return "S"
    return "FOLDER" if setting.name.endswith("_dir") else "N"


def add_process_flags(parser: Parser) -> None:
    """Where a process stands, and how it ends."""
    parser.add_settings(ProcessConfig)
    add_lifeline_flag(parser)


def add_security_flags(parser: Parser, serves_job: bool = False) -> None:
    """What protects the control plane.  serves_job: the command may start ps 0."""
    parser.add_settings(SecurityConfig, but=() if serves_job else ("read_token_file",))
    parser.heading("security", "insecure").add_argument(
        "--insecure", action="store_true", help="do without TLS also between machines: any client that reaches the "
        "coordinator can change the job, and read a token (default: the environment's PSRUNTIME_INSECURE)",
    )  # fmt: skip


def add_lifeline_flag(parser: Parser) -> None:
    """For a process that a launcher starts."""
    parser.heading("faults").add_argument(
        "--lifeline", nargs="?", choices=LIFELINES, const=LIFELINES[0], default="", help="end when stdin does, so that "
        "no process outlives its launcher: end, in good order as after SIGTERM, or kill, at once as by SIGKILL",
    )  # fmt: skip


def add_coordinator_flags(parser: Parser) -> None:
    """For a command that asks a running job: its address, as --coordinator or the first word, and what protects it."""
    default = f"the environment's {COORDINATOR}, or {DEFAULT_COORDINATOR}"
    parser.add_settings(ProcessConfig, only=("coordinator",), defaults={"coordinator": default})
    add_security_flags(parser)


def add_coordinator_word(parser: Parser) -> None:
    """The address of the coordinator as the only word of a command."""
    text = "the same as --coordinator HOST:PORT"
    parser.add_argument("coordinator", nargs="?", default=argparse.SUPPRESS, metavar="HOST:PORT", help=text)


def coordinator_of(arguments: argparse.Namespace) -> str:
    """The address of the job that a command asks.

    Raises:
        UsageError: it is no HOST:PORT.
    """
    address: str = getattr(arguments, "coordinator", "") or os.environ.get(COORDINATOR) or DEFAULT_COORDINATOR
    split_address(address)
    return address


def add_checkpoint_dir_flag(parser: Parser) -> None:
    """For a command that reads checkpoints."""
    helps = {"checkpoint_dir": "folder of the job's checkpoints, which are read (required)"}
    parser.add_settings(JobConfig, only=("checkpoint_dir",), helps=helps)


def add_job_file_flag(parser: Parser) -> None:
    """For a command that sets the job's settings."""
    parser.heading("job", "job").add_argument(
        "--job", default="", type=local_file, metavar="FILE", help="TOML file with the job's settings"
    )


def given(arguments: argparse.Namespace, config: type) -> dict[str, Any]:
    """The settings of a config that stand on the command line."""
    names = [setting.name for setting in settings_of(config)]
    return resolved({name: value for name, value in vars(arguments).items() if name in names})


def checkpoint_folder(arguments: argparse.Namespace) -> str:
    """The folder of a command that reads checkpoints.

    Raises:
        UsageError: none is given.
    """
    folder = config_of(JobConfig, arguments).checkpoint_dir
    if not folder:
        raise UsageError("--checkpoint-dir is missing: the folder of the job's checkpoints")
    return folder


def config_of(config: type[_Config], arguments: argparse.Namespace) -> _Config:
    """A config with the settings that stand on the command line, and its defaults.

    Raises:
        UsageError: a value is out of range.
    """
    return config(**given(arguments, config))


def security_config(arguments: argparse.Namespace) -> SecurityConfig:
    """What protects the control plane: the flags, over the environment."""
    insecure = {"insecure": "1"} if getattr(arguments, "insecure", False) else {}
    return SecurityConfig.of({**given(arguments, SecurityConfig), **insecure})


def process_config(arguments: argparse.Namespace) -> ProcessConfig:
    return config_of(ProcessConfig, arguments)


def worker_config(arguments: argparse.Namespace) -> WorkerConfig:
    """The model and its data.

    Raises:
        UsageError: a value is out of range, or --data-dir names a folder of this machine that is not there.
    """
    worker = WorkerConfig(**worker_settings(arguments))
    job_file.require_there(worker.data_dir)
    return worker


def worker_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of a worker that a process is given."""
    return job_file.worker_settings(getattr(arguments, "job", ""), given(arguments, WorkerConfig))


def job_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of the job that a process is given."""
    return job_file.job_settings(arguments.job, given(arguments, JobConfig))
