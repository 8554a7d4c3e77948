# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Batch(_message.Message):
    __slots__ = ("envelopes",)
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    envelopes: _containers.RepeatedCompositeFieldContainer[Envelope]
    def __init__(self, envelopes: _Optional[_Iterable[_Union[Envelope, _Mapping]]] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("quorum_id", "number")
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    quorum_id: int
    number: int
    def __init__(self, quorum_id: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Tag(_message.Message):
    __slots__ = ("attempt", "step")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    step: int
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class StateId(_message.Message):
    __slots__ = ("step", "lineage")
    STEP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    step: int
    lineage: str
    def __init__(self, step: _Optional[int] = ..., lineage: _Optional[str] = ...) -> None: ...

class WorkerKey(_message.Message):
    __slots__ = ("replica_id", "incarnation", "group_rank")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    group_rank: int
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., group_rank: _Optional[int] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("host", "heal", "heal_certificate")
    HOST_FIELD_NUMBER: _ClassVar[int]
    HEAL_FIELD_NUMBER: _ClassVar[int]
    HEAL_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    host: str
    heal: str
    heal_certificate: str
    def __init__(self, host: _Optional[str] = ..., heal: _Optional[str] = ..., heal_certificate: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("replica_id", "incarnation", "endpoints", "store")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    store: str
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., store: _Optional[str] = ...) -> None: ...

class Quorum(_message.Message):
    __slots__ = ("attempt", "members", "store", "step", "state", "newcomers", "base", "left", "recomputes", "stands_as", "standing")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NEWCOMERS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTES_FIELD_NUMBER: _ClassVar[int]
    STANDS_AS_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    members: _containers.RepeatedCompositeFieldContainer[Member]
    store: str
    step: int
    state: StateId
    newcomers: _containers.RepeatedScalarFieldContainer[str]
    base: Attempt
    left: _containers.RepeatedScalarFieldContainer[str]
    recomputes: _containers.RepeatedScalarFieldContainer[str]
    stands_as: Attempt
    standing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., store: _Optional[str] = ..., step: _Optional[int] = ..., state: _Optional[_Union[StateId, _Mapping]] = ..., newcomers: _Optional[_Iterable[str]] = ..., base: _Optional[_Union[Attempt, _Mapping]] = ..., left: _Optional[_Iterable[str]] = ..., recomputes: _Optional[_Iterable[str]] = ..., stands_as: _Optional[_Union[Attempt, _Mapping]] = ..., standing: _Optional[_Iterable[int]] = ...) -> None: ...

class Loss(_message.Message):
    __slots__ = ("replica_id", "incarnation", "cause", "killed")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    KILLED_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    cause: str
    killed: bool
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., cause: _Optional[str] = ..., killed: bool = ...) -> None: ...

class RunningReplica(_message.Message):
    __slots__ = ("replica_id", "incarnation", "has_left")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HAS_LEFT_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    has_left: bool
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., has_left: bool = ...) -> None: ...

class KeptSlot(_message.Message):
    __slots__ = ("replica_id", "restarts", "restarts_left")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_LEFT_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    restarts: int
    restarts_left: int
    def __init__(self, replica_id: _Optional[str] = ..., restarts: _Optional[int] = ..., restarts_left: _Optional[int] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("job_id", "replicas", "workers_per_replica", "min_replicas", "join_timeout_s", "heartbeat_timeout_s", "isolation_limit_s", "nodes", "rebalance", "hang_timeout_s", "accepts_fewer", "spare_nodes", "on_corruption", "waits_for_mends")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_PER_REPLICA_FIELD_NUMBER: _ClassVar[int]
    MIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    JOIN_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_FIELD_NUMBER: _ClassVar[int]
    HANG_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_FEWER_FIELD_NUMBER: _ClassVar[int]
    SPARE_NODES_FIELD_NUMBER: _ClassVar[int]
    ON_CORRUPTION_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_MENDS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    replicas: int
    workers_per_replica: int
    min_replicas: int
    join_timeout_s: float
    heartbeat_timeout_s: float
    isolation_limit_s: float
    nodes: int
    rebalance: bool
    hang_timeout_s: float
    accepts_fewer: bool
    spare_nodes: int
    on_corruption: str
    waits_for_mends: bool
    def __init__(self, job_id: _Optional[str] = ..., replicas: _Optional[int] = ..., workers_per_replica: _Optional[int] = ..., min_replicas: _Optional[int] = ..., join_timeout_s: _Optional[float] = ..., heartbeat_timeout_s: _Optional[float] = ..., isolation_limit_s: _Optional[float] = ..., nodes: _Optional[int] = ..., rebalance: bool = ..., hang_timeout_s: _Optional[float] = ..., accepts_fewer: bool = ..., spare_nodes: _Optional[int] = ..., on_corruption: _Optional[str] = ..., waits_for_mends: bool = ...) -> None: ...

class Interrupt(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ...) -> None: ...

class NewQuorum(_message.Message):
    __slots__ = ("quorum", "refused", "refused_tries", "pauses")
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_TRIES_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    quorum: Quorum
    refused: str
    refused_tries: int
    pauses: bool
    def __init__(self, quorum: _Optional[_Union[Quorum, _Mapping]] = ..., refused: _Optional[str] = ..., refused_tries: _Optional[int] = ..., pauses: bool = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("quorum",)
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    quorum: Quorum
    def __init__(self, quorum: _Optional[_Union[Quorum, _Mapping]] = ...) -> None: ...

class ProposeSwitch(_message.Message):
    __slots__ = ("attempt", "step")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    step: int
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class Switch(_message.Message):
    __slots__ = ("attempt", "step")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    step: int
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ...) -> None: ...

class AskReport(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RosterEntry(_message.Message):
    __slots__ = ("replica_id", "incarnation", "endpoints")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ...) -> None: ...

class Roster(_message.Message):
    __slots__ = ("has_begun", "entries", "finished", "early", "store", "compared")
    HAS_BEGUN_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    has_begun: bool
    entries: _containers.RepeatedCompositeFieldContainer[RosterEntry]
    finished: _containers.RepeatedScalarFieldContainer[str]
    early: _containers.RepeatedScalarFieldContainer[str]
    store: str
    compared: str
    def __init__(self, has_begun: bool = ..., entries: _Optional[_Iterable[_Union[RosterEntry, _Mapping]]] = ..., finished: _Optional[_Iterable[str]] = ..., early: _Optional[_Iterable[str]] = ..., store: _Optional[str] = ..., compared: _Optional[str] = ...) -> None: ...

class SwitchPromise(_message.Message):
    __slots__ = ("step", "confirmed")
    STEP_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    step: int
    confirmed: bool
    def __init__(self, step: _Optional[int] = ..., confirmed: bool = ...) -> None: ...

class PendingQuorum(_message.Message):
    __slots__ = ("quorum", "promise")
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    quorum: Quorum
    promise: SwitchPromise
    def __init__(self, quorum: _Optional[_Union[Quorum, _Mapping]] = ..., promise: _Optional[_Union[SwitchPromise, _Mapping]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("state", "endpoint", "interrupted", "in_force", "pending", "reduced", "voted", "healing", "local_step_index", "repairable", "torn", "freezes_membership", "too_few", "contributors_min", "refused", "refused_tries", "under", "handed", "done")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTED_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    REDUCED_FIELD_NUMBER: _ClassVar[int]
    VOTED_FIELD_NUMBER: _ClassVar[int]
    HEALING_FIELD_NUMBER: _ClassVar[int]
    LOCAL_STEP_INDEX_FIELD_NUMBER: _ClassVar[int]
    REPAIRABLE_FIELD_NUMBER: _ClassVar[int]
    TORN_FIELD_NUMBER: _ClassVar[int]
    FREEZES_MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    TOO_FEW_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_MIN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_TRIES_FIELD_NUMBER: _ClassVar[int]
    UNDER_FIELD_NUMBER: _ClassVar[int]
    HANDED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    state: StateId
    endpoint: Endpoint
    interrupted: Attempt
    in_force: Quorum
    pending: PendingQuorum
    reduced: Tag
    voted: Tag
    healing: bool
    local_step_index: int
    repairable: bool
    torn: bool
    freezes_membership: bool
    too_few: bool
    contributors_min: int
    refused: str
    refused_tries: int
    under: Tag
    handed: int
    done: int
    def __init__(self, state: _Optional[_Union[StateId, _Mapping]] = ..., endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., interrupted: _Optional[_Union[Attempt, _Mapping]] = ..., in_force: _Optional[_Union[Quorum, _Mapping]] = ..., pending: _Optional[_Union[PendingQuorum, _Mapping]] = ..., reduced: _Optional[_Union[Tag, _Mapping]] = ..., voted: _Optional[_Union[Tag, _Mapping]] = ..., healing: bool = ..., local_step_index: _Optional[int] = ..., repairable: bool = ..., torn: bool = ..., freezes_membership: bool = ..., too_few: bool = ..., contributors_min: _Optional[int] = ..., refused: _Optional[str] = ..., refused_tries: _Optional[int] = ..., under: _Optional[_Union[Tag, _Mapping]] = ..., handed: _Optional[int] = ..., done: _Optional[int] = ...) -> None: ...

class Built(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ...) -> None: ...

class BuildFailed(_message.Message):
    __slots__ = ("attempt", "reason", "unreached")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    reason: str
    unreached: str
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., reason: _Optional[str] = ..., unreached: _Optional[str] = ...) -> None: ...

class Promised(_message.Message):
    __slots__ = ("attempt", "step")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    step: int
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("attempt", "step", "current", "later")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    step: int
    current: int
    later: bool
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., step: _Optional[int] = ..., current: _Optional[int] = ..., later: bool = ...) -> None: ...

class InForce(_message.Message):
    __slots__ = ("attempt", "step")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    step: int
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class Errored(_message.Message):
    __slots__ = ("attempt", "step", "reason", "own")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    step: int
    reason: str
    own: bool
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., step: _Optional[int] = ..., reason: _Optional[str] = ..., own: bool = ...) -> None: ...

