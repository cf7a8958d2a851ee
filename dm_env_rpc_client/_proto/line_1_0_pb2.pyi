from dm_env_rpc_client._proto import dm_env_rpc_pb2 as _dm_env_rpc_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScalarBound(_message.Message):
    __slots__ = ("float", "double", "int32", "int64", "uint32", "uint64", "int8", "uint8")
    FLOAT_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_FIELD_NUMBER: _ClassVar[int]
    INT32_FIELD_NUMBER: _ClassVar[int]
    INT64_FIELD_NUMBER: _ClassVar[int]
    UINT32_FIELD_NUMBER: _ClassVar[int]
    UINT64_FIELD_NUMBER: _ClassVar[int]
    INT8_FIELD_NUMBER: _ClassVar[int]
    UINT8_FIELD_NUMBER: _ClassVar[int]
    float: float
    double: float
    int32: int
    int64: int
    uint32: int
    uint64: int
    int8: int
    uint8: int
    def __init__(self, float: _Optional[float] = ..., double: _Optional[float] = ..., int32: _Optional[int] = ..., int64: _Optional[int] = ..., uint32: _Optional[int] = ..., uint64: _Optional[int] = ..., int8: _Optional[int] = ..., uint8: _Optional[int] = ...) -> None: ...

class ReadPropertyRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadPropertyResponse(_message.Message):
    __slots__ = ("properties",)
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _dm_env_rpc_pb2.Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_dm_env_rpc_pb2.Tensor, _Mapping]] = ...) -> None: ...
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    properties: _containers.MessageMap[str, _dm_env_rpc_pb2.Tensor]
    def __init__(self, properties: _Optional[_Mapping[str, _dm_env_rpc_pb2.Tensor]] = ...) -> None: ...

class WritePropertyRequest(_message.Message):
    __slots__ = ("properties",)
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _dm_env_rpc_pb2.Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_dm_env_rpc_pb2.Tensor, _Mapping]] = ...) -> None: ...
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    properties: _containers.MessageMap[str, _dm_env_rpc_pb2.Tensor]
    def __init__(self, properties: _Optional[_Mapping[str, _dm_env_rpc_pb2.Tensor]] = ...) -> None: ...

class WritePropertyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPropertyRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[str]] = ...) -> None: ...

class ListPropertyResponse(_message.Message):
    __slots__ = ("properties",)
    class Property(_message.Message):
        __slots__ = ("is_readable", "is_writeable", "is_listable", "spec")
        IS_READABLE_FIELD_NUMBER: _ClassVar[int]
        IS_WRITEABLE_FIELD_NUMBER: _ClassVar[int]
        IS_LISTABLE_FIELD_NUMBER: _ClassVar[int]
        SPEC_FIELD_NUMBER: _ClassVar[int]
        is_readable: bool
        is_writeable: bool
        is_listable: bool
        spec: _dm_env_rpc_pb2.TensorSpec
        def __init__(self, is_readable: bool = ..., is_writeable: bool = ..., is_listable: bool = ..., spec: _Optional[_Union[_dm_env_rpc_pb2.TensorSpec, _Mapping]] = ...) -> None: ...
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ListPropertyResponse.Property
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ListPropertyResponse.Property, _Mapping]] = ...) -> None: ...
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    properties: _containers.MessageMap[str, ListPropertyResponse.Property]
    def __init__(self, properties: _Optional[_Mapping[str, ListPropertyResponse.Property]] = ...) -> None: ...

class PropertyRequest(_message.Message):
    __slots__ = ("read_property", "write_property", "list_property")
    READ_PROPERTY_FIELD_NUMBER: _ClassVar[int]
    WRITE_PROPERTY_FIELD_NUMBER: _ClassVar[int]
    LIST_PROPERTY_FIELD_NUMBER: _ClassVar[int]
    read_property: ReadPropertyRequest
    write_property: WritePropertyRequest
    list_property: ListPropertyRequest
    def __init__(self, read_property: _Optional[_Union[ReadPropertyRequest, _Mapping]] = ..., write_property: _Optional[_Union[WritePropertyRequest, _Mapping]] = ..., list_property: _Optional[_Union[ListPropertyRequest, _Mapping]] = ...) -> None: ...

class PropertyResponse(_message.Message):
    __slots__ = ("read_property", "write_property", "list_property", "error")
    READ_PROPERTY_FIELD_NUMBER: _ClassVar[int]
    WRITE_PROPERTY_FIELD_NUMBER: _ClassVar[int]
    LIST_PROPERTY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    read_property: ReadPropertyResponse
    write_property: WritePropertyResponse
    list_property: ListPropertyResponse
    error: _status_pb2.Status
    def __init__(self, read_property: _Optional[_Union[ReadPropertyResponse, _Mapping]] = ..., write_property: _Optional[_Union[WritePropertyResponse, _Mapping]] = ..., list_property: _Optional[_Union[ListPropertyResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...
