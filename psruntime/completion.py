"""Writes what completes the commands, their flags and the choices of these in a shell.

psruntime completion bash|zsh|fish

The words are those of the parsers now: write them anew after an update of psruntime.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from shlex import quote
from typing import NamedTuple

from psruntime import cli
from psruntime.cli import COMMANDS, OPTIONS
from psruntime.errors import EXIT_DONE
from psruntime.process import flags

PROG = "psruntime completion"
HELP = "help"
BASH = """_psruntime() {{
    local words command=${{COMP_WORDS[1]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    [ "$COMP_CWORD" -gt 1 ] || command=
    case "$command $previous" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _psruntime psruntime
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


class Flag(NamedTuple):
    """One of a command, with its help; without a name, the words that may follow the command.

    value: empty if it takes none.  choices: of the value, separated by spaces.
    """

    command: str
    name: str
    value: str
    choices: str
    help: str


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the text to stdout; returns the exit code."""
    parser = flags.Parser(PROG, "Writes what completes psruntime in a shell.", usage=f"{PROG} {{{','.join(SHELLS)}}}")
    parser.offers = tuple(SHELLS)
    parser.add_argument("shell", choices=SHELLS, help="the shell; see docs/operations.md for where it looks")
    shell = parser.parse_args(argv).shell
    sys.stdout.write(SHELLS[shell]([flag for command in COMMANDS for flag in flags_of(command)]))
    return EXIT_DONE


def flags_of(command: str) -> Iterator[Flag]:
    """The flags of a command, as its parser lists them."""
    with redirect_stdout(io.StringIO()) as listed, suppress(SystemExit):
        cli.main([command, "--list-flags"])
    for line in listed.getvalue().splitlines():
        yield Flag(command, *line.split("\t"))


def bash(found: Sequence[Flag]) -> str:
    """A function that looks at the command and the word before: a flag with a value, or any other.

    A value without choices may be the name of a file, which bash completes where nothing else is offered.
    """
    cases = {" *": " ".join([*COMMANDS, HELP, *OPTIONS]), f"{HELP} *": " ".join(COMMANDS)}
    cases |= {f"{flag.command} {flag.name}": flag.choices for flag in found if flag.value}
    cases |= {f"{each} *": " ".join(f.name or f.choices for f in found if f.command == each) for each in COMMANDS}
    lines = [f"        {_pattern(case)}) words={quote(words)} ;;" for case, words in cases.items()]
    return BASH.format(cases="\n".join(lines))


def _pattern(case: str) -> str:
    """A pattern of `case`, in which only the star at the end is one."""
    return f"{quote(case.removesuffix('*'))}*" if case.endswith("*") else quote(case)


def zsh(found: Sequence[Flag]) -> str:
    """That of bash, which zsh can use."""
    return ZSH + bash(found)


def fish(found: Sequence[Flag]) -> str:
    """A line for each command and flag, with its help."""
    first = "complete -c psruntime -n __fish_use_subcommand"
    lines = [f"{first} -xa {name} -d {quote(text)}" for name, text in COMMANDS.items()]
    lines += [
        f"{first} -xa {HELP}",
        f"complete -c psruntime -n '__fish_seen_subcommand_from {HELP}' -xa {quote(' '.join(COMMANDS))}",
    ]
    for flag in found:
        of = quote(f"__fish_seen_subcommand_from {flag.command}")
        name = f" -l {flag.name.strip('-')} -d {quote(flag.help)}" if flag.name else ""
        value = f" -xa {quote(flag.choices)}" if flag.choices else " -r" if flag.value else ""
        lines.append(f"complete -c psruntime -n {of}{name}{value}")
    return "\n".join([*lines, ""])


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