class Healed(_message.Message):
    __slots__ = ("attempt", "step", "donors", "nbytes", "duration_s")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    step: int
    donors: _containers.RepeatedScalarFieldContainer[str]
    nbytes: int
    duration_s: float
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., step: _Optional[int] = ..., donors: _Optional[_Iterable[str]] = ..., nbytes: _Optional[int] = ..., duration_s: _Optional[float] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("reason", "step")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    reason: str
    step: int
    def __init__(self, reason: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class Scalar(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("step", "lineage", "settings", "parameters", "position", "is_late")
    STEP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    IS_LATE_FIELD_NUMBER: _ClassVar[int]
    step: int
    lineage: str
    settings: str
    parameters: str
    position: str
    is_late: bool
    def __init__(self, step: _Optional[int] = ..., lineage: _Optional[str] = ..., settings: _Optional[str] = ..., parameters: _Optional[str] = ..., position: _Optional[str] = ..., is_late: bool = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("step", "batches", "phase", "scalars", "since_s", "pause", "beats", "steps", "usual_s", "longest_s", "position", "step_s", "own_s", "heal", "marks", "worker_lost", "node_lost", "job_lost", "empty")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    BEATS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    USUAL_S_FIELD_NUMBER: _ClassVar[int]
    LONGEST_S_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    OWN_S_FIELD_NUMBER: _ClassVar[int]
    HEAL_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    WORKER_LOST_FIELD_NUMBER: _ClassVar[int]
    NODE_LOST_FIELD_NUMBER: _ClassVar[int]
    JOB_LOST_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    step: int
    batches: int
    phase: str
    scalars: _containers.RepeatedCompositeFieldContainer[Scalar]
    since_s: float
    pause: str
    beats: int
    steps: int
    usual_s: float
    longest_s: float
    position: str
    step_s: float
    own_s: float
    heal: HealProgress
    marks: _containers.RepeatedCompositeFieldContainer[Mark]
    worker_lost: Resumption
    node_lost: Resumption
    job_lost: Resumption
    empty: int
    def __init__(self, step: _Optional[int] = ..., batches: _Optional[int] = ..., phase: _Optional[str] = ..., scalars: _Optional[_Iterable[_Union[Scalar, _Mapping]]] = ..., since_s: _Optional[float] = ..., pause: _Optional[str] = ..., beats: _Optional[int] = ..., steps: _Optional[int] = ..., usual_s: _Optional[float] = ..., longest_s: _Optional[float] = ..., position: _Optional[str] = ..., step_s: _Optional[float] = ..., own_s: _Optional[float] = ..., heal: _Optional[_Union[HealProgress, _Mapping]] = ..., marks: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ..., worker_lost: _Optional[_Union[Resumption, _Mapping]] = ..., node_lost: _Optional[_Union[Resumption, _Mapping]] = ..., job_lost: _Optional[_Union[Resumption, _Mapping]] = ..., empty: _Optional[int] = ...) -> None: ...

class Resumption(_message.Message):
    __slots__ = ("step", "age_s")
    STEP_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    step: int
    age_s: float
    def __init__(self, step: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...

class HealProgress(_message.Message):
    __slots__ = ("done_bytes", "total_bytes")
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    done_bytes: int
    total_bytes: int
    def __init__(self, done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class Present(_message.Message):
    __slots__ = ("endpoint", "part", "together", "ended")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    endpoint: Endpoint
    part: _containers.RepeatedScalarFieldContainer[str]
    together: bool
    ended: Mark
    def __init__(self, endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., part: _Optional[_Iterable[str]] = ..., together: bool = ..., ended: _Optional[_Union[Mark, _Mapping]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("key", "pid", "token")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    key: WorkerKey
    pid: int
    token: str
    def __init__(self, key: _Optional[_Union[WorkerKey, _Mapping]] = ..., pid: _Optional[int] = ..., token: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("until_s", "agreed")
    UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    until_s: float
    agreed: StateId
    def __init__(self, until_s: _Optional[float] = ..., agreed: _Optional[_Union[StateId, _Mapping]] = ...) -> None: ...

class LeaveNow(_message.Message):
    __slots__ = ("reason", "in_quorum")
    REASON_FIELD_NUMBER: _ClassVar[int]
    IN_QUORUM_FIELD_NUMBER: _ClassVar[int]
    reason: str
    in_quorum: bool
    def __init__(self, reason: _Optional[str] = ..., in_quorum: bool = ...) -> None: ...

class NoManager(_message.Message):
    __slots__ = ("has_stepped",)
    HAS_STEPPED_FIELD_NUMBER: _ClassVar[int]
    has_stepped: bool
    def __init__(self, has_stepped: bool = ...) -> None: ...

class AnotherForm(_message.Message):
    __slots__ = ("form", "reason")
    FORM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    form: str
    reason: str
    def __init__(self, form: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("pause", "limit_s")
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    pause: str
    limit_s: float
    def __init__(self, pause: _Optional[str] = ..., limit_s: _Optional[float] = ...) -> None: ...

class FailureReport(_message.Message):
    __slots__ = ("error_type", "message", "traceback", "step", "heals")
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HEALS_FIELD_NUMBER: _ClassVar[int]
    error_type: str
    message: str
    traceback: str
    step: int
    heals: bool
    def __init__(self, error_type: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., step: _Optional[int] = ..., heals: bool = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("agent_id", "spec", "capacity", "host", "store", "running", "dead", "finished", "epoch", "age_s", "version", "incidents", "rank", "placed", "kept")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    spec: JobSpec
    capacity: int
    host: str
    store: str
    running: _containers.RepeatedCompositeFieldContainer[RunningReplica]
    dead: _containers.RepeatedCompositeFieldContainer[Loss]
    finished: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    age_s: float
    version: int
    incidents: int
    rank: int
    placed: int
    kept: _containers.RepeatedCompositeFieldContainer[KeptSlot]
    def __init__(self, agent_id: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., capacity: _Optional[int] = ..., host: _Optional[str] = ..., store: _Optional[str] = ..., running: _Optional[_Iterable[_Union[RunningReplica, _Mapping]]] = ..., dead: _Optional[_Iterable[_Union[Loss, _Mapping]]] = ..., finished: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., age_s: _Optional[float] = ..., version: _Optional[int] = ..., incidents: _Optional[int] = ..., rank: _Optional[int] = ..., placed: _Optional[int] = ..., kept: _Optional[_Iterable[_Union[KeptSlot, _Mapping]]] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("key", "report", "built", "build_failed", "promised", "refused", "in_force", "errored", "healed", "leaving", "progress", "present")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    BUILT_FIELD_NUMBER: _ClassVar[int]
    BUILD_FAILED_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    ERRORED_FIELD_NUMBER: _ClassVar[int]
    HEALED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    key: WorkerKey
    report: Report
    built: Built
    build_failed: BuildFailed
    promised: Promised
    refused: Refused
    in_force: InForce
    errored: Errored
    healed: Healed
    leaving: Leaving
    progress: Progress
    present: Present
    def __init__(self, key: _Optional[_Union[WorkerKey, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., built: _Optional[_Union[Built, _Mapping]] = ..., build_failed: _Optional[_Union[BuildFailed, _Mapping]] = ..., promised: _Optional[_Union[Promised, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., in_force: _Optional[_Union[InForce, _Mapping]] = ..., errored: _Optional[_Union[Errored, _Mapping]] = ..., healed: _Optional[_Union[Healed, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., present: _Optional[_Union[Present, _Mapping]] = ...) -> None: ...

class ReplicaStarted(_message.Message):
    __slots__ = ("replica_id", "incarnation", "restarts", "restarts_left", "mends")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_LEFT_FIELD_NUMBER: _ClassVar[int]
    MENDS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    restarts: int
    restarts_left: int
    mends: bool
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., restarts: _Optional[int] = ..., restarts_left: _Optional[int] = ..., mends: bool = ...) -> None: ...

class StartFailure(_message.Message):
    __slots__ = ("signature", "exit_code", "words")
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    signature: str
    exit_code: int
    words: str
    def __init__(self, signature: _Optional[str] = ..., exit_code: _Optional[int] = ..., words: _Optional[str] = ...) -> None: ...

class Raised(_message.Message):
    __slots__ = ("signature", "step", "exit_code", "words")
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    signature: str
    step: int
    exit_code: int
    words: str
    def __init__(self, signature: _Optional[str] = ..., step: _Optional[int] = ..., exit_code: _Optional[int] = ..., words: _Optional[str] = ...) -> None: ...

class ReplicaLost(_message.Message):
    __slots__ = ("replica_id", "incarnation", "cause", "killed", "start_failure", "kind", "raised", "follows")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    KILLED_FIELD_NUMBER: _ClassVar[int]
    START_FAILURE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RAISED_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    cause: str
    killed: bool
    start_failure: StartFailure
    kind: str
    raised: Raised
    follows: str
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., cause: _Optional[str] = ..., killed: bool = ..., start_failure: _Optional[_Union[StartFailure, _Mapping]] = ..., kind: _Optional[str] = ..., raised: _Optional[_Union[Raised, _Mapping]] = ..., follows: _Optional[str] = ...) -> None: ...

class FailedWorker(_message.Message):
    __slots__ = ("group_rank", "pid", "status", "kind", "cause", "age_s", "error_type", "message", "traceback", "memory", "output", "stacks")
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    group_rank: int
    pid: int
    status: int
    kind: str
    cause: str
    age_s: float
    error_type: str
    message: str
    traceback: str
    memory: str
    output: str
    stacks: str
    def __init__(self, group_rank: _Optional[int] = ..., pid: _Optional[int] = ..., status: _Optional[int] = ..., kind: _Optional[str] = ..., cause: _Optional[str] = ..., age_s: _Optional[float] = ..., error_type: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., memory: _Optional[str] = ..., output: _Optional[str] = ..., stacks: _Optional[str] = ...) -> None: ...

class FailureEvidence(_message.Message):
    __slots__ = ("replica_id", "incarnation", "restarts", "workers", "has_step", "step", "verdict", "words", "restart_in_s", "incident", "steps_again", "stood_s")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    HAS_STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    RESTART_IN_S_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    STEPS_AGAIN_FIELD_NUMBER: _ClassVar[int]
    STOOD_S_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    restarts: int
    workers: _containers.RepeatedCompositeFieldContainer[FailedWorker]
    has_step: bool
    step: int
    verdict: str
    words: str
    restart_in_s: float
    incident: int
    steps_again: int
    stood_s: float
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., restarts: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[FailedWorker, _Mapping]]] = ..., has_step: bool = ..., step: _Optional[int] = ..., verdict: _Optional[str] = ..., words: _Optional[str] = ..., restart_in_s: _Optional[float] = ..., incident: _Optional[int] = ..., steps_again: _Optional[int] = ..., stood_s: _Optional[float] = ...) -> None: ...

class ReplicaFinished(_message.Message):
    __slots__ = ("replica_id", "incarnation", "idle", "unjoined", "early")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    UNJOINED_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    idle: bool
    unjoined: bool
    early: int
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., idle: bool = ..., unjoined: bool = ..., early: _Optional[int] = ...) -> None: ...

class ReplicaProgress(_message.Message):
    __slots__ = ("replica_id", "incarnation", "progress")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    progress: Progress
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("progress", "quiet", "workers", "wants_glance")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    QUIET_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WANTS_GLANCE_FIELD_NUMBER: _ClassVar[int]
    progress: _containers.RepeatedCompositeFieldContainer[ReplicaProgress]
    quiet: bool
    workers: _containers.RepeatedCompositeFieldContainer[WorkerFacts]
    wants_glance: bool
    def __init__(self, progress: _Optional[_Iterable[_Union[ReplicaProgress, _Mapping]]] = ..., quiet: bool = ..., workers: _Optional[_Iterable[_Union[WorkerFacts, _Mapping]]] = ..., wants_glance: bool = ...) -> None: ...

class WorkerFacts(_message.Message):
    __slots__ = ("key", "pid", "device", "cpu_share", "rss_bytes", "gpu_memory_bytes", "gpu_memory_total_bytes", "gpu_share", "age_s", "node")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    key: WorkerKey
    pid: int
    device: str
    cpu_share: float
    rss_bytes: int
    gpu_memory_bytes: int
    gpu_memory_total_bytes: int
    gpu_share: float
    age_s: float
    node: str
    def __init__(self, key: _Optional[_Union[WorkerKey, _Mapping]] = ..., pid: _Optional[int] = ..., device: _Optional[str] = ..., cpu_share: _Optional[float] = ..., rss_bytes: _Optional[int] = ..., gpu_memory_bytes: _Optional[int] = ..., gpu_memory_total_bytes: _Optional[int] = ..., gpu_share: _Optional[float] = ..., age_s: _Optional[float] = ..., node: _Optional[str] = ...) -> None: ...

class AgentLeaving(_message.Message):
    __slots__ = ("reason", "running")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    reason: str
    running: _containers.RepeatedCompositeFieldContainer[RunningReplica]
    def __init__(self, reason: _Optional[str] = ..., running: _Optional[_Iterable[_Union[RunningReplica, _Mapping]]] = ...) -> None: ...

class JobFailed(_message.Message):
    __slots__ = ("exit_code", "reason", "kind")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    reason: str
    kind: str
    def __init__(self, exit_code: _Optional[int] = ..., reason: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class ReplicaGivenUp(_message.Message):
    __slots__ = ("replica_id", "incarnation", "exit_code", "reason", "kind", "elsewhere", "has_trained")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    HAS_TRAINED_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    exit_code: int
    reason: str
    kind: str
    elsewhere: bool
    has_trained: bool
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., exit_code: _Optional[int] = ..., reason: _Optional[str] = ..., kind: _Optional[str] = ..., elsewhere: bool = ..., has_trained: bool = ...) -> None: ...

class WorkerStacks(_message.Message):
    __slots__ = ("request", "key", "text")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    request: int
    key: WorkerKey
    text: str
    def __init__(self, request: _Optional[int] = ..., key: _Optional[_Union[WorkerKey, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class PeersSilent(_message.Message):
    __slots__ = ("hosts",)
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "http", "version")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HTTP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    http: str
    version: int
    def __init__(self, epoch: _Optional[int] = ..., http: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class AssignSlots(_message.Message):
    __slots__ = ("replica_ids",)
    REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
    replica_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, replica_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ToWorkers(_message.Message):
    __slots__ = ("targets", "interrupt", "new_quorum", "prepare", "propose_switch", "switch", "cancel", "ask_report", "roster")
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_FIELD_NUMBER: _ClassVar[int]
    NEW_QUORUM_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_SWITCH_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ASK_REPORT_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedCompositeFieldContainer[RunningReplica]
    interrupt: Interrupt
    new_quorum: NewQuorum
    prepare: Prepare
    propose_switch: ProposeSwitch
    switch: Switch
    cancel: Cancel
    ask_report: AskReport
    roster: Roster
    def __init__(self, targets: _Optional[_Iterable[_Union[RunningReplica, _Mapping]]] = ..., interrupt: _Optional[_Union[Interrupt, _Mapping]] = ..., new_quorum: _Optional[_Union[NewQuorum, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., propose_switch: _Optional[_Union[ProposeSwitch, _Mapping]] = ..., switch: _Optional[_Union[Switch, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., ask_report: _Optional[_Union[AskReport, _Mapping]] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ...) -> None: ...

class RestartReplica(_message.Message):
    __slots__ = ("replica_id", "incarnation", "reason")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    reason: str
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class StopReplica(_message.Message):
    __slots__ = ("replica_id", "incarnation", "restart", "at_boundary")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    AT_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    restart: bool
    at_boundary: bool
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., restart: bool = ..., at_boundary: bool = ...) -> None: ...

class KillWorkers(_message.Message):
    __slots__ = ("replica_id", "incarnation", "group_ranks")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANKS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    group_ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., group_ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class AskStacks(_message.Message):
    __slots__ = ("request", "keys")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    request: int
    keys: _containers.RepeatedCompositeFieldContainer[WorkerKey]
    def __init__(self, request: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[WorkerKey, _Mapping]]] = ...) -> None: ...

class DrainAgent(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class AskHeartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeartbeatAck(_message.Message):
    __slots__ = ("glance", "agreed")
    GLANCE_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    glance: JobGlance
    agreed: StateId
    def __init__(self, glance: _Optional[_Union[JobGlance, _Mapping]] = ..., agreed: _Optional[_Union[StateId, _Mapping]] = ...) -> None: ...

class JobGlance(_message.Message):
    __slots__ = ("step", "live", "lost_s", "steps_per_s")
    STEP_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    LOST_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    step: int
    live: int
    lost_s: float
    steps_per_s: float
    def __init__(self, step: _Optional[int] = ..., live: _Optional[int] = ..., lost_s: _Optional[float] = ..., steps_per_s: _Optional[float] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("kind", "replica_ids", "text", "elsewhere")
    KIND_FIELD_NUMBER: _ClassVar[int]
    REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    replica_ids: _containers.RepeatedScalarFieldContainer[str]
    text: str
    elsewhere: bool
    def __init__(self, kind: _Optional[str] = ..., replica_ids: _Optional[_Iterable[str]] = ..., text: _Optional[str] = ..., elsewhere: bool = ...) -> None: ...

class SlotAccount(_message.Message):
    __slots__ = ("replica_id", "lost_s")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    LOST_S_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    lost_s: float
    def __init__(self, replica_id: _Optional[str] = ..., lost_s: _Optional[float] = ...) -> None: ...

class JobAccount(_message.Message):
    __slots__ = ("wall_s", "lost_s", "goodput", "steps", "slots", "steps_lost")
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    LOST_S_FIELD_NUMBER: _ClassVar[int]
    GOODPUT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_LOST_FIELD_NUMBER: _ClassVar[int]
    wall_s: float
    lost_s: float
    goodput: float
    steps: int
    slots: _containers.RepeatedCompositeFieldContainer[SlotAccount]
    steps_lost: int
    def __init__(self, wall_s: _Optional[float] = ..., lost_s: _Optional[float] = ..., goodput: _Optional[float] = ..., steps: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[SlotAccount, _Mapping]]] = ..., steps_lost: _Optional[int] = ...) -> None: ...

class EndJob(_message.Message):
    __slots__ = ("exit_code", "reason", "kind", "account")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    reason: str
    kind: str
    account: JobAccount
    def __init__(self, exit_code: _Optional[int] = ..., reason: _Optional[str] = ..., kind: _Optional[str] = ..., account: _Optional[_Union[JobAccount, _Mapping]] = ...) -> None: ...

class IncidentRecord(_message.Message):
    __slots__ = ("number", "incarnations", "is_open", "document")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    number: int
    incarnations: _containers.RepeatedScalarFieldContainer[str]
    is_open: bool
    document: str
    def __init__(self, number: _Optional[int] = ..., incarnations: _Optional[_Iterable[str]] = ..., is_open: bool = ..., document: _Optional[str] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class JournalState(_message.Message):
    __slots__ = ("epoch", "quorum", "switch_step", "spec", "finished", "unaccounted", "outcome", "agents_seen", "withdrawn", "operations", "absent")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    SWITCH_STEP_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    UNACCOUNTED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    AGENTS_SEEN_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    quorum: Quorum
    switch_step: int
    spec: JobSpec
    finished: _containers.RepeatedScalarFieldContainer[str]
    unaccounted: _containers.RepeatedCompositeFieldContainer[Member]
    outcome: EndJob
    agents_seen: int
    withdrawn: _containers.RepeatedScalarFieldContainer[str]
    operations: _containers.RepeatedCompositeFieldContainer[JournaledOperation]
    absent: _containers.RepeatedCompositeFieldContainer[Absence]
    def __init__(self, epoch: _Optional[int] = ..., quorum: _Optional[_Union[Quorum, _Mapping]] = ..., switch_step: _Optional[int] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., finished: _Optional[_Iterable[str]] = ..., unaccounted: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., outcome: _Optional[_Union[EndJob, _Mapping]] = ..., agents_seen: _Optional[int] = ..., withdrawn: _Optional[_Iterable[str]] = ..., operations: _Optional[_Iterable[_Union[JournaledOperation, _Mapping]]] = ..., absent: _Optional[_Iterable[_Union[Absence, _Mapping]]] = ...) -> None: ...

class Absence(_message.Message):
    __slots__ = ("replica_id", "step", "why", "how")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    step: int
    why: str
    how: str
    def __init__(self, replica_id: _Optional[str] = ..., step: _Optional[int] = ..., why: _Optional[str] = ..., how: _Optional[str] = ...) -> None: ...

class JournaledOperation(_message.Message):
    __slots__ = ("number", "command", "replica_id", "group_rank", "node", "request_id", "incarnation", "was_live", "step", "has_ended", "has_failed", "text", "is_held")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WAS_LIVE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HAS_ENDED_FIELD_NUMBER: _ClassVar[int]
    HAS_FAILED_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_HELD_FIELD_NUMBER: _ClassVar[int]
    number: int
    command: str
    replica_id: str
    group_rank: int
    node: str
    request_id: str
    incarnation: str
    was_live: bool
    step: int
    has_ended: bool
    has_failed: bool
    text: str
    is_held: bool
    def __init__(self, number: _Optional[int] = ..., command: _Optional[str] = ..., replica_id: _Optional[str] = ..., group_rank: _Optional[int] = ..., node: _Optional[str] = ..., request_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., was_live: bool = ..., step: _Optional[int] = ..., has_ended: bool = ..., has_failed: bool = ..., text: _Optional[str] = ..., is_held: bool = ...) -> None: ...

class HandHello(_message.Message):
    __slots__ = ("node", "host", "workers", "rank", "size", "version", "mark")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    node: str
    host: str
    workers: int
    rank: int
    size: str
    version: int
    mark: str
    def __init__(self, node: _Optional[str] = ..., host: _Optional[str] = ..., workers: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[str] = ..., version: _Optional[int] = ..., mark: _Optional[str] = ...) -> None: ...

class RankEnded(_message.Message):
    __slots__ = ("incarnation", "group_rank", "pid", "exit_code", "is_dying", "reason", "memory", "recorded", "output")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    IS_DYING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    group_rank: int
    pid: int
    exit_code: int
    is_dying: bool
    reason: str
    memory: str
    recorded: FailureReport
    output: str
    def __init__(self, incarnation: _Optional[str] = ..., group_rank: _Optional[int] = ..., pid: _Optional[int] = ..., exit_code: _Optional[int] = ..., is_dying: bool = ..., reason: _Optional[str] = ..., memory: _Optional[str] = ..., recorded: _Optional[_Union[FailureReport, _Mapping]] = ..., output: _Optional[str] = ...) -> None: ...

class RankMessage(_message.Message):
    __slots__ = ("key", "failure_report", "no_manager", "another_form", "beat")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_REPORT_FIELD_NUMBER: _ClassVar[int]
    NO_MANAGER_FIELD_NUMBER: _ClassVar[int]
    ANOTHER_FORM_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    key: WorkerKey
    failure_report: FailureReport
    no_manager: NoManager
    another_form: AnotherForm
    beat: Beat
    def __init__(self, key: _Optional[_Union[WorkerKey, _Mapping]] = ..., failure_report: _Optional[_Union[FailureReport, _Mapping]] = ..., no_manager: _Optional[_Union[NoManager, _Mapping]] = ..., another_form: _Optional[_Union[AnotherForm, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ...) -> None: ...

class WorkerDisconnected(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: WorkerKey
    def __init__(self, key: _Optional[_Union[WorkerKey, _Mapping]] = ...) -> None: ...

class WorkerUsed(_message.Message):
    __slots__ = ("key", "pid", "cpu_s")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    key: WorkerKey
    pid: int
    cpu_s: float
    def __init__(self, key: _Optional[_Union[WorkerKey, _Mapping]] = ..., pid: _Optional[int] = ..., cpu_s: _Optional[float] = ...) -> None: ...

class AskLease(_message.Message):
    __slots__ = ("asked_at",)
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    asked_at: float
    def __init__(self, asked_at: _Optional[float] = ...) -> None: ...

class DrainAsked(_message.Message):
    __slots__ = ("reason", "exit_code", "number", "is_notice")
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_NOTICE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    exit_code: int
    number: int
    is_notice: bool
    def __init__(self, reason: _Optional[str] = ..., exit_code: _Optional[int] = ..., number: _Optional[int] = ..., is_notice: bool = ...) -> None: ...

class HandPlace(_message.Message):
    __slots__ = ("job_id", "number", "nodes", "first", "workers_per_replica", "master_addr")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    WORKERS_PER_REPLICA_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    number: int
    nodes: int
    first: int
    workers_per_replica: int
    master_addr: str
    def __init__(self, job_id: _Optional[str] = ..., number: _Optional[int] = ..., nodes: _Optional[int] = ..., first: _Optional[int] = ..., workers_per_replica: _Optional[int] = ..., master_addr: _Optional[str] = ...) -> None: ...

class StartRanks(_message.Message):
    __slots__ = ("replica_id", "incarnation", "restarts", "port", "lighthouse", "world_port")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    LIGHTHOUSE_FIELD_NUMBER: _ClassVar[int]
    WORLD_PORT_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    restarts: int
    port: int
    lighthouse: str
    world_port: int
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., restarts: _Optional[int] = ..., port: _Optional[int] = ..., lighthouse: _Optional[str] = ..., world_port: _Optional[int] = ...) -> None: ...

class RankFacts(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerFacts]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerFacts, _Mapping]]] = ...) -> None: ...

class RankKept(_message.Message):
    __slots__ = ("group_rank", "steps", "is_copy", "fall", "marks")
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    IS_COPY_FIELD_NUMBER: _ClassVar[int]
    FALL_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    group_rank: int
    steps: _containers.RepeatedScalarFieldContainer[int]
    is_copy: bool
    fall: int
    marks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group_rank: _Optional[int] = ..., steps: _Optional[_Iterable[int]] = ..., is_copy: bool = ..., fall: _Optional[int] = ..., marks: _Optional[_Iterable[int]] = ...) -> None: ...

class RanksKept(_message.Message):
    __slots__ = ("incarnation", "ranks", "address", "certificate", "topology", "copied", "reason", "number")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    ranks: _containers.RepeatedCompositeFieldContainer[RankKept]
    address: str
    certificate: str
    topology: str
    copied: int
    reason: str
    number: int
    def __init__(self, incarnation: _Optional[str] = ..., ranks: _Optional[_Iterable[_Union[RankKept, _Mapping]]] = ..., address: _Optional[str] = ..., certificate: _Optional[str] = ..., topology: _Optional[str] = ..., copied: _Optional[int] = ..., reason: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class RankSource(_message.Message):
    __slots__ = ("group_rank", "node", "address", "certificate")
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    group_rank: int
    node: str
    address: str
    certificate: str
    def __init__(self, group_rank: _Optional[int] = ..., node: _Optional[str] = ..., address: _Optional[str] = ..., certificate: _Optional[str] = ...) -> None: ...

class KeepRanks(_message.Message):
    __slots__ = ("incarnation", "step", "pinned", "sources")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    step: int
    pinned: int
    sources: _containers.RepeatedCompositeFieldContainer[RankSource]
    def __init__(self, incarnation: _Optional[str] = ..., step: _Optional[int] = ..., pinned: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[RankSource, _Mapping]]] = ...) -> None: ...

class RanksStored(_message.Message):
    __slots__ = ("name", "reason", "is_damaged")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_DAMAGED_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    is_damaged: bool
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., is_damaged: bool = ...) -> None: ...

class WriteRanks(_message.Message):
    __slots__ = ("incarnation", "step", "name", "limit_s")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    step: int
    name: str
    limit_s: float
    def __init__(self, incarnation: _Optional[str] = ..., step: _Optional[int] = ..., name: _Optional[str] = ..., limit_s: _Optional[float] = ...) -> None: ...

class FillRanks(_message.Message):
    __slots__ = ("replica_id", "incarnation", "step", "name", "digest")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    step: int
    name: str
    digest: str
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., step: _Optional[int] = ..., name: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class RewindRanks(_message.Message):
    __slots__ = ("start", "number", "step", "sources")
    START_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    start: StartRanks
    number: int
    step: int
    sources: _containers.RepeatedCompositeFieldContainer[RankSource]
    def __init__(self, start: _Optional[_Union[StartRanks, _Mapping]] = ..., number: _Optional[int] = ..., step: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[RankSource, _Mapping]]] = ...) -> None: ...

class ReplaceRank(_message.Message):
    __slots__ = ("replica_id", "incarnation", "restarts", "group_rank")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    restarts: int
    group_rank: int
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., restarts: _Optional[int] = ..., group_rank: _Optional[int] = ...) -> None: ...

class GroupDue(_message.Message):
    __slots__ = ("incarnation", "word")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    word: int
    def __init__(self, incarnation: _Optional[str] = ..., word: _Optional[int] = ...) -> None: ...

class GroupDecree(_message.Message):
    __slots__ = ("incarnation", "number", "lost")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    number: int
    lost: int
    def __init__(self, incarnation: _Optional[str] = ..., number: _Optional[int] = ..., lost: _Optional[int] = ...) -> None: ...

class RankWords(_message.Message):
    __slots__ = ("group_rank", "published", "joined", "over", "fall", "broken", "groups", "done", "appends")
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    FALL_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    APPENDS_FIELD_NUMBER: _ClassVar[int]
    group_rank: int
    published: int
    joined: int
    over: bool
    fall: int
    broken: int
    groups: _containers.RepeatedScalarFieldContainer[int]
    done: _containers.RepeatedScalarFieldContainer[int]
    appends: int
    def __init__(self, group_rank: _Optional[int] = ..., published: _Optional[int] = ..., joined: _Optional[int] = ..., over: bool = ..., fall: _Optional[int] = ..., broken: _Optional[int] = ..., groups: _Optional[_Iterable[int]] = ..., done: _Optional[_Iterable[int]] = ..., appends: _Optional[int] = ...) -> None: ...

class GroupWords(_message.Message):
    __slots__ = ("incarnation", "number", "ranks")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    number: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankWords]
    def __init__(self, incarnation: _Optional[str] = ..., number: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankWords, _Mapping]]] = ...) -> None: ...

class SignalRanks(_message.Message):
    __slots__ = ("replica_id", "incarnation", "number", "group_rank", "asks")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    ASKS_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    number: int
    group_rank: int
    asks: bool
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., number: _Optional[int] = ..., group_rank: _Optional[int] = ..., asks: bool = ...) -> None: ...

class SweepRanks(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    def __init__(self, incarnation: _Optional[str] = ...) -> None: ...

class ToRanks(_message.Message):
    __slots__ = ("replica_id", "incarnation", "group_rank", "interrupt", "new_quorum", "prepare", "propose_switch", "switch", "cancel", "ask_report", "roster", "leave_now")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_FIELD_NUMBER: _ClassVar[int]
    NEW_QUORUM_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_SWITCH_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ASK_REPORT_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    LEAVE_NOW_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    incarnation: str
    group_rank: int
    interrupt: Interrupt
    new_quorum: NewQuorum
    prepare: Prepare
    propose_switch: ProposeSwitch
    switch: Switch
    cancel: Cancel
    ask_report: AskReport
    roster: Roster
    leave_now: LeaveNow
    def __init__(self, replica_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., group_rank: _Optional[int] = ..., interrupt: _Optional[_Union[Interrupt, _Mapping]] = ..., new_quorum: _Optional[_Union[NewQuorum, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., propose_switch: _Optional[_Union[ProposeSwitch, _Mapping]] = ..., switch: _Optional[_Union[Switch, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., ask_report: _Optional[_Union[AskReport, _Mapping]] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ..., leave_now: _Optional[_Union[LeaveNow, _Mapping]] = ...) -> None: ...

class LeaseLeft(_message.Message):
    __slots__ = ("asked_at", "left_s")
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    asked_at: float
    left_s: float
    def __init__(self, asked_at: _Optional[float] = ..., left_s: _Optional[float] = ...) -> None: ...

class NodeHello(_message.Message):
    __slots__ = ("node_id", "node", "host", "address", "certificate", "workers", "rank", "label", "spec", "expected", "spares", "team", "members", "version")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    SPARES_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    node: str
    host: str
    address: str
    certificate: str
    workers: int
    rank: int
    label: str
    spec: JobSpec
    expected: int
    spares: int
    team: int
    members: _containers.RepeatedScalarFieldContainer[str]
    version: int
    def __init__(self, node_id: _Optional[str] = ..., node: _Optional[str] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., certificate: _Optional[str] = ..., workers: _Optional[int] = ..., rank: _Optional[int] = ..., label: _Optional[str] = ..., spec: _Optional[_Union[JobSpec, _Mapping]] = ..., expected: _Optional[int] = ..., spares: _Optional[int] = ..., team: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., version: _Optional[int] = ...) -> None: ...

class MemberGone(_message.Message):
    __slots__ = ("node_id", "reason")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    reason: str
    def __init__(self, node_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class TeamPlace(_message.Message):
    __slots__ = ("team", "place", "members", "host", "address", "certificate", "placed")
    TEAM_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    team: int
    place: int
    members: _containers.RepeatedScalarFieldContainer[str]
    host: str
    address: str
    certificate: str
    placed: int
    def __init__(self, team: _Optional[int] = ..., place: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., certificate: _Optional[str] = ..., placed: _Optional[int] = ...) -> None: ...

class NodeFree(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("interrupt", "new_quorum", "prepare", "propose_switch", "switch", "cancel", "ask_report", "roster", "report", "built", "build_failed", "promised", "refused", "in_force", "errored", "healed", "leaving", "progress", "present", "worker_hello", "failure_report", "lease", "leave_now", "no_manager", "beat", "another_form", "hello", "worker_message", "replica_started", "replica_lost", "replica_finished", "heartbeat", "agent_leaving", "job_failed", "goodbye", "worker_stacks", "failure_evidence", "replica_given_up", "peers_silent", "welcome", "assign_slots", "to_workers", "restart_replica", "heartbeat_ack", "notice", "end_job", "rejected", "stop_replica", "kill_workers", "ask_stacks", "drain_agent", "incident_record", "ask_heartbeat", "hand_hello", "rank_ended", "rank_message", "worker_disconnected", "worker_used", "ask_lease", "drain_asked", "rank_facts", "ranks_kept", "ranks_stored", "hand_place", "start_ranks", "signal_ranks", "sweep_ranks", "to_ranks", "lease_left", "keep_ranks", "rewind_ranks", "replace_rank", "group_due", "write_ranks", "fill_ranks", "group_decree", "group_words", "node_hello", "member_gone", "team_place", "node_free")
    INTERRUPT_FIELD_NUMBER: _ClassVar[int]
    NEW_QUORUM_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_SWITCH_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ASK_REPORT_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    BUILT_FIELD_NUMBER: _ClassVar[int]
    BUILD_FAILED_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    ERRORED_FIELD_NUMBER: _ClassVar[int]
    HEALED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    WORKER_HELLO_FIELD_NUMBER: _ClassVar[int]
    FAILURE_REPORT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_NOW_FIELD_NUMBER: _ClassVar[int]
    NO_MANAGER_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    ANOTHER_FORM_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WORKER_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_STARTED_FIELD_NUMBER: _ClassVar[int]
    REPLICA_LOST_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FINISHED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    AGENT_LEAVING_FIELD_NUMBER: _ClassVar[int]
    JOB_FAILED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    WORKER_STACKS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    PEERS_SILENT_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TO_WORKERS_FIELD_NUMBER: _ClassVar[int]
    RESTART_REPLICA_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ACK_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    END_JOB_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    STOP_REPLICA_FIELD_NUMBER: _ClassVar[int]
    KILL_WORKERS_FIELD_NUMBER: _ClassVar[int]
    ASK_STACKS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_AGENT_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_RECORD_FIELD_NUMBER: _ClassVar[int]
    ASK_HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HAND_HELLO_FIELD_NUMBER: _ClassVar[int]
    RANK_ENDED_FIELD_NUMBER: _ClassVar[int]
    RANK_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    WORKER_DISCONNECTED_FIELD_NUMBER: _ClassVar[int]
    WORKER_USED_FIELD_NUMBER: _ClassVar[int]
    ASK_LEASE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_ASKED_FIELD_NUMBER: _ClassVar[int]
    RANK_FACTS_FIELD_NUMBER: _ClassVar[int]
    RANKS_KEPT_FIELD_NUMBER: _ClassVar[int]
    RANKS_STORED_FIELD_NUMBER: _ClassVar[int]
    HAND_PLACE_FIELD_NUMBER: _ClassVar[int]
    START_RANKS_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_RANKS_FIELD_NUMBER: _ClassVar[int]
    SWEEP_RANKS_FIELD_NUMBER: _ClassVar[int]
    TO_RANKS_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_FIELD_NUMBER: _ClassVar[int]
    KEEP_RANKS_FIELD_NUMBER: _ClassVar[int]
    REWIND_RANKS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_RANK_FIELD_NUMBER: _ClassVar[int]
    GROUP_DUE_FIELD_NUMBER: _ClassVar[int]
    WRITE_RANKS_FIELD_NUMBER: _ClassVar[int]
    FILL_RANKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_DECREE_FIELD_NUMBER: _ClassVar[int]
    GROUP_WORDS_FIELD_NUMBER: _ClassVar[int]
    NODE_HELLO_FIELD_NUMBER: _ClassVar[int]
    MEMBER_GONE_FIELD_NUMBER: _ClassVar[int]
    TEAM_PLACE_FIELD_NUMBER: _ClassVar[int]
    NODE_FREE_FIELD_NUMBER: _ClassVar[int]
    interrupt: Interrupt
    new_quorum: NewQuorum
    prepare: Prepare
    propose_switch: ProposeSwitch
    switch: Switch
    cancel: Cancel
    ask_report: AskReport
    roster: Roster
    report: Report
    built: Built
    build_failed: BuildFailed
    promised: Promised
    refused: Refused
    in_force: InForce
    errored: Errored
    healed: Healed
    leaving: Leaving
    progress: Progress
    present: Present
    worker_hello: WorkerHello
    failure_report: FailureReport
    lease: Lease
    leave_now: LeaveNow
    no_manager: NoManager
    beat: Beat
    another_form: AnotherForm
    hello: Hello
    worker_message: WorkerMessage
    replica_started: ReplicaStarted
    replica_lost: ReplicaLost
    replica_finished: ReplicaFinished
    heartbeat: Heartbeat
    agent_leaving: AgentLeaving
    job_failed: JobFailed
    goodbye: Goodbye
    worker_stacks: WorkerStacks
    failure_evidence: FailureEvidence
    replica_given_up: ReplicaGivenUp
    peers_silent: PeersSilent
    welcome: Welcome
    assign_slots: AssignSlots
    to_workers: ToWorkers
    restart_replica: RestartReplica
    heartbeat_ack: HeartbeatAck
    notice: Notice
    end_job: EndJob
    rejected: Rejected
    stop_replica: StopReplica
    kill_workers: KillWorkers
    ask_stacks: AskStacks
    drain_agent: DrainAgent
    incident_record: IncidentRecord
    ask_heartbeat: AskHeartbeat
    hand_hello: HandHello
    rank_ended: RankEnded
    rank_message: RankMessage
    worker_disconnected: WorkerDisconnected
    worker_used: WorkerUsed
    ask_lease: AskLease
    drain_asked: DrainAsked
    rank_facts: RankFacts
    ranks_kept: RanksKept
    ranks_stored: RanksStored
    hand_place: HandPlace
    start_ranks: StartRanks
    signal_ranks: SignalRanks
    sweep_ranks: SweepRanks
    to_ranks: ToRanks
    lease_left: LeaseLeft
    keep_ranks: KeepRanks
    rewind_ranks: RewindRanks
    replace_rank: ReplaceRank
    group_due: GroupDue
    write_ranks: WriteRanks
    fill_ranks: FillRanks
    group_decree: GroupDecree
    group_words: GroupWords
    node_hello: NodeHello
    member_gone: MemberGone
    team_place: TeamPlace
    node_free: NodeFree
    def __init__(self, interrupt: _Optional[_Union[Interrupt, _Mapping]] = ..., new_quorum: _Optional[_Union[NewQuorum, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., propose_switch: _Optional[_Union[ProposeSwitch, _Mapping]] = ..., switch: _Optional[_Union[Switch, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., ask_report: _Optional[_Union[AskReport, _Mapping]] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., built: _Optional[_Union[Built, _Mapping]] = ..., build_failed: _Optional[_Union[BuildFailed, _Mapping]] = ..., promised: _Optional[_Union[Promised, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., in_force: _Optional[_Union[InForce, _Mapping]] = ..., errored: _Optional[_Union[Errored, _Mapping]] = ..., healed: _Optional[_Union[Healed, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., present: _Optional[_Union[Present, _Mapping]] = ..., worker_hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., failure_report: _Optional[_Union[FailureReport, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., leave_now: _Optional[_Union[LeaveNow, _Mapping]] = ..., no_manager: _Optional[_Union[NoManager, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., another_form: _Optional[_Union[AnotherForm, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., worker_message: _Optional[_Union[WorkerMessage, _Mapping]] = ..., replica_started: _Optional[_Union[ReplicaStarted, _Mapping]] = ..., replica_lost: _Optional[_Union[ReplicaLost, _Mapping]] = ..., replica_finished: _Optional[_Union[ReplicaFinished, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., agent_leaving: _Optional[_Union[AgentLeaving, _Mapping]] = ..., job_failed: _Optional[_Union[JobFailed, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., worker_stacks: _Optional[_Union[WorkerStacks, _Mapping]] = ..., failure_evidence: _Optional[_Union[FailureEvidence, _Mapping]] = ..., replica_given_up: _Optional[_Union[ReplicaGivenUp, _Mapping]] = ..., peers_silent: _Optional[_Union[PeersSilent, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., assign_slots: _Optional[_Union[AssignSlots, _Mapping]] = ..., to_workers: _Optional[_Union[ToWorkers, _Mapping]] = ..., restart_replica: _Optional[_Union[RestartReplica, _Mapping]] = ..., heartbeat_ack: _Optional[_Union[HeartbeatAck, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., end_job: _Optional[_Union[EndJob, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., stop_replica: _Optional[_Union[StopReplica, _Mapping]] = ..., kill_workers: _Optional[_Union[KillWorkers, _Mapping]] = ..., ask_stacks: _Optional[_Union[AskStacks, _Mapping]] = ..., drain_agent: _Optional[_Union[DrainAgent, _Mapping]] = ..., incident_record: _Optional[_Union[IncidentRecord, _Mapping]] = ..., ask_heartbeat: _Optional[_Union[AskHeartbeat, _Mapping]] = ..., hand_hello: _Optional[_Union[HandHello, _Mapping]] = ..., rank_ended: _Optional[_Union[RankEnded, _Mapping]] = ..., rank_message: _Optional[_Union[RankMessage, _Mapping]] = ..., worker_disconnected: _Optional[_Union[WorkerDisconnected, _Mapping]] = ..., worker_used: _Optional[_Union[WorkerUsed, _Mapping]] = ..., ask_lease: _Optional[_Union[AskLease, _Mapping]] = ..., drain_asked: _Optional[_Union[DrainAsked, _Mapping]] = ..., rank_facts: _Optional[_Union[RankFacts, _Mapping]] = ..., ranks_kept: _Optional[_Union[RanksKept, _Mapping]] = ..., ranks_stored: _Optional[_Union[RanksStored, _Mapping]] = ..., hand_place: _Optional[_Union[HandPlace, _Mapping]] = ..., start_ranks: _Optional[_Union[StartRanks, _Mapping]] = ..., signal_ranks: _Optional[_Union[SignalRanks, _Mapping]] = ..., sweep_ranks: _Optional[_Union[SweepRanks, _Mapping]] = ..., to_ranks: _Optional[_Union[ToRanks, _Mapping]] = ..., lease_left: _Optional[_Union[LeaseLeft, _Mapping]] = ..., keep_ranks: _Optional[_Union[KeepRanks, _Mapping]] = ..., rewind_ranks: _Optional[_Union[RewindRanks, _Mapping]] = ..., replace_rank: _Optional[_Union[ReplaceRank, _Mapping]] = ..., group_due: _Optional[_Union[GroupDue, _Mapping]] = ..., write_ranks: _Optional[_Union[WriteRanks, _Mapping]] = ..., fill_ranks: _Optional[_Union[FillRanks, _Mapping]] = ..., group_decree: _Optional[_Union[GroupDecree, _Mapping]] = ..., group_words: _Optional[_Union[GroupWords, _Mapping]] = ..., node_hello: _Optional[_Union[NodeHello, _Mapping]] = ..., member_gone: _Optional[_Union[MemberGone, _Mapping]] = ..., team_place: _Optional[_Union[TeamPlace, _Mapping]] = ..., node_free: _Optional[_Union[NodeFree, _Mapping]] = ...) -> None: ...
