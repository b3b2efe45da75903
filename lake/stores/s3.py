"""A store in a bucket that speaks S3, through boto3; the only module that imports it.

An object is created by one conditional PutObject (`If-None-Match: *`, with its sha256), or above
`multipart_above` by a multipart upload whose completion is conditional and carries a checksum of the whole.
Each process has clients of its own, made at first use; a forked child makes new ones. Credentials come from
the standard AWS chain, which is asked again once when the store refuses them; they are never printed.
"""

from __future__ import annotations

import base64
import hashlib
import io
import random
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import IO, Any, Self, TypeVar

import boto3
import botocore.session
from botocore import UNSIGNED
from botocore import exceptions as aws
from botocore.config import Config
from botocore.utils import parse_timestamp

from lake import _os
from lake.errors import ConfigError, IntegrityError, LakeError, NotFoundError, StoreError
from lake.stores import s3_errors
from lake.stores.base import Buffer, Object, check_key, check_prefix

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
_ASK_AGAIN = 30.0  # seconds after which the store is asked for its time rather than our clock
_DELETES = 1000  # keys a request, the protocol's limit
_PARTS = 10_000  # a multipart upload, likewise
_CONFLICTS = 8  # times that a create is repeated after "try again" before it counts as failed
_PAUSE = (0.05, 2.0)  # seconds: the first pause is at most this, the longest at most that
_CREATES = frozenset({"put_object", "copy_object", "complete_multipart_upload"})
_READ_PIECE = 1 * MiB  # urllib3 copies what it reads into a buffer: pieces stay in the processor's cache

_T = TypeVar("_T")
Parts = list[dict[str, Any]]  # of a multipart upload: number, tag and checksum of each
_clock = _os.SteadyClock()
_alive: weakref.WeakSet[S3Store] = weakref.WeakSet()


