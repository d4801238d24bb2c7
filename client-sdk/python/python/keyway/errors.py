"""What can go wrong. Every exception is a `KeywayError`, and the standard one that fits too."""

from __future__ import annotations


class KeywayError(Exception):
    """Anything that fails here."""


class InvalidArgument(KeywayError, ValueError):
    """A value that does not hold: a name, an option, an address."""


class ServiceError(KeywayError):
    """The service refused, or failed."""

    #: S3's error code, such as ``NoSuchKey``.
    code: str | None = None
    #: The HTTP status.
    status: int | None = None
    #: The service's name for the request, to be quoted in complaints.
    request_id: str | None = None


class NotFound(ServiceError, FileNotFoundError):
    """There is no such object, bucket or upload."""


class AccessDenied(ServiceError, PermissionError):
    """The service refuses the caller."""


class PreconditionFailed(ServiceError):
    """A condition of the request does not hold: the object is there, or is another."""


class Throttled(ServiceError):
    """The service asks for less, and went on asking."""


class ConnectionFailed(KeywayError, ConnectionError):
    """No connection to the service, or one that broke."""


class DeadlineExceeded(KeywayError, TimeoutError):
    """The caller's time-out passed."""


class ChecksumMismatch(KeywayError):
    """The bytes are not those that were stored or sent."""


class ObjectChanged(KeywayError):
    """The object was replaced while it was read."""


class MalformedAnswer(KeywayError):
    """The service's answer made no sense."""


class BufferTooSmall(KeywayError, ValueError):
    """The memory does not hold what was asked for."""


class OutOfRange(KeywayError, ValueError):
    """A range leaves its object or its memory."""


class BufferBusy(KeywayError):
    """The memory is lent to another transfer."""


class PathUnavailable(KeywayError):
    """The required path is not to be had; the message says why."""


class TransferFailed(KeywayError):
    """A transfer past HTTP failed. The key to the memory is dead."""


class GpuError(KeywayError):
    """The GPU failed, or refuses the memory."""


class NoGpu(GpuError):
    """There is no such GPU, or none at all, or none that this process may use."""


class SystemFailure(KeywayError, OSError):
    """There is no memory, no thread or no file."""
