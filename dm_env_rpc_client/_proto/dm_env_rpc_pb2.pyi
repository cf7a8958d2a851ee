from google.protobuf import any_pb2 as _any_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INVALID_DATA_TYPE: _ClassVar[DataType]
    FLOAT: _ClassVar[DataType]
    DOUBLE: _ClassVar[DataType]
    INT8: _ClassVar[DataType]
    INT32: _ClassVar[DataType]
    INT64: _ClassVar[DataType]
    UINT8: _ClassVar[DataType]
    UINT32: _ClassVar[DataType]
    UINT64: _ClassVar[DataType]
    BOOL: _ClassVar[DataType]
    STRING: _ClassVar[DataType]
    PROTO: _ClassVar[DataType]

class EnvironmentStateType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INVALID_ENVIRONMENT_STATE: _ClassVar[EnvironmentStateType]
    RUNNING: _ClassVar[EnvironmentStateType]
    TERMINATED: _ClassVar[EnvironmentStateType]
    INTERRUPTED: _ClassVar[EnvironmentStateType]
INVALID_DATA_TYPE: DataType
FLOAT: DataType
DOUBLE: DataType
INT8: DataType
INT32: DataType
INT64: DataType
UINT8: DataType
UINT32: DataType
UINT64: DataType
BOOL: DataType
STRING: DataType
PROTO: DataType
INVALID_ENVIRONMENT_STATE: EnvironmentStateType
RUNNING: EnvironmentStateType
TERMINATED: EnvironmentStateType
INTERRUPTED: EnvironmentStateType

