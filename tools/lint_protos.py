"""House rules for protos, checked on the compiled descriptors.

One function for each rule; it takes a compiled file and yields a line for each violation.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

# Field numbers in descriptor.proto, of which the paths to comments are made.
FILE_MESSAGE, FILE_ENUM, FILE_SERVICE = 4, 5, 6
MESSAGE_FIELD, MESSAGE_NESTED, MESSAGE_ENUM, MESSAGE_ONEOF = 2, 3, 4, 8
ENUM_VALUE, SERVICE_METHOD = 2, 2

Location = tuple[int, ...]  # where a declaration stands, as in SourceCodeInfo
NUMBERS_OF_TIME = re.compile(r".*_(s|ms|us|ns|sec|secs|seconds|millis|minutes|timeout|deadline)$")


@dataclass(frozen=True)
class Compiled:
    """One proto with the comments that stand in it."""

    proto: FileDescriptorProto
    comments: dict[Location, str]

    def uncommented(self, path: Location, name: str) -> Iterator[str]:
        if not self.comments.get(path):
            yield f"{name} has no comment"

    def messages(self) -> Iterator[tuple[Location, str, DescriptorProto]]:
        """Every message with its path and full name, nested ones too, entries of maps excepted."""
        todo = [((FILE_MESSAGE, i), m.name, m) for i, m in enumerate(self.proto.message_type)]
        while todo:
            path, name, message = todo.pop(0)
            if not message.options.map_entry:
                yield path, name, message
            todo += [((*path, MESSAGE_NESTED, i), f"{name}.{m.name}", m) for i, m in enumerate(message.nested_type)]

    def fields(self) -> Iterator[tuple[Location, str, FieldDescriptorProto]]:
        for path, name, message in self.messages():
            for i, field in enumerate(message.field):
                yield (*path, MESSAGE_FIELD, i), f"{name}.{field.name}", field

    def enums(self) -> Iterator[tuple[Location, EnumDescriptorProto]]:
        for i, enum in enumerate(self.proto.enum_type):
            yield (FILE_ENUM, i), enum
        for path, _, message in self.messages():
            for i, enum in enumerate(message.enum_type):
                yield (*path, MESSAGE_ENUM, i), enum


def package_has_a_version(file: Compiled) -> Iterator[str]:
    if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)*\.v\d+", file.proto.package):
        yield f"package '{file.proto.package}' does not end in a version like .v1"


def folder_matches_package(file: Compiled) -> Iterator[str]:
    folder = file.proto.name.rpartition("/")[0]
    if folder != file.proto.package.replace(".", "/"):
        yield f"package '{file.proto.package}' lies in folder '{folder}'"


def everything_is_commented(file: Compiled) -> Iterator[str]:
    for path, name, _ in file.fields():
        yield from file.uncommented(path, f"field {name}")
    for path, name, message in file.messages():
        for i, oneof in enumerate(message.oneof_decl):
            if not oneof.name.startswith("_"):  # protoc makes one of these for each `optional`
                yield from file.uncommented((*path, MESSAGE_ONEOF, i), f"oneof {name}.{oneof.name}")
    for path, enum in file.enums():
        yield from file.uncommented(path, f"enum {enum.name}")
        for i, value in enumerate(enum.value):
            yield from file.uncommented((*path, ENUM_VALUE, i), f"enum value {value.name}")
    for i, service in enumerate(file.proto.service):
        yield from file.uncommented((FILE_SERVICE, i), f"service {service.name}")
        for j, rpc in enumerate(service.method):
            yield from file.uncommented((FILE_SERVICE, i, SERVICE_METHOD, j), f"rpc {service.name}.{rpc.name}")


def enum_values_carry_the_prefix(file: Compiled) -> Iterator[str]:
    for _, enum in file.enums():
        prefix = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", enum.name).upper() + "_"
        if enum.value[0].name != prefix + "UNSPECIFIED":
            yield f"enum {enum.name}: the zero value is {enum.value[0].name}, not {prefix}UNSPECIFIED"
        for value in enum.value:
            if not value.name.startswith(prefix):
                yield f"enum value {value.name} lacks the prefix {prefix}"


def services_end_in_service(file: Compiled) -> Iterator[str]:
    for service in file.proto.service:
        if not service.name.endswith("Service"):
            yield f"service {service.name} does not end in Service"


def rpcs_have_their_own_messages(file: Compiled) -> Iterator[str]:
    for service in file.proto.service:
        for rpc in service.method:
            wanted = [f".{file.proto.package}.{rpc.name}{kind}" for kind in ("Request", "Response")]
            if [rpc.input_type, rpc.output_type] != wanted:
                yield f"rpc {rpc.name} does not take {rpc.name}Request and answer {rpc.name}Response"


def times_are_durations(file: Compiled) -> Iterator[str]:
    for _, name, field in file.fields():
        is_rate = field.name.endswith("_per_s")
        if field.type != FieldDescriptorProto.TYPE_MESSAGE and NUMBERS_OF_TIME.match(field.name) and not is_rate:
            yield f"field {name} is a time: make it a google.protobuf.Duration"


def steps_and_bytes_are_int64(file: Compiled) -> Iterator[str]:
    for _, name, field in file.fields():
        is_number = field.type != FieldDescriptorProto.TYPE_STRING  # a range of steps is a text
        if re.search(r"_(steps|bytes)$", field.name) and is_number and field.type != FieldDescriptorProto.TYPE_INT64:
            yield f"field {name} is not an int64"


def no_opaque_bytes(file: Compiled) -> Iterator[str]:
    for _, name, field in file.fields():
        if field.type == FieldDescriptorProto.TYPE_BYTES or field.type_name == ".google.protobuf.Any":
            yield f"field {name} is opaque: spell its contents out"


RULES = (
    package_has_a_version,
    folder_matches_package,
    everything_is_commented,
    enum_values_carry_the_prefix,
    services_end_in_service,
    rpcs_have_their_own_messages,
    times_are_durations,
    steps_and_bytes_are_int64,
    no_opaque_bytes,
)


def lint(root: Path) -> list[str]:
    """One line for each violation in the protos below `root`, the folder that imports start from."""
    return [f"{file.proto.name}: {line}" for file in _compile(root) for rule in RULES for line in rule(file)]


def run_protoc(root: Path, *arguments: str) -> None:
    """Compiles every proto below `root` with these arguments; ends the program when protoc refuses.

    In a process of its own: its C++ crashes in one that has TensorFlow's.
    """
    names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.proto"))
    well_known = files("grpc_tools") / "_proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"-I{well_known}", *arguments, *names]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"protos: protoc refuses what is below {root}, see above")


def _compile(root: Path) -> list[Compiled]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        run_protoc(root, "--include_source_info", f"--descriptor_set_out={out}")
        protos = FileDescriptorSet.FromString(out.read_bytes()).file
    return [Compiled(proto, _comments(proto)) for proto in protos]


def _comments(proto: FileDescriptorProto) -> dict[Location, str]:
    locations = proto.source_code_info.location
    return {tuple(at.path): (at.leading_comments + at.trailing_comments).strip() for at in locations}
