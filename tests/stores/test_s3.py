"""The S3 store against a service that misbehaves: what it sends, what it repeats, what it says."""

from __future__ import annotations

import base64
import hashlib
import multiprocessing
import pickle
import random
import socket
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.retries.standard import ExponentialBackoff
from botocore.utils import parse_timestamp
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import ConfigError, IntegrityError, LakeError, NotFoundError, StoreError
from lake.stores import Store, open_store, probe, probe_identical, s3
from lake.stores.s3 import S3Store
from tests.conftest import BUCKET
from tests.stores.proxy import Reply, Request, S3Proxy


@pytest.fixture
def proxy(s3_server: str) -> Iterator[S3Proxy]:
    with S3Proxy(s3_server) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_PAUSE", (0.0, 0.0))
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)


@pytest.fixture
def make(proxy: S3Proxy, s3_url: str) -> Callable[..., S3Store]:
    """Builds stores that reach their bucket through the proxy."""
    prefix = s3_url.rpartition("/")[2]
    return lambda **options: S3Store(BUCKET, prefix, endpoint_url=proxy.url, **{"attempts": 3, **options})


def on(method: str, spoiled: Any, *, times: int = 1_000_000, having: str = "") -> Callable[[Request], Any]:
    """A rule that spoils the first `times` requests of a method whose path or query has the text `having`."""
    left = [times]

    def rule(request: Request) -> Any:
        if request.method != method or having not in request.path + " ".join(request.query) or not left[0]:
            return None
        left[0] -= 1
        return spoiled

    return rule


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- what is sent ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["put_new", "publish", "publish from disk"])
def test_a_create_is_one_conditional_put_with_its_sha256(make: Any, proxy: S3Proxy, how: str) -> None:
    """However large, up to the multipart threshold: one request, bytes as they are, checked on arrival."""
    data = random.Random(1).randbytes(100_000)
    store = make(spool_in_memory=0 if how == "publish from disk" else 1 << 20)
    if how == "put_new":
        assert store.put_new("k", data)
    else:
        with store.stage() as staged:
            staged.write(data)
            assert staged.publish("k", sha256(data))

    (sent,) = proxy.requests
    assert sent.method == "PUT"
    assert sent.headers["if-none-match"] == "*"
    assert sent.headers["x-amz-checksum-sha256"] == base64.b64encode(hashlib.sha256(data).digest()).decode()
    assert sent.body == data
    assert store.get("k") == data


def test_a_large_object_is_completed_on_condition_with_a_checksum_of_the_whole(
    make: Any, proxy: S3Proxy
) -> None:
    """Above the threshold the parts go one by one; completion carries CRC-32, size and `If-None-Match`."""
    data = random.Random(2).randbytes(11 << 20)
    store = make(multipart_above=1 << 20, part_bytes=5 << 20)

    with store.stage() as staged:
        staged.write(data)
        assert staged.publish("k", sha256(data))

    begin, *parts, complete = proxy.requests
    whole = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    assert begin.headers["x-amz-checksum-type"] == complete.headers["x-amz-checksum-type"] == "FULL_OBJECT"
    assert [len(part.body) for part in parts] == [5 << 20, 5 << 20, 1 << 20]
    assert complete.headers["x-amz-checksum-crc32"] == whole
    assert complete.headers["x-amz-mp-object-size"] == str(len(data))
    assert complete.headers["if-none-match"] == "*"
    assert store.get("k") == data


def test_anonymous_requests_are_not_signed(make: Any, proxy: S3Proxy) -> None:
    """A public bucket is read without credentials, though the chain has some."""
    proxy.rule = on("GET", Reply(200, text="public"))

    assert make(anonymous=True).get("k") == b"public"

    assert "authorization" not in proxy.requests[0].headers


def test_a_get_is_one_request(make: Any, proxy: S3Proxy) -> None:
    """Reading an object or a range costs one GET, and nothing before it."""
    make().put_new("k", b"0123456789")
    proxy.requests.clear()
    store = make()

    store.get("k")
    store.get_range("k", 2, 3)
    store.get_into("k", 2, bytearray(3))

    assert proxy.methods() == ["GET"] * 3
    assert [request.headers.get("range") for request in proxy.requests] == [None, "bytes=2-4", "bytes=2-4"]