class Tensor(_message.Message):
    __slots__ = ("floats", "doubles", "int8s", "int32s", "int64s", "uint8s", "uint32s", "uint64s", "bools", "strings", "protos", "shape")
    class Int8Array(_message.Message):
        __slots__ = ("array",)
        ARRAY_FIELD_NUMBER: _ClassVar[int]
        array: bytes
        def __init__(self, array: _Optional[bytes] = ...) -> None: ...
    class Int32Array(_message.Message):
        __slots__ = ("array",)
        ARRAY_FIELD_NUMBER: _ClassVar[int]
        array: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, array: _Optional[_Iterable[int]] = ...) -> None: ...
    class Int64Array(_message.Message):
        __slots__ = ("array",)
        ARRAY_FIELD_NUMBER: _ClassVar[int]
        array: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, array: _Optional[_Iterable[int]] = ...) -> None: ...
    class Uint8Array(_message.Message):
        __slots__ = ("array",)
        ARRAY_FIELD_NUMBER: _ClassVar[int]
        array: bytes
        def __init__(self, array: _Optional[bytes] = ...) -> None: ...
    class Uint32Array(_message.Message):
        __slots__ = ("array",)
        ARRAY_FIELD_NUMBER: _ClassVar[int]
        array: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, array: _Optional[_Iterable[int]] = ...) -> None: ...
    class Uint64Array(_message.Message):
        __slots__ = ("array",)
        ARRAY_FIELD_NUMBER: _ClassVar[int]
        array: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, array: _Optional[_Iterable[int]] = ...) -> None: ...
    class FloatArray(_message.Message):
        __slots__ = ("array",)
        ARRAY_FIELD_NUMBER: _ClassVar[int]
        array: _containers.RepeatedScalarFieldContainer[float]
        def __init__(self, array: _Optional[_Iterable[float]] = ...) -> None: ...
    class DoubleArray(_message.Message):
        __slots__ = ("array",)
        ARRAY_FIELD_NUMBER: _ClassVar[int]
        array: _containers.RepeatedScalarFieldContainer[float]
        def __init__(self, array: _Optional[_Iterable[float]] = ...) -> None: ...
    class BoolArray(_message.Message):
        __slots__ = ("array",)
        ARRAY_FIELD_NUMBER: _ClassVar[int]
        array: _containers.RepeatedScalarFieldContainer[bool]
        def __init__(self, array: _Optional[_Iterable[bool]] = ...) -> None: ...
    class StringArray(_message.Message):
        __slots__ = ("array",)
        ARRAY_FIELD_NUMBER: _ClassVar[int]
        array: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, array: _Optional[_Iterable[str]] = ...) -> None: ...
    class ProtoArray(_message.Message):
        __slots__ = ("array",)
        ARRAY_FIELD_NUMBER: _ClassVar[int]
        array: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
        def __init__(self, array: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...
    FLOATS_FIELD_NUMBER: _ClassVar[int]
    DOUBLES_FIELD_NUMBER: _ClassVar[int]
    INT8S_FIELD_NUMBER: _ClassVar[int]
    INT32S_FIELD_NUMBER: _ClassVar[int]
    INT64S_FIELD_NUMBER: _ClassVar[int]
    UINT8S_FIELD_NUMBER: _ClassVar[int]
    UINT32S_FIELD_NUMBER: _ClassVar[int]
    UINT64S_FIELD_NUMBER: _ClassVar[int]
    BOOLS_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    PROTOS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    floats: Tensor.FloatArray
    doubles: Tensor.DoubleArray
    int8s: Tensor.Int8Array
    int32s: Tensor.Int32Array
    int64s: Tensor.Int64Array
    uint8s: Tensor.Uint8Array
    uint32s: Tensor.Uint32Array
    uint64s: Tensor.Uint64Array
    bools: Tensor.BoolArray
    strings: Tensor.StringArray
    protos: Tensor.ProtoArray
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, floats: _Optional[_Union[Tensor.FloatArray, _Mapping]] = ..., doubles: _Optional[_Union[Tensor.DoubleArray, _Mapping]] = ..., int8s: _Optional[_Union[Tensor.Int8Array, _Mapping]] = ..., int32s: _Optional[_Union[Tensor.Int32Array, _Mapping]] = ..., int64s: _Optional[_Union[Tensor.Int64Array, _Mapping]] = ..., uint8s: _Optional[_Union[Tensor.Uint8Array, _Mapping]] = ..., uint32s: _Optional[_Union[Tensor.Uint32Array, _Mapping]] = ..., uint64s: _Optional[_Union[Tensor.Uint64Array, _Mapping]] = ..., bools: _Optional[_Union[Tensor.BoolArray, _Mapping]] = ..., strings: _Optional[_Union[Tensor.StringArray, _Mapping]] = ..., protos: _Optional[_Union[Tensor.ProtoArray, _Mapping]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "shape", "dtype", "min", "max")
    class Value(_message.Message):
        __slots__ = ("floats", "doubles", "int8s", "int32s", "int64s", "uint8s", "uint32s", "uint64s")
        FLOATS_FIELD_NUMBER: _ClassVar[int]
        DOUBLES_FIELD_NUMBER: _ClassVar[int]
        INT8S_FIELD_NUMBER: _ClassVar[int]
        INT32S_FIELD_NUMBER: _ClassVar[int]
        INT64S_FIELD_NUMBER: _ClassVar[int]
        UINT8S_FIELD_NUMBER: _ClassVar[int]
        UINT32S_FIELD_NUMBER: _ClassVar[int]
        UINT64S_FIELD_NUMBER: _ClassVar[int]
        floats: Tensor.FloatArray
        doubles: Tensor.DoubleArray
        int8s: Tensor.Int8Array
        int32s: Tensor.Int32Array
        int64s: Tensor.Int64Array
        uint8s: Tensor.Uint8Array
        uint32s: Tensor.Uint32Array
        uint64s: Tensor.Uint64Array
        def __init__(self, floats: _Optional[_Union[Tensor.FloatArray, _Mapping]] = ..., doubles: _Optional[_Union[Tensor.DoubleArray, _Mapping]] = ..., int8s: _Optional[_Union[Tensor.Int8Array, _Mapping]] = ..., int32s: _Optional[_Union[Tensor.Int32Array, _Mapping]] = ..., int64s: _Optional[_Union[Tensor.Int64Array, _Mapping]] = ..., uint8s: _Optional[_Union[Tensor.Uint8Array, _Mapping]] = ..., uint32s: _Optional[_Union[Tensor.Uint32Array, _Mapping]] = ..., uint64s: _Optional[_Union[Tensor.Uint64Array, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: DataType
    min: TensorSpec.Value
    max: TensorSpec.Value
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[_Union[DataType, str]] = ..., min: _Optional[_Union[TensorSpec.Value, _Mapping]] = ..., max: _Optional[_Union[TensorSpec.Value, _Mapping]] = ...) -> None: ...

class CreateWorldRequest(_message.Message):
    __slots__ = ("settings",)
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.MessageMap[str, Tensor]
    def __init__(self, settings: _Optional[_Mapping[str, Tensor]] = ...) -> None: ...

class CreateWorldResponse(_message.Message):
    __slots__ = ("world_name",)
    WORLD_NAME_FIELD_NUMBER: _ClassVar[int]
    world_name: str
    def __init__(self, world_name: _Optional[str] = ...) -> None: ...

class ActionObservationSpecs(_message.Message):
    __slots__ = ("actions", "observations")
    class ActionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: TensorSpec
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[TensorSpec, _Mapping]] = ...) -> None: ...
    class ObservationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: TensorSpec
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[TensorSpec, _Mapping]] = ...) -> None: ...
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.MessageMap[int, TensorSpec]
    observations: _containers.MessageMap[int, TensorSpec]
    def __init__(self, actions: _Optional[_Mapping[int, TensorSpec]] = ..., observations: _Optional[_Mapping[int, TensorSpec]] = ...) -> None: ...

