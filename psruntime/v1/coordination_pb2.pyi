import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PS: _ClassVar[Role]
    ROLE_WORKER: _ClassVar[Role]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_FORMING: _ClassVar[Phase]
    PHASE_PREPARING: _ClassVar[Phase]
    PHASE_TRAINING: _ClassVar[Phase]
    PHASE_DRAINING: _ClassVar[Phase]
    PHASE_DONE: _ClassVar[Phase]
    PHASE_FAILED: _ClassVar[Phase]
    PHASE_STOPPED: _ClassVar[Phase]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_ASYNC: _ClassVar[Mode]
    MODE_BOUNDED: _ClassVar[Mode]
    MODE_SYNC: _ClassVar[Mode]

class SummaryWorkers(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUMMARY_WORKERS_UNSPECIFIED: _ClassVar[SummaryWorkers]
    SUMMARY_WORKERS_CHIEF: _ClassVar[SummaryWorkers]
    SUMMARY_WORKERS_ALL: _ClassVar[SummaryWorkers]

class PlanKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAN_KIND_UNSPECIFIED: _ClassVar[PlanKind]
    PLAN_KIND_PACKED: _ClassVar[PlanKind]
    PLAN_KIND_PER_VARIABLE: _ClassVar[PlanKind]

class Wire(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WIRE_UNSPECIFIED: _ClassVar[Wire]
    WIRE_FLOAT32: _ClassVar[Wire]
    WIRE_BFLOAT16: _ClassVar[Wire]
    WIRE_FLOAT16: _ClassVar[Wire]

class OnPsLoss(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_PS_LOSS_UNSPECIFIED: _ClassVar[OnPsLoss]
    ON_PS_LOSS_ROLLBACK: _ClassVar[OnPsLoss]
    ON_PS_LOSS_PARTIAL: _ClassVar[OnPsLoss]

class OnNan(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_NAN_UNSPECIFIED: _ClassVar[OnNan]
    ON_NAN_STOP: _ClassVar[OnNan]
    ON_NAN_CONTINUE: _ClassVar[OnNan]

class OnDataError(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_DATA_ERROR_UNSPECIFIED: _ClassVar[OnDataError]
    ON_DATA_ERROR_FAIL: _ClassVar[OnDataError]
    ON_DATA_ERROR_SKIP: _ClassVar[OnDataError]

class BatchPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BATCH_POLICY_UNSPECIFIED: _ClassVar[BatchPolicy]
    BATCH_POLICY_FIXED: _ClassVar[BatchPolicy]
    BATCH_POLICY_THROUGHPUT: _ClassVar[BatchPolicy]

class ActionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_KIND_UNSPECIFIED: _ClassVar[ActionKind]
    ACTION_KIND_WAIT: _ClassVar[ActionKind]
    ACTION_KIND_PUSH: _ClassVar[ActionKind]
    ACTION_KIND_APPLY: _ClassVar[ActionKind]
    ACTION_KIND_NONE: _ClassVar[ActionKind]
    ACTION_KIND_COMPUTE: _ClassVar[ActionKind]

class LeaveKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEAVE_KIND_UNSPECIFIED: _ClassVar[LeaveKind]
    LEAVE_KIND_OVER: _ClassVar[LeaveKind]
    LEAVE_KIND_ASKED: _ClassVar[LeaveKind]
    LEAVE_KIND_ERROR: _ClassVar[LeaveKind]
    LEAVE_KIND_FATAL: _ClassVar[LeaveKind]
    LEAVE_KIND_USAGE: _ClassVar[LeaveKind]

class ControlCommand(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTROL_COMMAND_UNSPECIFIED: _ClassVar[ControlCommand]
    CONTROL_COMMAND_PAUSE: _ClassVar[ControlCommand]
    CONTROL_COMMAND_RESUME: _ClassVar[ControlCommand]
    CONTROL_COMMAND_BOUND: _ClassVar[ControlCommand]
    CONTROL_COMMAND_LEARNING_RATE_SCALE: _ClassVar[ControlCommand]
    CONTROL_COMMAND_SAVE: _ClassVar[ControlCommand]
    CONTROL_COMMAND_DRAIN: _ClassVar[ControlCommand]
    CONTROL_COMMAND_DRAIN_WORKER: _ClassVar[ControlCommand]
    CONTROL_COMMAND_MODE: _ClassVar[ControlCommand]

class ControlOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTROL_OUTCOME_UNSPECIFIED: _ClassVar[ControlOutcome]
    CONTROL_OUTCOME_PENDING: _ClassVar[ControlOutcome]
    CONTROL_OUTCOME_DONE: _ClassVar[ControlOutcome]
    CONTROL_OUTCOME_GIVEN_UP: _ClassVar[ControlOutcome]
ROLE_UNSPECIFIED: Role
ROLE_PS: Role
ROLE_WORKER: Role
PHASE_UNSPECIFIED: Phase
PHASE_FORMING: Phase
PHASE_PREPARING: Phase
PHASE_TRAINING: Phase
PHASE_DRAINING: Phase
PHASE_DONE: Phase
PHASE_FAILED: Phase
PHASE_STOPPED: Phase
MODE_UNSPECIFIED: Mode
MODE_ASYNC: Mode
MODE_BOUNDED: Mode
MODE_SYNC: Mode
SUMMARY_WORKERS_UNSPECIFIED: SummaryWorkers
SUMMARY_WORKERS_CHIEF: SummaryWorkers
SUMMARY_WORKERS_ALL: SummaryWorkers
PLAN_KIND_UNSPECIFIED: PlanKind
PLAN_KIND_PACKED: PlanKind
PLAN_KIND_PER_VARIABLE: PlanKind
WIRE_UNSPECIFIED: Wire
WIRE_FLOAT32: Wire
WIRE_BFLOAT16: Wire
WIRE_FLOAT16: Wire
ON_PS_LOSS_UNSPECIFIED: OnPsLoss
ON_PS_LOSS_ROLLBACK: OnPsLoss
ON_PS_LOSS_PARTIAL: OnPsLoss
ON_NAN_UNSPECIFIED: OnNan
ON_NAN_STOP: OnNan
ON_NAN_CONTINUE: OnNan
ON_DATA_ERROR_UNSPECIFIED: OnDataError
ON_DATA_ERROR_FAIL: OnDataError
ON_DATA_ERROR_SKIP: OnDataError
BATCH_POLICY_UNSPECIFIED: BatchPolicy
BATCH_POLICY_FIXED: BatchPolicy
BATCH_POLICY_THROUGHPUT: BatchPolicy
ACTION_KIND_UNSPECIFIED: ActionKind
ACTION_KIND_WAIT: ActionKind
ACTION_KIND_PUSH: ActionKind
ACTION_KIND_APPLY: ActionKind
ACTION_KIND_NONE: ActionKind
ACTION_KIND_COMPUTE: ActionKind
LEAVE_KIND_UNSPECIFIED: LeaveKind
LEAVE_KIND_OVER: LeaveKind
LEAVE_KIND_ASKED: LeaveKind
LEAVE_KIND_ERROR: LeaveKind
LEAVE_KIND_FATAL: LeaveKind
LEAVE_KIND_USAGE: LeaveKind
CONTROL_COMMAND_UNSPECIFIED: ControlCommand
CONTROL_COMMAND_PAUSE: ControlCommand
CONTROL_COMMAND_RESUME: ControlCommand
CONTROL_COMMAND_BOUND: ControlCommand
CONTROL_COMMAND_LEARNING_RATE_SCALE: ControlCommand
CONTROL_COMMAND_SAVE: ControlCommand
CONTROL_COMMAND_DRAIN: ControlCommand
CONTROL_COMMAND_DRAIN_WORKER: ControlCommand
CONTROL_COMMAND_MODE: ControlCommand
CONTROL_OUTCOME_UNSPECIFIED: ControlOutcome
CONTROL_OUTCOME_PENDING: ControlOutcome
CONTROL_OUTCOME_DONE: ControlOutcome
CONTROL_OUTCOME_GIVEN_UP: ControlOutcome

class GetJobRequest(_message.Message):
    __slots__ = ("worker_index",)
    WORKER_INDEX_FIELD_NUMBER: _ClassVar[int]
    worker_index: int
    def __init__(self, worker_index: _Optional[int] = ...) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: JobSettings
    def __init__(self, job: _Optional[_Union[JobSettings, _Mapping]] = ...) -> None: ...

class JobSettings(_message.Message):
    __slots__ = ("mode", "ps", "min_workers", "max_workers", "train_steps", "epochs", "checkpoint_dir", "save_steps", "save_secs", "delta_every", "keep", "slice_bytes", "min_ps_bytes", "plan", "local_steps", "pipeline", "wire", "wire_error_feedback", "top_k", "backup_workers", "batch_policy", "max_staleness", "staleness_lr", "schedule", "on_nan", "on_data_error", "start_over", "lease", "ps_timeout", "link_timeout", "linger", "stop_grace", "bound", "max_bound", "rounds_log", "round_warn", "summary_steps", "summary_workers", "trace_steps", "keep_best", "eval_every", "patience", "warm_start", "warm_start_vars", "warm_start_names", "on_ps_loss", "replicate_every", "job_id", "drain_timeout")
    MODE_FIELD_NUMBER: _ClassVar[int]
    PS_FIELD_NUMBER: _ClassVar[int]
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIR_FIELD_NUMBER: _ClassVar[int]
    SAVE_STEPS_FIELD_NUMBER: _ClassVar[int]
    SAVE_SECS_FIELD_NUMBER: _ClassVar[int]
    DELTA_EVERY_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    SLICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_PS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    WIRE_ERROR_FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    BACKUP_WORKERS_FIELD_NUMBER: _ClassVar[int]
    BATCH_POLICY_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_LR_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    ON_NAN_FIELD_NUMBER: _ClassVar[int]
    ON_DATA_ERROR_FIELD_NUMBER: _ClassVar[int]
    START_OVER_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PS_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    LINK_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    LINGER_FIELD_NUMBER: _ClassVar[int]
    STOP_GRACE_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    MAX_BOUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_LOG_FIELD_NUMBER: _ClassVar[int]
    ROUND_WARN_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_STEPS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_WORKERS_FIELD_NUMBER: _ClassVar[int]
    TRACE_STEPS_FIELD_NUMBER: _ClassVar[int]
    KEEP_BEST_FIELD_NUMBER: _ClassVar[int]
    EVAL_EVERY_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    WARM_START_FIELD_NUMBER: _ClassVar[int]
    WARM_START_VARS_FIELD_NUMBER: _ClassVar[int]
    WARM_START_NAMES_FIELD_NUMBER: _ClassVar[int]
    ON_PS_LOSS_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_EVERY_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    mode: Mode
    ps: int
    min_workers: int
    max_workers: int
    train_steps: int
    epochs: int
    checkpoint_dir: str
    save_steps: int
    save_secs: _duration_pb2.Duration
    delta_every: int
    keep: int
    slice_bytes: int
    min_ps_bytes: int
    plan: PlanKind
    local_steps: int
    pipeline: int
    wire: Wire
    wire_error_feedback: bool
    top_k: float
    backup_workers: int
    batch_policy: BatchPolicy
    max_staleness: int
    staleness_lr: str
    schedule: str
    on_nan: OnNan
    on_data_error: OnDataError
    start_over: bool
    lease: _duration_pb2.Duration
    ps_timeout: _duration_pb2.Duration
    link_timeout: _duration_pb2.Duration
    linger: _duration_pb2.Duration
    stop_grace: _duration_pb2.Duration
    bound: int
    max_bound: int
    rounds_log: str
    round_warn: _duration_pb2.Duration
    summary_steps: int
    summary_workers: SummaryWorkers
    trace_steps: str
    keep_best: str
    eval_every: int
    patience: int
    warm_start: str
    warm_start_vars: str
    warm_start_names: str
    on_ps_loss: OnPsLoss
    replicate_every: int
    job_id: str
    drain_timeout: _duration_pb2.Duration
    def __init__(self, mode: _Optional[_Union[Mode, str]] = ..., ps: _Optional[int] = ..., min_workers: _Optional[int] = ..., max_workers: _Optional[int] = ..., train_steps: _Optional[int] = ..., epochs: _Optional[int] = ..., checkpoint_dir: _Optional[str] = ..., save_steps: _Optional[int] = ..., save_secs: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., delta_every: _Optional[int] = ..., keep: _Optional[int] = ..., slice_bytes: _Optional[int] = ..., min_ps_bytes: _Optional[int] = ..., plan: _Optional[_Union[PlanKind, str]] = ..., local_steps: _Optional[int] = ..., pipeline: _Optional[int] = ..., wire: _Optional[_Union[Wire, str]] = ..., wire_error_feedback: _Optional[bool] = ..., top_k: _Optional[float] = ..., backup_workers: _Optional[int] = ..., batch_policy: _Optional[_Union[BatchPolicy, str]] = ..., max_staleness: _Optional[int] = ..., staleness_lr: _Optional[str] = ..., schedule: _Optional[str] = ..., on_nan: _Optional[_Union[OnNan, str]] = ..., on_data_error: _Optional[_Union[OnDataError, str]] = ..., start_over: _Optional[bool] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., ps_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., link_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., linger: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., stop_grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., bound: _Optional[int] = ..., max_bound: _Optional[int] = ..., rounds_log: _Optional[str] = ..., round_warn: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., summary_steps: _Optional[int] = ..., summary_workers: _Optional[_Union[SummaryWorkers, str]] = ..., trace_steps: _Optional[str] = ..., keep_best: _Optional[str] = ..., eval_every: _Optional[int] = ..., patience: _Optional[int] = ..., warm_start: _Optional[str] = ..., warm_start_vars: _Optional[str] = ..., warm_start_names: _Optional[str] = ..., on_ps_loss: _Optional[_Union[OnPsLoss, str]] = ..., replicate_every: _Optional[int] = ..., job_id: _Optional[str] = ..., drain_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DynamicRows(_message.Message):
    __slots__ = ("admit_after", "expire_after")
    ADMIT_AFTER_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AFTER_FIELD_NUMBER: _ClassVar[int]
    admit_after: int
    expire_after: int
    def __init__(self, admit_after: _Optional[int] = ..., expire_after: _Optional[int] = ...) -> None: ...

class VariableSpec(_message.Message):
    __slots__ = ("name", "shape", "dtype", "sparse", "trainable", "whole", "group", "dynamic", "aggregation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    sparse: bool
    trainable: bool
    whole: bool
    group: int
    dynamic: DynamicRows
    aggregation: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., sparse: _Optional[bool] = ..., trainable: _Optional[bool] = ..., whole: _Optional[bool] = ..., group: _Optional[int] = ..., dynamic: _Optional[_Union[DynamicRows, _Mapping]] = ..., aggregation: _Optional[str] = ...) -> None: ...

class PsEntry(_message.Message):
    __slots__ = ("index", "address", "incarnation")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    index: int
    address: str
    incarnation: int
    def __init__(self, index: _Optional[int] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("number", "ps")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PS_FIELD_NUMBER: _ClassVar[int]
    number: int
    ps: _containers.RepeatedCompositeFieldContainer[PsEntry]
    def __init__(self, number: _Optional[int] = ..., ps: _Optional[_Iterable[_Union[PsEntry, _Mapping]]] = ...) -> None: ...

class Past(_message.Message):
    __slots__ = ("began", "global_step", "saved_step", "attempt", "settings", "identity")
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    SAVED_STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    began: bool
    global_step: int
    saved_step: int
    attempt: int
    settings: Overrides
    identity: ModelIdentity
    def __init__(self, began: _Optional[bool] = ..., global_step: _Optional[int] = ..., saved_step: _Optional[int] = ..., attempt: _Optional[int] = ..., settings: _Optional[_Union[Overrides, _Mapping]] = ..., identity: _Optional[_Union[ModelIdentity, _Mapping]] = ...) -> None: ...

class ModelIdentity(_message.Message):
    __slots__ = ("facts", "file", "text")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    facts: _containers.RepeatedCompositeFieldContainer[ModelFact]
    file: str
    text: str
    def __init__(self, facts: _Optional[_Iterable[_Union[ModelFact, _Mapping]]] = ..., file: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ModelFact(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Overrides(_message.Message):
    __slots__ = ("revision", "from_global_step", "bound", "learning_rate_scale", "paused", "mode", "automatic")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FROM_GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_SCALE_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    AUTOMATIC_FIELD_NUMBER: _ClassVar[int]
    revision: int
    from_global_step: int
    bound: int
    learning_rate_scale: float
    paused: bool
    mode: Mode
    automatic: bool
    def __init__(self, revision: _Optional[int] = ..., from_global_step: _Optional[int] = ..., bound: _Optional[int] = ..., learning_rate_scale: _Optional[float] = ..., paused: _Optional[bool] = ..., mode: _Optional[_Union[Mode, str]] = ..., automatic: _Optional[bool] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("role", "index", "address", "health_address", "join_id", "waited", "variables", "job_id", "past", "identity", "machine", "began_at")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    JOIN_ID_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AT_FIELD_NUMBER: _ClassVar[int]
    role: Role
    index: int
    address: str
    health_address: str
    join_id: str
    waited: _duration_pb2.Duration
    variables: _containers.RepeatedCompositeFieldContainer[VariableSpec]
    job_id: str
    past: Past
    identity: ModelIdentity
    machine: Machine
    began_at: int
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., index: _Optional[int] = ..., address: _Optional[str] = ..., health_address: _Optional[str] = ..., join_id: _Optional[str] = ..., waited: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., variables: _Optional[_Iterable[_Union[VariableSpec, _Mapping]]] = ..., job_id: _Optional[str] = ..., past: _Optional[_Union[Past, _Mapping]] = ..., identity: _Optional[_Union[ModelIdentity, _Mapping]] = ..., machine: _Optional[_Union[Machine, _Mapping]] = ..., began_at: _Optional[int] = ...) -> None: ...

class Machine(_message.Message):
    __slots__ = ("processor", "threads", "tensorflow")
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    TENSORFLOW_FIELD_NUMBER: _ClassVar[int]
    processor: str
    threads: int
    tensorflow: str
    def __init__(self, processor: _Optional[str] = ..., threads: _Optional[int] = ..., tensorflow: _Optional[str] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("admitted", "not_yet")
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    NOT_YET_FIELD_NUMBER: _ClassVar[int]
    admitted: Answer
    not_yet: NotYet
    def __init__(self, admitted: _Optional[_Union[Answer, _Mapping]] = ..., not_yet: _Optional[_Union[NotYet, _Mapping]] = ...) -> None: ...

class NotYet(_message.Message):
    __slots__ = ("reason", "tag")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    reason: str
    tag: str
    def __init__(self, reason: _Optional[str] = ..., tag: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("incarnation", "instructions", "revision", "remark")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REMARK_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    instructions: Instructions
    revision: int
    remark: str
    def __init__(self, incarnation: _Optional[int] = ..., instructions: _Optional[_Union[Instructions, _Mapping]] = ..., revision: _Optional[int] = ..., remark: _Optional[str] = ...) -> None: ...

class Instructions(_message.Message):
    __slots__ = ("phase", "reason", "view", "chief", "admitted_by_ps", "close", "restore", "admitted", "fence_revision", "clock", "report_every", "max_staleness", "saved_step", "seen_step", "stopping", "save", "leave", "settings", "pause_epoch", "pause_reason", "build", "build_number", "identity")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_BY_PS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    FENCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    REPORT_EVERY_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    SAVED_STEP_FIELD_NUMBER: _ClassVar[int]
    SEEN_STEP_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PAUSE_REASON_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    BUILD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    reason: str
    view: View
    chief: bool
    admitted_by_ps: bool
    close: bool
    restore: bool
    admitted: _containers.RepeatedCompositeFieldContainer[AdmittedWorker]
    fence_revision: int
    clock: int
    report_every: _duration_pb2.Duration
    max_staleness: int
    saved_step: int
    seen_step: int
    stopping: bool
    save: bool
    leave: bool
    settings: Overrides
    pause_epoch: int
    pause_reason: str
    build: str
    build_number: int
    identity: ModelIdentity
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., reason: _Optional[str] = ..., view: _Optional[_Union[View, _Mapping]] = ..., chief: _Optional[bool] = ..., admitted_by_ps: _Optional[bool] = ..., close: _Optional[bool] = ..., restore: _Optional[bool] = ..., admitted: _Optional[_Iterable[_Union[AdmittedWorker, _Mapping]]] = ..., fence_revision: _Optional[int] = ..., clock: _Optional[int] = ..., report_every: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_staleness: _Optional[int] = ..., saved_step: _Optional[int] = ..., seen_step: _Optional[int] = ..., stopping: _Optional[bool] = ..., save: _Optional[bool] = ..., leave: _Optional[bool] = ..., settings: _Optional[_Union[Overrides, _Mapping]] = ..., pause_epoch: _Optional[int] = ..., pause_reason: _Optional[str] = ..., build: _Optional[str] = ..., build_number: _Optional[int] = ..., identity: _Optional[_Union[ModelIdentity, _Mapping]] = ...) -> None: ...

class AdmittedWorker(_message.Message):
    __slots__ = ("index", "incarnation")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    index: int
    incarnation: int
    def __init__(self, index: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("role", "index", "incarnation", "seen_revision", "max_wait", "ps", "worker")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEEN_REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    PS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    role: Role
    index: int
    incarnation: int
    seen_revision: int
    max_wait: _duration_pb2.Duration
    ps: PsBeat
    worker: WorkerBeat
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., index: _Optional[int] = ..., incarnation: _Optional[int] = ..., seen_revision: _Optional[int] = ..., max_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., ps: _Optional[_Union[PsBeat, _Mapping]] = ..., worker: _Optional[_Union[WorkerBeat, _Mapping]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: Answer
    def __init__(self, answer: _Optional[_Union[Answer, _Mapping]] = ...) -> None: ...

class PsBeat(_message.Message):
    __slots__ = ("fence_revision", "view", "global_step", "stats", "asked_to_stop", "stood_still")
    FENCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    ASKED_TO_STOP_FIELD_NUMBER: _ClassVar[int]
    STOOD_STILL_FIELD_NUMBER: _ClassVar[int]
    fence_revision: int
    view: int
    global_step: int
    stats: PsStats
    asked_to_stop: bool
    stood_still: _duration_pb2.Duration
    def __init__(self, fence_revision: _Optional[int] = ..., view: _Optional[int] = ..., global_step: _Optional[int] = ..., stats: _Optional[_Union[PsStats, _Mapping]] = ..., asked_to_stop: _Optional[bool] = ..., stood_still: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WorkerBeat(_message.Message):
    __slots__ = ("view", "steps", "global_step", "stopped", "stats", "closed_parts", "saved_step", "asked_to_stop", "prepares", "saves", "paused_epoch", "step_times", "build_failure", "graphs", "starve_count", "failure", "stood_still", "held_out", "early_stop", "failed_saves")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_PARTS_FIELD_NUMBER: _ClassVar[int]
    SAVED_STEP_FIELD_NUMBER: _ClassVar[int]
    ASKED_TO_STOP_FIELD_NUMBER: _ClassVar[int]
    PREPARES_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    PAUSED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    BUILD_FAILURE_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    STARVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STOOD_STILL_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOP_FIELD_NUMBER: _ClassVar[int]
    FAILED_SAVES_FIELD_NUMBER: _ClassVar[int]
    view: int
    steps: int
    global_step: int
    stopped: bool
    stats: WorkerStats
    closed_parts: int
    saved_step: int
    asked_to_stop: bool
    prepares: int
    saves: bool
    paused_epoch: int
    step_times: _containers.RepeatedCompositeFieldContainer[_duration_pb2.Duration]
    build_failure: str
    graphs: GraphsBuilt
    starve_count: int
    failure: str
    stood_still: _duration_pb2.Duration
    held_out: Measurements
    early_stop: str
    failed_saves: FailedSaves
    def __init__(self, view: _Optional[int] = ..., steps: _Optional[int] = ..., global_step: _Optional[int] = ..., stopped: _Optional[bool] = ..., stats: _Optional[_Union[WorkerStats, _Mapping]] = ..., closed_parts: _Optional[int] = ..., saved_step: _Optional[int] = ..., asked_to_stop: _Optional[bool] = ..., prepares: _Optional[int] = ..., saves: _Optional[bool] = ..., paused_epoch: _Optional[int] = ..., step_times: _Optional[_Iterable[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]]] = ..., build_failure: _Optional[str] = ..., graphs: _Optional[_Union[GraphsBuilt, _Mapping]] = ..., starve_count: _Optional[int] = ..., failure: _Optional[str] = ..., stood_still: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., held_out: _Optional[_Union[Measurements, _Mapping]] = ..., early_stop: _Optional[str] = ..., failed_saves: _Optional[_Union[FailedSaves, _Mapping]] = ...) -> None: ...

class HeldOut(_message.Message):
    __slots__ = ("global_step", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    global_step: int
    values: _containers.ScalarMap[str, float]
    def __init__(self, global_step: _Optional[int] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Measurements(_message.Message):
    __slots__ = ("last", "best")
    LAST_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    last: HeldOut
    best: HeldOut
    def __init__(self, last: _Optional[_Union[HeldOut, _Mapping]] = ..., best: _Optional[_Union[HeldOut, _Mapping]] = ...) -> None: ...

class FailedSaves(_message.Message):
    __slots__ = ("count", "cause")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    count: int
    cause: str
    def __init__(self, count: _Optional[int] = ..., cause: _Optional[str] = ...) -> None: ...

class GraphsBuilt(_message.Message):
    __slots__ = ("rounds", "pushes", "failure", "failed_build")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    FAILED_BUILD_FIELD_NUMBER: _ClassVar[int]
    rounds: bool
    pushes: bool
    failure: str
    failed_build: int
    def __init__(self, rounds: _Optional[bool] = ..., pushes: _Optional[bool] = ..., failure: _Optional[str] = ..., failed_build: _Optional[int] = ...) -> None: ...

class BytesMoved(_message.Message):
    __slots__ = ("sent", "received")
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    sent: int
    received: int
    def __init__(self, sent: _Optional[int] = ..., received: _Optional[int] = ...) -> None: ...

class GpuMemory(_message.Message):
    __slots__ = ("index", "name", "held_bytes", "total_bytes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    held_bytes: int
    total_bytes: int
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., held_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class PsStats(_message.Message):
    __slots__ = ("bytes_held", "buckets", "received", "applied", "dropped", "max_staleness", "pending", "rolled_back", "received_of", "moved", "row_counts", "down_weighted")
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ReceivedOfEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    BYTES_HELD_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_OF_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DOWN_WEIGHTED_FIELD_NUMBER: _ClassVar[int]
    bytes_held: int
    buckets: int
    received: int
    applied: int
    dropped: _containers.ScalarMap[str, int]
    max_staleness: int
    pending: int
    rolled_back: int
    received_of: _containers.ScalarMap[int, int]
    moved: BytesMoved
    row_counts: _containers.RepeatedCompositeFieldContainer[RowCounts]
    down_weighted: int
    def __init__(self, bytes_held: _Optional[int] = ..., buckets: _Optional[int] = ..., received: _Optional[int] = ..., applied: _Optional[int] = ..., dropped: _Optional[_Mapping[str, int]] = ..., max_staleness: _Optional[int] = ..., pending: _Optional[int] = ..., rolled_back: _Optional[int] = ..., received_of: _Optional[_Mapping[int, int]] = ..., moved: _Optional[_Union[BytesMoved, _Mapping]] = ..., row_counts: _Optional[_Iterable[_Union[RowCounts, _Mapping]]] = ..., down_weighted: _Optional[int] = ...) -> None: ...

class RowCounts(_message.Message):
    __slots__ = ("table", "rows", "found", "admitted", "refused", "expired", "evicted")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    table: str
    rows: int
    found: int
    admitted: int
    refused: int
    expired: int
    evicted: int
    def __init__(self, table: _Optional[str] = ..., rows: _Optional[int] = ..., found: _Optional[int] = ..., admitted: _Optional[int] = ..., refused: _Optional[int] = ..., expired: _Optional[int] = ..., evicted: _Optional[int] = ...) -> None: ...

class WorkerStats(_message.Message):
    __slots__ = ("pushes", "staleness_p50", "staleness_p99", "examples_per_s", "loss", "waiting", "max_lead", "moved", "step_tensors", "skipped", "staleness_counts", "gpus")
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    STALENESS_P50_FIELD_NUMBER: _ClassVar[int]
    STALENESS_P99_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_LEAD_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    STEP_TENSORS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    STALENESS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    pushes: int
    staleness_p50: int
    staleness_p99: int
    examples_per_s: float
    loss: float
    waiting: str
    max_lead: int
    moved: BytesMoved
    step_tensors: int
    skipped: int
    staleness_counts: _containers.RepeatedScalarFieldContainer[int]
    gpus: _containers.RepeatedCompositeFieldContainer[GpuMemory]
    def __init__(self, pushes: _Optional[int] = ..., staleness_p50: _Optional[int] = ..., staleness_p99: _Optional[int] = ..., examples_per_s: _Optional[float] = ..., loss: _Optional[float] = ..., waiting: _Optional[str] = ..., max_lead: _Optional[int] = ..., moved: _Optional[_Union[BytesMoved, _Mapping]] = ..., step_tensors: _Optional[int] = ..., skipped: _Optional[int] = ..., staleness_counts: _Optional[_Iterable[int]] = ..., gpus: _Optional[_Iterable[_Union[GpuMemory, _Mapping]]] = ...) -> None: ...

class ReportClockRequest(_message.Message):
    __slots__ = ("worker_index", "incarnation", "view", "steps", "wanted_floor", "max_wait")
    WORKER_INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    WANTED_FLOOR_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    worker_index: int
    incarnation: int
    view: int
    steps: int
    wanted_floor: int
    max_wait: _duration_pb2.Duration
    def __init__(self, worker_index: _Optional[int] = ..., incarnation: _Optional[int] = ..., view: _Optional[int] = ..., steps: _Optional[int] = ..., wanted_floor: _Optional[int] = ..., max_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReportClockResponse(_message.Message):
    __slots__ = ("floor", "reason")
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    floor: int
    reason: str
    def __init__(self, floor: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("variables",)
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    variables: _containers.RepeatedCompositeFieldContainer[VariableSpec]
    def __init__(self, variables: _Optional[_Iterable[_Union[VariableSpec, _Mapping]]] = ...) -> None: ...

class ReportPreparedRequest(_message.Message):
    __slots__ = ("worker_index", "incarnation", "view", "prepared", "obstacle")
    WORKER_INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    OBSTACLE_FIELD_NUMBER: _ClassVar[int]
    worker_index: int
    incarnation: int
    view: int
    prepared: Prepared
    obstacle: str
    def __init__(self, worker_index: _Optional[int] = ..., incarnation: _Optional[int] = ..., view: _Optional[int] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., obstacle: _Optional[str] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("global_step", "attempt", "steps_lost", "saved_step", "position")
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEPS_LOST_FIELD_NUMBER: _ClassVar[int]
    SAVED_STEP_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    global_step: int
    attempt: int
    steps_lost: int
    saved_step: int
    position: Position
    def __init__(self, global_step: _Optional[int] = ..., attempt: _Optional[int] = ..., steps_lost: _Optional[int] = ..., saved_step: _Optional[int] = ..., position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class ReportPreparedResponse(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: Answer
    def __init__(self, answer: _Optional[_Union[Answer, _Mapping]] = ...) -> None: ...

class ReportFinishedRequest(_message.Message):
    __slots__ = ("worker_index", "incarnation", "view")
    WORKER_INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    worker_index: int
    incarnation: int
    view: int
    def __init__(self, worker_index: _Optional[int] = ..., incarnation: _Optional[int] = ..., view: _Optional[int] = ...) -> None: ...

class ReportFinishedResponse(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: Answer
    def __init__(self, answer: _Optional[_Union[Answer, _Mapping]] = ...) -> None: ...

class NextActionRequest(_message.Message):
    __slots__ = ("worker_index", "incarnation", "view", "max_wait", "pushed", "applied", "broken", "computed", "cut_off", "starved_since")
    WORKER_INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    PUSHED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    CUT_OFF_FIELD_NUMBER: _ClassVar[int]
    STARVED_SINCE_FIELD_NUMBER: _ClassVar[int]
    worker_index: int
    incarnation: int
    view: int
    max_wait: _duration_pb2.Duration
    pushed: Pushed
    applied: Applied
    broken: Broken
    computed: Computed
    cut_off: CutOff
    starved_since: int
    def __init__(self, worker_index: _Optional[int] = ..., incarnation: _Optional[int] = ..., view: _Optional[int] = ..., max_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., pushed: _Optional[_Union[Pushed, _Mapping]] = ..., applied: _Optional[_Union[Applied, _Mapping]] = ..., broken: _Optional[_Union[Broken, _Mapping]] = ..., computed: _Optional[_Union[Computed, _Mapping]] = ..., cut_off: _Optional[_Union[CutOff, _Mapping]] = ..., starved_since: _Optional[int] = ...) -> None: ...

class Computed(_message.Message):
    __slots__ = ("round", "opened", "batch", "examples")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    round: int
    opened: int
    batch: int
    examples: float
    def __init__(self, round: _Optional[int] = ..., opened: _Optional[int] = ..., batch: _Optional[int] = ..., examples: _Optional[float] = ...) -> None: ...

class Pushed(_message.Message):
    __slots__ = ("round", "attempt", "batch", "examples", "apart", "taken", "shard_batches", "divisor", "positions")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    APART_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    SHARD_BATCHES_FIELD_NUMBER: _ClassVar[int]
    DIVISOR_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    batch: int
    examples: float
    apart: bool
    taken: Taken
    shard_batches: _containers.RepeatedCompositeFieldContainer[ShardBatch]
    divisor: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., batch: _Optional[int] = ..., examples: _Optional[float] = ..., apart: _Optional[bool] = ..., taken: _Optional[_Union[Taken, _Mapping]] = ..., shard_batches: _Optional[_Iterable[_Union[ShardBatch, _Mapping]]] = ..., divisor: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ...) -> None: ...

class Taken(_message.Message):
    __slots__ = ("first", "size", "batch_size", "seconds")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    first: int
    size: int
    batch_size: int
    seconds: float
    def __init__(self, first: _Optional[int] = ..., size: _Optional[int] = ..., batch_size: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("round", "attempt", "global_step")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    global_step: int
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., global_step: _Optional[int] = ...) -> None: ...

class Broken(_message.Message):
    __slots__ = ("round", "attempt", "reason")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    reason: str
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class CutOff(_message.Message):
    __slots__ = ("round", "attempt")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class NextActionResponse(_message.Message):
    __slots__ = ("action",)
    ACTION_FIELD_NUMBER: _ClassVar[int]
    action: Action
    def __init__(self, action: _Optional[_Union[Action, _Mapping]] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("kind", "round", "attempt", "opened", "reason", "closes", "share", "local", "counted", "known_from")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FROM_FIELD_NUMBER: _ClassVar[int]
    kind: ActionKind
    round: int
    attempt: int
    opened: int
    reason: str
    closes: Complete
    share: int
    local: bool
    counted: int
    known_from: int
    def __init__(self, kind: _Optional[_Union[ActionKind, str]] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., opened: _Optional[int] = ..., reason: _Optional[str] = ..., closes: _Optional[_Union[Complete, _Mapping]] = ..., share: _Optional[int] = ..., local: _Optional[bool] = ..., counted: _Optional[int] = ..., known_from: _Optional[int] = ...) -> None: ...

class Complete(_message.Message):
    __slots__ = ("round", "attempt", "members", "examples", "local")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    members: int
    examples: float
    local: bool
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., members: _Optional[int] = ..., examples: _Optional[float] = ..., local: _Optional[bool] = ...) -> None: ...

class Sharding(_message.Message):
    __slots__ = ("examples", "size")
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    examples: int
    size: int
    def __init__(self, examples: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("ticket", "epoch", "begin", "end")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    epoch: int
    begin: int
    end: int
    def __init__(self, ticket: _Optional[int] = ..., epoch: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ShardBatch(_message.Message):
    __slots__ = ("shard", "number")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    shard: Shard
    number: int
    def __init__(self, shard: _Optional[_Union[Shard, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class ShardNews(_message.Message):
    __slots__ = ("ticket", "batches", "applied")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    batches: int
    applied: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ticket: _Optional[int] = ..., batches: _Optional[int] = ..., applied: _Optional[_Iterable[int]] = ...) -> None: ...

class TakeShardRequest(_message.Message):
    __slots__ = ("worker_index", "incarnation", "sharding", "seen", "news", "max_wait")
    WORKER_INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SHARDING_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    NEWS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    worker_index: int
    incarnation: int
    sharding: Sharding
    seen: int
    news: _containers.RepeatedCompositeFieldContainer[ShardNews]
    max_wait: _duration_pb2.Duration
    def __init__(self, worker_index: _Optional[int] = ..., incarnation: _Optional[int] = ..., sharding: _Optional[_Union[Sharding, _Mapping]] = ..., seen: _Optional[int] = ..., news: _Optional[_Iterable[_Union[ShardNews, _Mapping]]] = ..., max_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TakeShardResponse(_message.Message):
    __slots__ = ("shard", "reason")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    shard: Shard
    reason: str
    def __init__(self, shard: _Optional[_Union[Shard, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class GetPositionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPositionResponse(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: Position
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("epoch", "done", "sharding")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SHARDING_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    done: _containers.RepeatedCompositeFieldContainer[Places]
    sharding: Sharding
    def __init__(self, epoch: _Optional[int] = ..., done: _Optional[_Iterable[_Union[Places, _Mapping]]] = ..., sharding: _Optional[_Union[Sharding, _Mapping]] = ...) -> None: ...

class Places(_message.Message):
    __slots__ = ("first", "end")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("role", "index", "incarnation", "kind", "reason")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    role: Role
    index: int
    incarnation: int
    kind: LeaveKind
    reason: str
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., index: _Optional[int] = ..., incarnation: _Optional[int] = ..., kind: _Optional[_Union[LeaveKind, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ControlRequest(_message.Message):
    __slots__ = ("command", "max_wait")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    command: Command
    max_wait: _duration_pb2.Duration
    def __init__(self, command: _Optional[_Union[Command, _Mapping]] = ..., max_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("kind", "request_id", "bound", "scale", "mode", "worker", "automatic")
    KIND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    AUTOMATIC_FIELD_NUMBER: _ClassVar[int]
    kind: ControlCommand
    request_id: str
    bound: int
    scale: float
    mode: Mode
    worker: int
    automatic: bool
    def __init__(self, kind: _Optional[_Union[ControlCommand, str]] = ..., request_id: _Optional[str] = ..., bound: _Optional[int] = ..., scale: _Optional[float] = ..., mode: _Optional[_Union[Mode, str]] = ..., worker: _Optional[int] = ..., automatic: _Optional[bool] = ...) -> None: ...

class ControlResponse(_message.Message):
    __slots__ = ("outcome", "global_step", "text")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    outcome: ControlOutcome
    global_step: int
    text: str
    def __init__(self, outcome: _Optional[_Union[ControlOutcome, str]] = ..., global_step: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class SteeringStatus(_message.Message):
    __slots__ = ("settings", "pending", "waits_for", "bound_reason")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    BOUND_REASON_FIELD_NUMBER: _ClassVar[int]
    settings: Overrides
    pending: _containers.RepeatedScalarFieldContainer[str]
    waits_for: str
    bound_reason: str
    def __init__(self, settings: _Optional[_Union[Overrides, _Mapping]] = ..., pending: _Optional[_Iterable[str]] = ..., waits_for: _Optional[str] = ..., bound_reason: _Optional[str] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("watches",)
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    watches: bool
    def __init__(self, watches: _Optional[bool] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("status", "job")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    status: JobStatus
    job: JobSettings
    def __init__(self, status: _Optional[_Union[JobStatus, _Mapping]] = ..., job: _Optional[_Union[JobSettings, _Mapping]] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("phase", "reason", "view", "floor", "global_step", "steps_lost", "members", "max_lead", "balanced", "unanswered", "departures", "shards", "steering", "saved_step", "saved_ago", "held_out", "failed_saves")
    class UnansweredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_LOST_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MAX_LEAD_FIELD_NUMBER: _ClassVar[int]
    BALANCED_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    DEPARTURES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    STEERING_FIELD_NUMBER: _ClassVar[int]
    SAVED_STEP_FIELD_NUMBER: _ClassVar[int]
    SAVED_AGO_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    FAILED_SAVES_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    reason: str
    view: View
    floor: int
    global_step: int
    steps_lost: int
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    max_lead: int
    balanced: bool
    unanswered: _containers.ScalarMap[int, int]
    departures: _containers.RepeatedCompositeFieldContainer[Departure]
    shards: ShardsStatus
    steering: SteeringStatus
    saved_step: int
    saved_ago: _duration_pb2.Duration
    held_out: Measurements
    failed_saves: FailedSaves
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., reason: _Optional[str] = ..., view: _Optional[_Union[View, _Mapping]] = ..., floor: _Optional[int] = ..., global_step: _Optional[int] = ..., steps_lost: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., max_lead: _Optional[int] = ..., balanced: _Optional[bool] = ..., unanswered: _Optional[_Mapping[int, int]] = ..., departures: _Optional[_Iterable[_Union[Departure, _Mapping]]] = ..., shards: _Optional[_Union[ShardsStatus, _Mapping]] = ..., steering: _Optional[_Union[SteeringStatus, _Mapping]] = ..., saved_step: _Optional[int] = ..., saved_ago: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., held_out: _Optional[_Union[Measurements, _Mapping]] = ..., failed_saves: _Optional[_Union[FailedSaves, _Mapping]] = ...) -> None: ...

class ShardsStatus(_message.Message):
    __slots__ = ("epoch", "done", "of", "again")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    done: int
    of: int
    again: int
    def __init__(self, epoch: _Optional[int] = ..., done: _Optional[int] = ..., of: _Optional[int] = ..., again: _Optional[int] = ...) -> None: ...

class Departure(_message.Message):
    __slots__ = ("role", "index", "incarnation", "kind", "reason", "ago")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGO_FIELD_NUMBER: _ClassVar[int]
    role: Role
    index: int
    incarnation: str
    kind: LeaveKind
    reason: str
    ago: _duration_pb2.Duration
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., index: _Optional[int] = ..., incarnation: _Optional[str] = ..., kind: _Optional[_Union[LeaveKind, str]] = ..., reason: _Optional[str] = ..., ago: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("role", "index", "address", "health_address", "incarnation", "admitted", "silent", "chief", "stopped", "clock", "lead", "ps_stats", "worker_stats", "ps_traffic", "worker_traffic", "share")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    LEAD_FIELD_NUMBER: _ClassVar[int]
    PS_STATS_FIELD_NUMBER: _ClassVar[int]
    WORKER_STATS_FIELD_NUMBER: _ClassVar[int]
    PS_TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    WORKER_TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    role: Role
    index: int
    address: str
    health_address: str
    incarnation: str
    admitted: _duration_pb2.Duration
    silent: _duration_pb2.Duration
    chief: bool
    stopped: bool
    clock: int
    lead: int
    ps_stats: PsStats
    worker_stats: WorkerStats
    ps_traffic: PsTraffic
    worker_traffic: WorkerTraffic
    share: int
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., index: _Optional[int] = ..., address: _Optional[str] = ..., health_address: _Optional[str] = ..., incarnation: _Optional[str] = ..., admitted: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., silent: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., chief: _Optional[bool] = ..., stopped: _Optional[bool] = ..., clock: _Optional[int] = ..., lead: _Optional[int] = ..., ps_stats: _Optional[_Union[PsStats, _Mapping]] = ..., worker_stats: _Optional[_Union[WorkerStats, _Mapping]] = ..., ps_traffic: _Optional[_Union[PsTraffic, _Mapping]] = ..., worker_traffic: _Optional[_Union[WorkerTraffic, _Mapping]] = ..., share: _Optional[int] = ...) -> None: ...

class PsTraffic(_message.Message):
    __slots__ = ("sent_per_s", "received_per_s", "share", "heavy")
    SENT_PER_S_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_PER_S_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    HEAVY_FIELD_NUMBER: _ClassVar[int]
    sent_per_s: float
    received_per_s: float
    share: float
    heavy: bool
    def __init__(self, sent_per_s: _Optional[float] = ..., received_per_s: _Optional[float] = ..., share: _Optional[float] = ..., heavy: _Optional[bool] = ...) -> None: ...

class WorkerTraffic(_message.Message):
    __slots__ = ("sent_per_step", "received_per_step")
    SENT_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    sent_per_step: float
    received_per_step: float
    def __init__(self, sent_per_step: _Optional[float] = ..., received_per_step: _Optional[float] = ...) -> None: ...