# --- outcomes that nobody saw ---------------------------------------------------------------


def test_a_lost_reply_looks_like_a_taken_key(make: Any, proxy: S3Proxy) -> None:
    """The store applied the create and hung up; the repeated request meets its own object."""
    store = make()
    proxy.rule = on("PUT", "lose", times=1)

    assert not store.put_new("k", b"mine")
    assert store.get("k") == b"mine"


def test_a_create_without_any_reply_is_a_retryable_error(make: Any, proxy: S3Proxy) -> None:
    """Every reply is lost: the caller is told that repeating may help, and finds the object there."""
    store = make(attempts=1)
    proxy.rule = on("PUT", "lose")

    with pytest.raises(StoreError, match=f"cannot create k in s3://{BUCKET}/.*{proxy.url}") as caught:
        store.put_new("k", b"mine")

    assert caught.value.retryable
    assert store.get("k") == b"mine"


def test_a_conflict_is_asked_again(make: Any, proxy: S3Proxy) -> None:
    """409 decides nothing: the request is repeated until the store has decided."""
    store = make()
    proxy.rule = on("PUT", Reply(409, "ConditionalRequestConflict"), times=3)

    assert store.put_new("k", b"v")
    assert proxy.methods() == ["PUT"] * 4
    proxy.rule = on("PUT", Reply(409, "ConditionalRequestConflict"), times=3)
    assert not store.put_new("k", b"w")
    assert store.get("k") == b"v"


def test_endless_conflicts_are_a_retryable_error(make: Any, proxy: S3Proxy) -> None:
    """A store that never decides is given up in the end."""
    proxy.rule = on("PUT", Reply(409, "ConditionalRequestConflict"))

    with pytest.raises(StoreError, match="ConditionalRequestConflict") as caught:
        make().put_new("k", b"v")

    assert caught.value.retryable


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "NoSuchUpload"])
def test_a_conflict_at_completion_restarts_the_upload(make: Any, proxy: S3Proxy, code: str) -> None:
    """All parts are sent again under a new upload, and the first one is taken back."""
    data = random.Random(3).randbytes(6 << 20)
    store = make(multipart_above=1, part_bytes=5 << 20)
    status = 404 if code == "NoSuchUpload" else 409
    proxy.rule = on("POST", Reply(status, code), times=1, having="uploadId")

    with store.stage() as staged:
        staged.write(data)
        assert staged.publish("k", sha256(data))

    assert proxy.methods() == ["POST", "PUT", "PUT", "POST", "DELETE", "POST", "PUT", "PUT", "POST"]
    assert store.get("k") == data


def test_a_damaged_spool_is_never_published(make: Any, proxy: S3Proxy) -> None:
    """What was read back from the spool is compared with its digest before completion."""
    store = make(multipart_above=1, part_bytes=5 << 20)

    with store.stage() as staged:
        staged.write(b"as it came back from a bad disk")
        with pytest.raises(IntegrityError):
            staged.publish("k", sha256(b"as it was written"))

    assert store.head("k") is None
    assert proxy.methods()[:3] == ["POST", "PUT", "DELETE"]


def test_a_delete_is_never_sent_twice(make: Any, proxy: S3Proxy) -> None:
    """A late second delete could hit what was written in between: a lost reply is reported, key by key."""
    store = make()
    for key in ("a", "b"):
        store.put_new(key, b"")
    proxy.requests.clear()
    proxy.rule = on("POST", Reply(503, "SlowDown"))

    failed = store.delete(["a", "b"])

    assert proxy.methods() == ["POST"]
    assert set(failed) == {"a", "b"}
    assert all(isinstance(error, StoreError) and error.retryable for error in failed.values())