class JoinWorldRequest(_message.Message):
    __slots__ = ("world_name", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    WORLD_NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    world_name: str
    settings: _containers.MessageMap[str, Tensor]
    def __init__(self, world_name: _Optional[str] = ..., settings: _Optional[_Mapping[str, Tensor]] = ...) -> None: ...

class JoinWorldResponse(_message.Message):
    __slots__ = ("specs",)
    SPECS_FIELD_NUMBER: _ClassVar[int]
    specs: ActionObservationSpecs
    def __init__(self, specs: _Optional[_Union[ActionObservationSpecs, _Mapping]] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("actions", "requested_observations")
    class ActionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Tensor
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.MessageMap[int, Tensor]
    requested_observations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, actions: _Optional[_Mapping[int, Tensor]] = ..., requested_observations: _Optional[_Iterable[int]] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("state", "observations")
    class ObservationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Tensor
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    state: EnvironmentStateType
    observations: _containers.MessageMap[int, Tensor]
    def __init__(self, state: _Optional[_Union[EnvironmentStateType, str]] = ..., observations: _Optional[_Mapping[int, Tensor]] = ...) -> None: ...

class ResetRequest(_message.Message):
    __slots__ = ("settings",)
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.MessageMap[str, Tensor]
    def __init__(self, settings: _Optional[_Mapping[str, Tensor]] = ...) -> None: ...

class ResetResponse(_message.Message):
    __slots__ = ("specs",)
    SPECS_FIELD_NUMBER: _ClassVar[int]
    specs: ActionObservationSpecs
    def __init__(self, specs: _Optional[_Union[ActionObservationSpecs, _Mapping]] = ...) -> None: ...

class ResetWorldRequest(_message.Message):
    __slots__ = ("world_name", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    WORLD_NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    world_name: str
    settings: _containers.MessageMap[str, Tensor]
    def __init__(self, world_name: _Optional[str] = ..., settings: _Optional[_Mapping[str, Tensor]] = ...) -> None: ...

class ResetWorldResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveWorldRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveWorldResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DestroyWorldRequest(_message.Message):
    __slots__ = ("world_name",)
    WORLD_NAME_FIELD_NUMBER: _ClassVar[int]
    world_name: str
    def __init__(self, world_name: _Optional[str] = ...) -> None: ...

class DestroyWorldResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EnvironmentRequest(_message.Message):
    __slots__ = ("create_world", "join_world", "step", "reset", "reset_world", "leave_world", "destroy_world", "extension")
    CREATE_WORLD_FIELD_NUMBER: _ClassVar[int]
    JOIN_WORLD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    RESET_WORLD_FIELD_NUMBER: _ClassVar[int]
    LEAVE_WORLD_FIELD_NUMBER: _ClassVar[int]
    DESTROY_WORLD_FIELD_NUMBER: _ClassVar[int]
    EXTENSION_FIELD_NUMBER: _ClassVar[int]
    create_world: CreateWorldRequest
    join_world: JoinWorldRequest
    step: StepRequest
    reset: ResetRequest
    reset_world: ResetWorldRequest
    leave_world: LeaveWorldRequest
    destroy_world: DestroyWorldRequest
    extension: _any_pb2.Any
    def __init__(self, create_world: _Optional[_Union[CreateWorldRequest, _Mapping]] = ..., join_world: _Optional[_Union[JoinWorldRequest, _Mapping]] = ..., step: _Optional[_Union[StepRequest, _Mapping]] = ..., reset: _Optional[_Union[ResetRequest, _Mapping]] = ..., reset_world: _Optional[_Union[ResetWorldRequest, _Mapping]] = ..., leave_world: _Optional[_Union[LeaveWorldRequest, _Mapping]] = ..., destroy_world: _Optional[_Union[DestroyWorldRequest, _Mapping]] = ..., extension: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...

class EnvironmentResponse(_message.Message):
    __slots__ = ("create_world", "join_world", "step", "reset", "reset_world", "leave_world", "destroy_world", "extension", "error")
    CREATE_WORLD_FIELD_NUMBER: _ClassVar[int]
    JOIN_WORLD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    RESET_WORLD_FIELD_NUMBER: _ClassVar[int]
    LEAVE_WORLD_FIELD_NUMBER: _ClassVar[int]
    DESTROY_WORLD_FIELD_NUMBER: _ClassVar[int]
    EXTENSION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    create_world: CreateWorldResponse
    join_world: JoinWorldResponse
    step: StepResponse
    reset: ResetResponse
    reset_world: ResetWorldResponse
    leave_world: LeaveWorldResponse
    destroy_world: DestroyWorldResponse
    extension: _any_pb2.Any
    error: _status_pb2.Status
    def __init__(self, create_world: _Optional[_Union[CreateWorldResponse, _Mapping]] = ..., join_world: _Optional[_Union[JoinWorldResponse, _Mapping]] = ..., step: _Optional[_Union[StepResponse, _Mapping]] = ..., reset: _Optional[_Union[ResetResponse, _Mapping]] = ..., reset_world: _Optional[_Union[ResetWorldResponse, _Mapping]] = ..., leave_world: _Optional[_Union[LeaveWorldResponse, _Mapping]] = ..., destroy_world: _Optional[_Union[DestroyWorldResponse, _Mapping]] = ..., extension: _Optional[_Union[_any_pb2.Any, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...