class S3Store:
    """The store under `s3://bucket/prefix`.

    `concurrency`: connections kept open. `attempts`: how often a request is sent before it fails.
    `single_writer`: do with a store that ignores `If-None-Match`; there, two writers at once may undo each
    other's work.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        anonymous: bool = False,
        concurrency: int = 16,
        single_writer: bool = False,
        attempts: int = 5,
        timeout: float = 60.0,
        spool_in_memory: int = 8 * MiB,
        multipart_above: int = 1 * GiB,
        copy_multipart_above: int = 5 * GiB,
        part_bytes: int = 64 * MiB,
    ) -> None:
        self._arguments = {
            name: value for name, value in locals().items() if name not in ("self", "bucket", "prefix")
        }
        self.bucket = bucket
        self.prefix = "/".join(part for part in prefix.split("/") if part)
        self.endpoint_url, self.region, self.anonymous = endpoint_url, region, anonymous
        self.concurrency, self.single_writer = concurrency, single_writer
        self.attempts, self.timeout = attempts, timeout
        self.spool_in_memory, self.part_bytes = spool_in_memory, part_bytes
        self.multipart_above, self.copy_multipart_above = multipart_above, copy_multipart_above
        self._root = f"{self.prefix}/" if self.prefix else ""
        self._forget()
        _alive.add(self)

    def _forget(self) -> None:
        """Begin as a new process does: connections and locks are the parent's."""
        self._lock = threading.Lock()
        self._sending = threading.local()
        self._clients: _Clients | None = None

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.bucket, self.prefix, self._arguments)

    def local_path(self, key: str) -> None:
        return None

    @contextmanager
    def root_lease(self, *, exclusive: bool = False) -> Iterator[None]:
        """Creates of this thread are signed and sent once meanwhile: the store refuses them soon after that."""
        before, self._sending.once = getattr(self._sending, "once", False), True
        try:
            yield
        finally:
            self._sending.once = before

    def exists(self) -> bool:
        with self._explained("look up", "the bucket"):
            try:
                self._call("head_bucket")
            except aws.ClientError as error:
                if s3_errors.status(error) == 404:
                    return False
                if s3_errors.status(error) not in (301, 401, 403):  # it is there, or elsewhere
                    raise
        return True

    def now(self) -> float:
        told, then = self._told_time()
        if _clock() - then > _ASK_AGAIN:
            with self._explained("read", "the time"), suppress(aws.ClientError):  # a refusal is dated too
                self._call("head_object", Key=self._root + "lake.json")
            told, then = self._told_time()
        if not told:
            raise StoreError(f"replies of {self.url} carry no Date; lake needs the store's time")
        return told + _clock() - then

    # --- reading ------------------------------------------------------------------------------

    def get(self, key: str) -> bytes:
        return self._read(key, 0, {}, lambda body, _: body.read()) or b""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"no range: {length} bytes from {start}")
        if not length:
            return b""
        return self._read(key, start, _range(start, length), lambda body, _: body.read()) or b""

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        if start < 0:
            raise ValueError(f"no range: from {start}")
        with memoryview(buffer).cast("B") as view:
            if not len(view):
                return 0
            return (
                self._read(key, start, _range(start, len(view)), lambda body, size: _fill(view[:size], body))
                or 0
            )

    def head(self, key: str) -> Object | None:
        with self._explained("look up", key):
            try:
                found = self._call("head_object", Key=self._key(key))
            except aws.ClientError as error:
                if s3_errors.status(error) == 404:
                    return None
                if s3_errors.speechless(error):
                    self._ask_why(key)
                raise
        return Object(key, found["ContentLength"], found["LastModified"].timestamp())

    def _ask_why(self, key: str) -> None:
        """Raise what the store has against reading the object: in words, which the reply to a HEAD has none of."""
        self._call("get_object", Key=self._key(key), Range="bytes=0-0")["Body"].close()

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Object]:
        after = {} if start_after is None else {"StartAfter": self._root + start_after}
        return self._listed(Prefix=self._root + check_prefix(prefix), **after)

    def _listed(self, **query: Any) -> Iterator[Object]:
        last = ""
        for page in self._pages(query):
            for found in page.get("Contents", ()):
                key = found["Key"][len(self._root) :]
                if not key:  # the marker that some consoles leave for a "folder"
                    continue
                if key <= last:
                    raise StoreError(
                        f"{self.url} does not list keys in order ({key!r} after {last!r}); lake cannot use it"
                    )
                last = key
                yield Object(key, found["Size"], found["LastModified"].timestamp())

    def list_dirs(self, prefix: str = "") -> Iterator[str]:
        folder = check_prefix(prefix).rstrip("/") + "/" if prefix else ""
        for page in self._pages({"Prefix": self._root + folder, "Delimiter": "/"}):
            for found in page.get("CommonPrefixes", ()):
                yield found["Prefix"][len(self._root + folder) : -1]

    def _pages(self, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Every page of a LIST. botocore's own paginator takes a page without its token for the last one."""
        while True:
            with self._explained("list", query["Prefix"][len(self._root) :]):
                page = self._call("list_objects_v2", **query)
            yield page
            if not page.get("IsTruncated"):
                return
            token = page.get("NextContinuationToken")
            if not token:
                raise StoreError(
                    f"{self.url} broke off a listing without saying how to go on", retryable=True
                )
            query = {**query, "ContinuationToken": token}

    def _read(
        self, key: str, start: int, wanted: dict[str, str], take: Callable[[Any, int], _T]
    ) -> _T | None:
        """What `take(body, length)` makes of the reply; None if the object ends before the range begins.

        botocore repeats requests, but not the reading of a body that breaks off: that is done here.
        """
        for attempt in range(1, self.attempts + 1):
            with self._explained("read", key):
                try:
                    reply = self._call("get_object", Key=self._key(key), **wanted)
                except aws.ClientError as error:
                    if s3_errors.code(error) == "InvalidRange":
                        return None
                    raise
            with closing(reply["Body"]) as body:
                if wanted and not reply.get("ContentRange", "").startswith(f"bytes {start}-"):
                    raise StoreError(f"{self.url} ignores byte ranges; lake cannot use it")
                try:
                    return take(body, reply["ContentLength"])
                except s3_errors.BROKEN_BODIES as error:
                    if attempt == self.attempts:
                        raise s3_errors.explain(error, "read", self._place(), key) from error
            _pause(attempt)
        raise ValueError(f"attempts must be at least 1, not {self.attempts}")

    # --- writing ------------------------------------------------------------------------------

    def put_new(self, key: str, data: Buffer) -> bool:
        body = bytes(data)
        checksum = _b64(hashlib.sha256(body).digest())
        name = self._key(key)
        return self._create(
            key, lambda when: self._call("put_object", Key=name, Body=body, ChecksumSHA256=checksum, **when)
        )

    def put(self, key: str, data: Buffer) -> None:
        body = bytes(data)
        checksum = _b64(hashlib.sha256(body).digest())
        with self._explained("write", key):
            self._call("put_object", Key=self._key(key), Body=body, ChecksumSHA256=checksum)

    def stage(self) -> S3Staged:
        return S3Staged(self)

    def publish(self, file: IO[bytes], size: int, key: str, sha256: str) -> bool:
        """Create the object from a file whose content has this size and digest; False if the key is taken."""
        name = self._key(key)
        if size > self.multipart_above:
            return self._create(key, lambda when: self._send_parts(name, file, size, sha256, when))
        checksum = _b64(bytes.fromhex(sha256))

        def send(when: dict[str, str]) -> None:
            file.seek(0)
            self._call("put_object", Key=name, Body=file, ContentLength=size, ChecksumSHA256=checksum, **when)

        return self._create(key, send)

    def copy(self, source: str, target: str) -> bool:
        """As the protocol says; where a store knows no conditional copies, two racing ones may both win."""
        found = self.head(source)
        if found is None:
            raise NotFoundError(f"no {source} in {self.url}")
        if self.head(target) is not None:
            return False
        name, origin = self._key(target), {"Bucket": self.bucket, "Key": self._key(source)}
        if found.size > self.copy_multipart_above:
            return self._create(
                target, lambda when: self._copy_parts(name, origin, found.size, when), insist=False
            )
        return self._create(
            target, lambda when: self._call("copy_object", Key=name, CopySource=origin, **when), insist=False
        )

    def _create(self, key: str, send: Callable[[dict[str, str]], object], *, insist: bool = True) -> bool:
        """Send a conditional create until the store has decided; False if the key is taken.

        `insist`: never send it without the condition, also where the store does not know conditions.
        """
        if self.single_writer and self.head(key) is not None:
            return False
        when = {"IfNoneMatch": "*"}
        for attempt in range(1, _CONFLICTS + 1):
            with self._explained("create", key):
                try:
                    send(when)
                    return True
                except aws.ClientError as error:
                    if s3_errors.status(error) == 412:
                        return False
                    if s3_errors.unsupported(error) and when and (self.single_writer or not insist):
                        when = {}
                        continue
                    if not s3_errors.undecided(error) or attempt == _CONFLICTS or self._once(_CREATES):
                        raise
            _pause(attempt)
        raise AssertionError("the last attempt returns or raises")

    def _send_parts(self, name: str, file: IO[bytes], size: int, sha256: str, when: dict[str, str]) -> None:
        whole, crc = hashlib.sha256(), 0
        file.seek(0)
        with self._multipart(name, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT") as upload:
            parts: Parts = []
            while piece := file.read(self._step(size)):
                whole.update(piece)
                crc = zlib.crc32(piece, crc)
                number, check = len(parts) + 1, _crc(zlib.crc32(piece))
                sent = self._call("upload_part", **upload, PartNumber=number, Body=piece, ChecksumCRC32=check)
                parts.append({"PartNumber": number, "ETag": sent["ETag"], "ChecksumCRC32": check})
            if whole.hexdigest() != sha256:
                raise IntegrityError(
                    f"what was staged for {name} is not what was written; is the disk sound?", digest=sha256
                )
            self._complete(
                upload, parts, when, ChecksumCRC32=_crc(crc), ChecksumType="FULL_OBJECT", MpuObjectSize=size
            )

    def _copy_parts(self, name: str, origin: dict[str, str], size: int, when: dict[str, str]) -> None:
        step = self._step(size)
        with self._multipart(name) as upload:
            parts: Parts = []
            for start in range(0, size, step):
                number, span = len(parts) + 1, f"bytes={start}-{min(start + step, size) - 1}"
                copied = self._call(
                    "upload_part_copy", **upload, PartNumber=number, CopySource=origin, CopySourceRange=span
                )
                parts.append({"PartNumber": number, "ETag": copied["CopyPartResult"]["ETag"]})
            self._complete(upload, parts, when)

    def _step(self, size: int) -> int:
        return max(self.part_bytes, -(-size // _PARTS))

    @contextmanager
    def _multipart(self, name: str, **how: str) -> Iterator[dict[str, str]]:
        """An upload in parts; taken back if the block fails."""
        begun = self._call("create_multipart_upload", Key=name, **how)
        upload = {"Key": name, "UploadId": begun["UploadId"]}
        try:
            yield upload
        except BaseException:
            with suppress(*s3_errors.FAILURES):  # gc takes back what is left
                self._call("abort_multipart_upload", **upload)
            raise

    def _complete(self, upload: dict[str, str], parts: Parts, when: dict[str, str], **more: Any) -> None:
        self._call("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts}, **when, **more)

    def delete(self, keys: Iterable[str]) -> dict[str, Exception]:
        names = [*keys]
        failed: dict[str, Exception] = {}
        for i in range(0, len(names), _DELETES):
            batch = names[i : i + _DELETES]
            objects = [{"Key": self._key(key)} for key in batch]
            try:
                with self._explained("delete", f"{batch[0]} and {len(batch) - 1} more"):
                    reply = self._call("delete_objects", Delete={"Objects": objects, "Quiet": True})
            except LakeError as error:
                failed.update(dict.fromkeys(batch, error))
                continue
            for left in reply.get("Errors", ()):
                if left.get("Code") != "NoSuchKey":
                    key = left["Key"][len(self._root) :]
                    failed[key] = StoreError(
                        f"cannot delete {key} in {self.url}: {left.get('Code')}: {left.get('Message')}"
                    )
        return failed

    def abandon(self, before: float, *, dry_run: bool = False) -> int:
        with self._explained("list", "unfinished uploads"):
            old = [found for found in self._uploads() if found["Initiated"].timestamp() < before]
        for found in () if dry_run else old:
            with self._explained("take back", found["Key"]):
                try:
                    self._call("abort_multipart_upload", Key=found["Key"], UploadId=found["UploadId"])
                except aws.ClientError as error:
                    if s3_errors.status(error) != 404:  # completed, or taken back by another
                        raise
        return len(old)

    def _uploads(self) -> Iterator[dict[str, Any]]:
        """Every multipart upload below the prefix that is neither completed nor aborted."""
        query: dict[str, Any] = {"Prefix": self._root}
        while True:
            page = self._call("list_multipart_uploads", **query)
            yield from page.get("Uploads", ())
            if not page.get("IsTruncated"):
                return
            query |= {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    # --- the connection -----------------------------------------------------------------------

    def _key(self, key: str) -> str:
        return self._root + check_key(key)

    def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """The reply of one call; sent twice if refused and the chain has other credentials by now."""
        clients, once = self._connected(), self._once((operation,))
        try:
            return clients.call(operation, once, Bucket=self.bucket, **parameters)
        except (aws.ClientError, *s3_errors.NO_CREDENTIALS) as error:
            renewed = self._renewed(clients) if s3_errors.about_credentials(error) else None
            if renewed is None or once:
                raise
        if hasattr(body := parameters.get("Body"), "seek"):
            body.seek(0)  # type: ignore[union-attr]
        return renewed.call(operation, once, Bucket=self.bucket, **parameters)

    def _once(self, operations: Iterable[str]) -> bool:
        """Whether these are never to be sent twice: a late second one could do harm."""
        creates = getattr(self._sending, "once", False) and not _CREATES.isdisjoint(operations)
        return creates or "delete_objects" in operations

    def _connected(self) -> _Clients:
        clients = self._clients
        if clients is None:
            with self._lock:
                clients = self._clients = self._clients or _Clients(self)
        return clients

    def _renewed(self, refused: _Clients) -> _Clients | None:
        """Clients with other credentials than those refused, None if the chain gives the same ones."""
        with self._lock:
            if self._clients is refused:
                fresh = _Clients(self)
                if fresh.owner == refused.owner:
                    return None
                self._clients = fresh
            return self._clients

    def _told_time(self) -> tuple[float, float]:
        return self._connected().told

    def _place(self) -> dict[str, Any]:
        clients = self._clients
        return {
            "url": self.url,
            "bucket": self.bucket,
            "endpoint": clients.endpoint if clients else self.endpoint_url or "the endpoint",
            "region": clients.region if clients else self.region,
            "source": clients.source if clients else "no credentials yet",
        }

    @contextmanager
    def _explained(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except s3_errors.FAILURES as error:
            raise s3_errors.explain(error, verb, self._place(), key) from error


class _Clients:
    """One process's clients for one store: one that repeats requests, one that never does."""

    def __init__(self, store: S3Store) -> None:
        base = botocore.session.get_session()
        base.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
        session = boto3.Session(botocore_session=base, region_name=store.region)
        found = None if store.anonymous else session.get_credentials()
        frozen = found.get_frozen_credentials() if found else None
        self.owner = (frozen.access_key, frozen.token) if frozen else None
        self.source = s3_errors.source(store.anonymous, found.method if found else None)
        self.told = (0.0, -2 * _ASK_AGAIN)  # the store's time, and ours when it said so
        options: dict[str, Any] = {
            "max_pool_connections": store.concurrency,
            "connect_timeout": min(10.0, store.timeout),
            "read_timeout": store.timeout,
            "tcp_keepalive": True,
            "user_agent": f"lake (boto3/{boto3.__version__})",  # botocore makes its own anew for each request
            "request_checksum_calculation": "when_required",  # every object brings its sha256
            "response_checksum_validation": "when_required",  # and is checked against it by whoever reads it
            "s3": {"addressing_style": "path" if store.endpoint_url else "auto"},
        }
        if store.anonymous:
            options["signature_version"] = UNSIGNED

        def client(attempts: int) -> Any:
            retries: Any = {"mode": "standard", "total_max_attempts": attempts}
            made = session.client(
                "s3", endpoint_url=store.endpoint_url, config=Config(retries=retries, **options)
            )
            made.meta.events.register("after-call.s3", self._note_time)
            made.meta.events.register("before-call.s3.HeadBucket", _stay)
            return made

        self._client = client
        try:
            self._again = client(store.attempts)
        except ValueError as error:
            raise ConfigError(f"cannot use {store.url} at {store.endpoint_url}: {error}") from error
        self.endpoint, self.region = self._again.meta.endpoint_url, self._again.meta.region_name

    @cached_property
    def _once(self) -> Any:
        """Made when something is written: most processes only read, and a client takes milliseconds."""
        return self._client(1)

    def call(self, operation: str, once: bool, **parameters: Any) -> dict[str, Any]:
        client = self._once if once else self._again
        reply: dict[str, Any] = getattr(client, operation)(**parameters)
        return reply

    def _note_time(self, http_response: Any, **_: object) -> None:
        date = http_response.headers.get("date")
        if date:
            self.told = (parsedate_to_datetime(date).timestamp(), _clock())


def _stay(context: dict[str, Any], **_: object) -> None:
    """Let no redirection of this call be followed: botocore asks HeadBucket where to, without end."""
    context["s3_redirect"]["redirected"] = True


class S3Staged:
    """Bytes kept here, in memory while they are few, until one request creates the object."""

    def __init__(self, store: S3Store) -> None:
        self._store = store
        self._file: IO[bytes] = io.BytesIO()
        self._size = 0

    def write(self, data: Buffer, /) -> int:
        try:
            if self._size + memoryview(data).nbytes > self._store.spool_in_memory and isinstance(
                self._file, io.BytesIO
            ):
                self._spill(self._file)
            written = self._file.write(data)
        except OSError as error:
            raise StoreError(
                f"cannot keep {self._size:,} bytes for {self._store.url} in {tempfile.gettempdir()}: "
                f"{error.strerror}; make room there, or let TMPDIR name another folder"
            ) from error
        self._size += written
        return written

    def _spill(self, memory: io.BytesIO) -> None:
        self._file = tempfile.TemporaryFile(prefix="lake-", buffering=256 * KiB)  # noqa: SIM115 - lives as long as we do
        with memory, memory.getbuffer() as held:
            self._file.write(held)

    def tell(self) -> int:
        return self._size

    def publish(self, key: str, sha256: str) -> bool:
        return self._store.publish(self._file, self._size, key, sha256)

    def discard(self) -> None:
        with suppress(OSError):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.discard()


def _rebuild(bucket: str, prefix: str, arguments: dict[str, Any]) -> S3Store:
    return S3Store(bucket, prefix, **arguments)


def _range(start: int, length: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-{start + length - 1}"}


def _timestamp(value: Any) -> datetime:
    """A time in a reply. botocore has a parser find out what any text may mean, at a tenth of a request's cost."""
    try:
        found = datetime.fromisoformat(value) if value[:1].isdigit() else parsedate_to_datetime(value)
    except (TypeError, ValueError):
        found = None
    if found is None or found.tzinfo is None:
        found = parse_timestamp(value)
    return found


def _fill(view: memoryview, body: Any) -> int:
    done = 0
    while done < len(view) and (got := body.readinto(view[done : done + _READ_PIECE])):
        done += got
    return done


def _b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _crc(value: int) -> str:
    return _b64(value.to_bytes(4, "big"))


def _pause(attempt: int) -> None:
    """Sleep before the next attempt: full jitter, so that those who failed together return apart."""
    time.sleep(random.uniform(0, min(_PAUSE[0] * 2 ** (attempt - 1), _PAUSE[1])))


def _after_fork() -> None:
    for store in _alive:
        store._forget()


_os.after_fork(_after_fork)