@pytest.mark.parametrize(
    "refusal", [Reply(503, "SlowDown"), Reply(409, "ConditionalRequestConflict"), "lose"]
)
def test_a_create_under_the_root_lease_is_signed_and_sent_once(
    make: Any, proxy: S3Proxy, refusal: Any
) -> None:
    """A repetition would carry a later signature, and could take effect long after the caller's clock test."""
    store = make()
    proxy.rule = on("PUT", refusal)

    with store.root_lease(), pytest.raises(StoreError) as caught:
        store.put_new("k", b"v")

    assert caught.value.retryable
    assert proxy.methods() == ["PUT"]
    proxy.rule = on("PUT", refusal, times=1)
    assert store.put_new("other", b"v") is (refusal != "lose")  # outside, it is repeated


def test_uploads_that_were_never_completed_are_taken_back(make: Any, proxy: S3Proxy) -> None:
    """Those of this lake that were begun before the time given, and no others."""
    store = make()
    name = f"{store.prefix}/k"
    begun = store._call("create_multipart_upload", Key=name)["UploadId"]
    store._call("create_multipart_upload", Key=f"{store.prefix}-other/k")
    later = store.now() + 60

    assert store.abandon(1.0) == 0
    assert store.abandon(later, dry_run=True) == store.abandon(later) == 1
    assert store.abandon(later) == 0
    with pytest.raises(ClientError):
        store._call("list_parts", Key=name, UploadId=begun)


def test_keys_that_could_not_be_deleted_are_named(make: Any, proxy: S3Proxy) -> None:
    """A reply that says what failed is passed on, one key at a time."""
    store = make()
    key = f"{store.prefix}/b"
    error = f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
    proxy.rule = on("POST", Reply(200, text=f"<DeleteResult>{error}</DeleteResult>"))

    failed = store.delete(["a", "b"])

    assert list(failed) == ["b"]
    assert "AccessDenied" in str(failed["b"])


# --- bodies that break off ------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["get", "get_range", "get_into"])
def test_a_body_that_breaks_off_is_read_again(make: Any, proxy: S3Proxy, verb: str) -> None:
    """Half a body is never handed out: it is fetched again, and gives up with a retryable error."""
    data = random.Random(4).randbytes(300_000)
    store = make()
    store.put_new("k", data)

    def read() -> bytes:
        if verb == "get":
            return bytes(store.get("k"))
        if verb == "get_range":
            return bytes(store.get_range("k", 0, 300_000))
        into = bytearray(300_000)
        assert store.get_into("k", 0, into) == 300_000
        return bytes(into)

    proxy.rule = on("GET", "cut", times=2)
    assert read() == data
    proxy.rule = on("GET", "cut")
    proxy.requests.clear()
    with pytest.raises(StoreError, match="cannot read k") as caught:
        read()
    assert caught.value.retryable
    assert proxy.methods() == ["GET"] * 3


def test_a_bad_network_costs_requests_not_data(make: Any, proxy: S3Proxy) -> None:
    """One in five requests gets 503, some bodies break off, some connections drop: all reads are exact."""
    rng = random.Random(5)
    data = rng.randbytes(40_000)
    store = make(attempts=8)
    store.put_new("k", data)

    def rule(request: Request) -> Any:
        dice = rng.random()
        return (
            Reply(503, "SlowDown") if dice < 0.2 else "cut" if dice < 0.26 else "drop" if dice < 0.3 else None
        )

    proxy.rule = rule
    proxy.requests.clear()
    with ThreadPoolExecutor(8) as threads:
        read = list(threads.map(lambda i: store.get_range("k", i * 100, 100), range(200)))

    assert b"".join(read) == data[:20_000]
    assert 200 < len(proxy.requests) < 500


def test_a_service_that_ignores_ranges_is_refused(make: Any, proxy: S3Proxy) -> None:
    """A whole object in place of a range would be taken for the wrong bytes."""
    store = make()
    store.put_new("k", b"0123456789")

    def whole(status: int, headers: dict[str, str], body: bytes) -> Any:
        return 200, {name: value for name, value in headers.items() if name.lower() != "content-range"}, body

    proxy.rule = on("GET", whole)

    with pytest.raises(StoreError, match="ignores byte ranges"):
        store.get_range("k", 5, 5)


