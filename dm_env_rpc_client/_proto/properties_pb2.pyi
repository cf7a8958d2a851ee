from dm_env_rpc_client._proto import dm_env_rpc_pb2 as _dm_env_rpc_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PropertySpec(_message.Message):
    __slots__ = ("spec", "is_readable", "is_writable", "is_listable", "description")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    IS_READABLE_FIELD_NUMBER: _ClassVar[int]
    IS_WRITABLE_FIELD_NUMBER: _ClassVar[int]
    IS_LISTABLE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    spec: _dm_env_rpc_pb2.TensorSpec
    is_readable: bool
    is_writable: bool
    is_listable: bool
    description: str
    def __init__(self, spec: _Optional[_Union[_dm_env_rpc_pb2.TensorSpec, _Mapping]] = ..., is_readable: bool = ..., is_writable: bool = ..., is_listable: bool = ..., description: _Optional[str] = ...) -> None: ...

class ListPropertyRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class ListPropertyResponse(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[PropertySpec]
    def __init__(self, values: _Optional[_Iterable[_Union[PropertySpec, _Mapping]]] = ...) -> None: ...

class ReadPropertyRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class ReadPropertyResponse(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _dm_env_rpc_pb2.Tensor
    def __init__(self, value: _Optional[_Union[_dm_env_rpc_pb2.Tensor, _Mapping]] = ...) -> None: ...

class WritePropertyRequest(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: _dm_env_rpc_pb2.Tensor
    def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_dm_env_rpc_pb2.Tensor, _Mapping]] = ...) -> None: ...

class WritePropertyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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
    __slots__ = ("read_property", "write_property", "list_property")
    READ_PROPERTY_FIELD_NUMBER: _ClassVar[int]
    WRITE_PROPERTY_FIELD_NUMBER: _ClassVar[int]
    LIST_PROPERTY_FIELD_NUMBER: _ClassVar[int]
    read_property: ReadPropertyResponse
    write_property: WritePropertyResponse
    list_property: ListPropertyResponse
    def __init__(self, read_property: _Optional[_Union[ReadPropertyResponse, _Mapping]] = ..., write_property: _Optional[_Union[WritePropertyResponse, _Mapping]] = ..., list_property: _Optional[_Union[ListPropertyResponse, _Mapping]] = ...) -> None: ...
