"""Objects of an S3 store into and out of memory that you own.

`Client` reads into anything that shows its memory (the buffer protocol, ``__dlpack__``,
``__cuda_array_interface__``) and writes from it, without a copy in between. `keyway.safetensors`
loads and saves checkpoints, `keyway.torch` plugs into ``torch.distributed.checkpoint``, and
``fsspec`` knows the protocol ``keyway://``.
"""

from keyway._keyway import Buffer, ListedObject, ObjectInfo, Result
from keyway.client import Client
from keyway.errors import (
    AccessDenied,
    BufferBusy,
    BufferTooSmall,
    ChecksumMismatch,
    ConnectionFailed,
    DeadlineExceeded,
    GpuError,
    InvalidArgument,
    KeywayError,
    MalformedAnswer,
    NoGpu,
    NotFound,
    ObjectChanged,
    OutOfRange,
    PathUnavailable,
    PreconditionFailed,
    ServiceError,
    SystemFailure,
    Throttled,
    TransferFailed,
)

__all__ = [
    "AccessDenied",
    "Buffer",
    "BufferBusy",
    "BufferTooSmall",
    "ChecksumMismatch",
    "Client",
    "ConnectionFailed",
    "DeadlineExceeded",
    "GpuError",
    "InvalidArgument",
    "KeywayError",
    "ListedObject",
    "MalformedAnswer",
    "NoGpu",
    "NotFound",
    "ObjectChanged",
    "ObjectInfo",
    "OutOfRange",
    "PathUnavailable",
    "PreconditionFailed",
    "Result",
    "ServiceError",
    "SystemFailure",
    "Throttled",
    "TransferFailed",
]