# --- listings -------------------------------------------------------------------------------


def _page(store: S3Store, *keys: str, more: bool, token: str = "") -> Reply:
    facts = "<Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified>"
    contents = "".join(f"<Contents><Key>{store.prefix}/{key}</Key>{facts}</Contents>" for key in keys)
    next_token = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    truncated = str(more).lower()
    text = (
        f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{next_token}{contents}</ListBucketResult>"
    )
    return Reply(200, text=text)


@pytest.mark.parametrize("second", [Reply(403, "AccessDenied"), Reply(400, "InvalidArgument"), "drop"])
def test_a_listing_never_ends_early_in_silence(make: Any, proxy: S3Proxy, second: Any) -> None:
    """If the second page cannot be had, the listing raises after the first page's keys."""
    store = make()
    proxy.rule = lambda request: (
        second if "continuation-token" in request.query else _page(store, "a", more=True, token="t")
    )

    listing = store.list()

    assert next(listing).key == "a"
    with pytest.raises(StoreError, match="cannot list"):
        next(listing)


def test_a_page_without_its_token_raises(make: Any, proxy: S3Proxy) -> None:
    """ "There is more" without saying how to go on is a failure, not the end."""
    store = make()
    proxy.rule = on("GET", _page(store, "a", more=True))

    with pytest.raises(StoreError, match="broke off") as caught:
        list(store.list())

    assert caught.value.retryable


def test_a_service_that_lists_out_of_order_is_refused(make: Any, proxy: S3Proxy) -> None:
    """The log is read by going on after a key: without order entries would be missed."""
    store = make()
    proxy.rule = on("GET", _page(store, "b", "a", more=False))

    with pytest.raises(StoreError, match="in order"):
        list(store.list())


# --- credentials ----------------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes the access key that the AWS chain then finds, in a file instead of the environment."""
    path = tmp_path / "credentials"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))

    def write(key: str) -> None:
        path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = very-secret\n")

    return write


REFUSALS = [
    Reply(400, "ExpiredToken"),
    Reply(403, "ExpiredToken"),
    Reply(403, "InvalidAccessKeyId"),
    Reply(403, "SignatureDoesNotMatch"),
    Reply(403, "AccessDenied"),
    Reply(401, "Unauthorized"),
]


def _publish(store: Store, key: str, data: bytes) -> bool:
    with store.stage() as staged:
        staged.write(data)
        return staged.publish(key, sha256(data))


VERBS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("k"),
    "head": lambda store: store.head("k"),
    "list": lambda store: [*store.list()],
    "put_new": lambda store: store.put_new("new", b"w"),
    "delete": lambda store: store.delete(["k"]) == {},
    "copy": lambda store: store.copy("k", "copied"),
    "publish": lambda store: _publish(store, "published", b"x" * 3_000_000),
}


@pytest.mark.parametrize(
    ("refusal", "verb"),
    [(refusal, "get") for refusal in REFUSALS]
    + [(REFUSALS[0], verb) for verb in VERBS if verb not in ("get", "delete")],  # no delete is sent twice
    ids=lambda value: f"{value.status}-{value.code}" if isinstance(value, Reply) else value,
)
def test_the_chain_is_asked_again_when_credentials_are_refused(
    make: Any, proxy: S3Proxy, key_file: Any, refusal: Reply, verb: str
) -> None:
    """Temporary credentials ran out and were renewed outside: the call goes on with the new ones."""
    key_file("OLDKEY")
    store = make(spool_in_memory=0)
    assert store.put_new("k", b"v")
    key_file("NEWKEY")
    proxy.requests.clear()
    proxy.rule = lambda request: refusal if "OLDKEY/" in request.headers["authorization"] else None

    assert VERBS[verb](store)

    assert "OLDKEY/" in proxy.requests[0].headers["authorization"]
    assert "NEWKEY/" in proxy.requests[-1].headers["authorization"]
    if verb == "publish":
        proxy.rule = lambda request: None
        assert store.get("published") == b"x" * 3_000_000


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: f"{refusal.status}-{refusal.code}")
def test_refused_credentials_are_one_clear_error(
    make: Any, proxy: S3Proxy, key_file: Any, refusal: Reply
) -> None:
    """It names bucket, key, source of the credentials and the way out; shows none of them; asks once."""
    key_file("OLDKEY")
    store = make()
    proxy.rule = lambda request: refusal
    for verb in (store.get, store.head, lambda key: store.put_new(key, b"")):
        proxy.requests.clear()
        with pytest.raises(StoreError) as caught:
            verb("lake.json")
        text = str(caught.value)
        assert not isinstance(caught.value, NotFoundError)
        assert not caught.value.retryable
        for word in (BUCKET, "lake.json", "shared-credentials-file"):
            assert word in text
        assert "anonymous=True" in text or "Refresh" in text
        assert "OLDKEY" not in text
        assert "very-secret" not in text
        assert len(proxy.requests) <= 3  # to a HEAD's 400 botocore asks for the region, and lake why


def test_without_credentials_the_error_says_where_it_looked(make: Any, key_file: Any, proxy: S3Proxy) -> None:
    """The chain that was tried, and how to read without."""
    with pytest.raises(StoreError, match=r"no usable credentials.*AWS_PROFILE.*anonymous=True"):
        make().get("k")
    assert proxy.requests == []


def test_an_anonymous_refusal_says_that_the_bucket_is_private(make: Any, proxy: S3Proxy) -> None:
    """The advice fits the way the bucket was asked."""
    proxy.rule = lambda request: Reply(403, "AccessDenied")

    with pytest.raises(StoreError, match="open it without anonymous=True"):
        make(anonymous=True).get("k")


def test_an_unknown_profile_is_named(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that cannot even be loaded is a StoreError like the rest."""
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")

    with pytest.raises(StoreError, match="no-such-profile"):
        make().get("k")


# --- wrong places ---------------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_named(s3_url: str) -> None:
    """Every verb says so, and how to go on, except `head`, to which S3 does not tell the difference."""
    store = open_store("s3://lake-bukcet/lake")

    for verb in (store.get, lambda key: store.put_new(key, b""), lambda key: list(store.list(key))):
        with pytest.raises(NotFoundError, match=r"bucket 'lake-bukcet' does not exist .*: create it"):
            verb("lake.json")
    assert store.head("lake.json") is None
    assert not store.exists()
    assert open_store(s3_url).exists()


def test_a_refused_bucket_exists(make: Any, proxy: S3Proxy) -> None:
    """403 is never taken for missing."""
    proxy.rule = lambda request: Reply(403, "AccessDenied")

    assert make().exists()


def test_an_unreachable_endpoint_is_named() -> None:
    """One sentence with the address; trying again may help."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    store = S3Store(BUCKET, "p", endpoint_url=f"http://127.0.0.1:{port}", attempts=2)

    for verb in (
        store.get,
        store.head,
        lambda key: store.put_new(key, b""),
        lambda key: list(store.list(key)),
    ):
        with pytest.raises(StoreError, match=f"http://127.0.0.1:{port} cannot be reached") as caught:
            verb("k")
        assert caught.value.retryable
    with pytest.raises(StoreError, match="cannot be reached"):
        store.now()


@pytest.mark.parametrize("endpoint", ["not a url", "127.0.0.1:9000"])
def test_an_endpoint_that_is_no_url_is_named(endpoint: str) -> None:
    """The setting at fault is in the message."""
    with pytest.raises(ConfigError, match=endpoint):
        S3Store(BUCKET, endpoint_url=endpoint).get("k")


def test_a_name_that_no_bucket_can_have_is_a_setting_to_correct(s3_url: str) -> None:
    """Not a store that failed."""
    with pytest.raises(ConfigError, match="No Bucket"):
        open_store("s3://No Bucket/x").get("k")


@pytest.mark.parametrize("status", [400, 403])
def test_a_refused_look_up_says_why(make: Any, proxy: S3Proxy, status: int) -> None:
    """The reply to a HEAD has no words, so they are asked for once with a GET."""
    proxy.rule = lambda request: Reply(status, "ExpiredToken")

    with pytest.raises(StoreError, match=r"ExpiredToken.*Refresh or correct the credentials"):
        make().head("k")
    assert proxy.methods()[-2:] == ["HEAD", "GET"]
    assert proxy.methods().count("GET") == 1


@pytest.mark.parametrize("told", [{}, {"x-amz-bucket-region": "eu-west-3"}])
def test_an_endpoint_that_sends_elsewhere_is_named(make: Any, proxy: S3Proxy, told: dict[str, str]) -> None:
    """Every verb ends, with the endpoint and, if it says so, the region in the message."""
    proxy.rule = lambda request: Reply(301, "PermanentRedirect", told)
    store = make()

    for verb in (
        store.get,
        store.head,
        lambda key: store.put_new(key, b""),
        lambda key: list(store.list(key)),
    ):
        with pytest.raises(StoreError, match=f"{proxy.url} says .*pass region=") as caught:
            verb("k")
        assert ("in eu-west-3" in str(caught.value)) == bool(told)
    assert store.exists()
    assert len(proxy.requests) < 20


@pytest.mark.parametrize(
    ("reply", "words", "retryable"),
    [
        (Reply(301, "PermanentRedirect"), "pass region=", False),
        (Reply(400, "AuthorizationHeaderMalformed"), "pass region=", False),
        (Reply(403, "RequestTimeTooSkewed"), "clock", False),
        (Reply(500, "InternalError"), "InternalError", True),
        (Reply(503, "SlowDown"), "patience", True),
        (Reply(429, "TooManyRequests"), "patience", True),
        (Reply(501, "NotImplemented"), "NotImplemented", False),
        (Reply(418, "Teapot"), "418 Teapot: as the test wants", False),
        (Reply(502, text="<html>a proxy's page</html>"), "502", True),
    ],
    ids=lambda value: f"{value.status}-{value.code}" if isinstance(value, Reply) else None,
)
def test_what_the_store_said_is_passed_on(
    make: Any, proxy: S3Proxy, reply: Reply, words: str, retryable: bool
) -> None:
    """Its word, what it means, and whether the same call may succeed later."""
    proxy.rule = on("GET", reply)

    with pytest.raises(StoreError, match="cannot read k in s3://") as caught:
        make().get("k")

    assert words in str(caught.value)
    assert caught.value.retryable is retryable


def test_every_error_survives_pickling(make: Any, proxy: S3Proxy) -> None:
    """Worker processes hand errors to their parent."""
    proxy.rule = lambda request: Reply(503, "SlowDown")
    with pytest.raises(LakeError) as caught:
        make().get("k")

    copy = pickle.loads(pickle.dumps(caught.value))

    assert (str(copy), copy.retryable) == (str(caught.value), True)


# --- stores without conditions --------------------------------------------------------------


def _ignore_conditions(proxy: S3Proxy) -> None:
    """Make the service behave like one that has never heard of `If-None-Match`."""
    forward = proxy.forward

    def unconditional(request: Request, raw_path: str) -> Any:
        request.headers.pop("if-none-match", None)
        return forward(request, raw_path)

    proxy.forward = unconditional  # type: ignore[method-assign]


def test_a_service_that_ignores_conditions_does_not_pass_the_probe(make: Any, proxy: S3Proxy) -> None:
    """Both probes say what is wrong and what to do, and nothing is left behind."""
    _ignore_conditions(proxy)
    store = make()
    store.put_new("lake.json", b"{}")

    with pytest.raises(StoreError, match="single_writer=True"):
        probe(store)
    with pytest.raises(StoreError, match="single_writer=True"):
        probe_identical(store, "lake.json", b"{}")

    assert [found.key for found in store.list()] == ["lake.json"]


@pytest.mark.parametrize("kind", ["ignores", "rejects"])
def test_a_single_writer_can_do_without_conditions(make: Any, proxy: S3Proxy, kind: str) -> None:
    """It looks before it writes."""
    store = make(single_writer=True)
    if kind == "ignores":
        _ignore_conditions(proxy)
    else:
        proxy.rule = lambda request: (
            Reply(501, "NotImplemented") if "if-none-match" in request.headers else None
        )

    assert store.put_new("k", b"first")
    assert not store.put_new("k", b"second")
    assert _publish(store, "p", b"first")
    assert not _publish(store, "p", b"second")
    assert store.get("k") == store.get("p") == b"first"


def test_a_rejected_condition_is_never_dropped_for_several_writers(make: Any, proxy: S3Proxy) -> None:
    """Never a silent fall back to a plain put."""
    proxy.rule = lambda request: Reply(501, "NotImplemented") if "if-none-match" in request.headers else None
    store = make()

    with pytest.raises(StoreError, match="NotImplemented"):
        store.put_new("k", b"v")

    assert store.head("k") is None


# --- time -----------------------------------------------------------------------------------


def test_time_is_the_stores(make: Any, proxy: S3Proxy) -> None:
    """`now` follows the `Date` of replies, whatever this machine believes, and asks at most now and then."""
    proxy.date = "Fri, 01 Mar 2030 12:00:00 GMT"  # type: ignore[attr-defined]
    store = make()

    readings = [store.now() for _ in range(50)]

    assert 0 <= readings[0] - 1898596800 < 60
    assert readings == sorted(readings)
    assert len(proxy.requests) == 1


def test_a_refusal_tells_the_time_too(make: Any, proxy: S3Proxy) -> None:
    """Who may only write one prefix still learns the store's time."""
    proxy.date = "Fri, 01 Mar 2030 12:00:00 GMT"  # type: ignore[attr-defined]
    proxy.rule = lambda request: Reply(403, "AccessDenied")

    assert 0 <= make().now() - 1898596800 < 60


def test_old_time_is_asked_for_anew(make: Any, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, or a sleep of the machine, the store is asked again instead of our clock."""
    hours = [0.0]
    monkeypatch.setattr(s3, "_clock", lambda: hours[0] * 3600)
    proxy.date = "Fri, 01 Mar 2030 12:00:00 GMT"  # type: ignore[attr-defined]
    store = make()
    first = store.now()
    hours[0] = 8
    proxy.date = "Fri, 01 Mar 2030 21:00:00 GMT"  # type: ignore[attr-defined]

    assert store.now() - first == 9 * 3600


# --- forked children ------------------------------------------------------------------------

forks = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")


def _read_often(store: S3Store, key: str, data: bytes) -> None:
    for _ in range(30):
        assert store.get(key) == data


def _in_children(*targets: Any) -> list[int | None]:
    children: list[Any] = [
        multiprocessing.get_context("fork").Process(target=f, args=args) for f, *args in targets
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
        child.kill()
    return [child.exitcode for child in children]


@forks
def test_children_do_not_share_their_parents_connections(make: Any) -> None:
    """Each of them reads its own object, exactly, though all inherited one open connection."""
    store = make(attempts=1)
    for i in range(4):
        store.put_new(str(i), bytes([i]) * 100_000)

    assert _in_children(*((_read_often, store, str(i), bytes([i]) * 100_000) for i in range(4))) == [0] * 4
    assert store.get("0") == bytes(100_000)


@forks
def test_a_child_does_not_wait_for_a_thread_that_it_does_not_have(make: Any) -> None:
    """The parent's lock was held by another thread at the fork: nobody would ever release it in the child."""
    store = make()
    store.put_new("k", b"v")
    with store._lock:
        assert _in_children((_read_often, store, "k", b"v")) == [0]


@given(st.integers(10**8, 4 * 10**12), st.sampled_from(range(8)))
def test_times_in_replies_mean_what_botocore_says(milliseconds: int, form: int) -> None:
    """In the two forms that S3 sends, and in whatever else some service may."""
    when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    value = [
        f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}Z",
        format_datetime(when, usegmt=True),
        format_datetime(when),
        when.isoformat(),
        when.replace(tzinfo=None).isoformat(),
        when.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat(),
        str(int(when.timestamp())),
        when.timestamp(),
    ][form]

    assert s3._timestamp(value) == parse_timestamp(value)
