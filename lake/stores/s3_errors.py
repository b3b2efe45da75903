"""What an error of an S3 client means, and the sentence that says so: what, where, and the way out.

It sorts errors and words them; it sends nothing and never repeats anything. A refusal is never "not found".
"""

from __future__ import annotations

from http.client import HTTPException
from typing import Any

from botocore import exceptions as aws
from botocore.parsers import ResponseParserError

from lake.errors import ConfigError, LakeError, NotFoundError, StoreError

FAILURES = (aws.ClientError, aws.BotoCoreError, ResponseParserError)
BROKEN_BODIES = (aws.BotoCoreError, HTTPException, OSError)  # what reading a reply's body may raise

_CREDENTIAL_CODES = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "UnrecognizedClientException",
}
_LATER = {
    "BadDigest",
    "BandwidthLimitExceeded",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}
_ELSEWHERE = {
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "PermanentRedirect",
    "TemporaryRedirect",
}
NO_CREDENTIALS = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.TokenRetrievalError,
    aws.NoAuthTokenError,
    aws.SSOError,
    aws.LoginError,
    aws.ProfileNotFound,
    aws.MetadataRetrievalError,
)
_UNREACHABLE = (aws.EndpointConnectionError, aws.ConnectTimeoutError, aws.ProxyConnectionError)
ANONYMOUS = "no credentials (anonymous=True)"
_CHAIN = "environment, AWS_PROFILE or the default profile, web identity, SSO, container and instance roles"


def code(error: BaseException) -> str:
    """The store's word for what is wrong, "" if the store said nothing."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, aws.ClientError) else ""


def status(error: BaseException) -> int:
    """The reply's HTTP status, 0 if there was none."""
    if not isinstance(error, aws.ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def about_credentials(error: BaseException) -> bool:
    """Whether other credentials might be accepted. A HEAD's reply has no body, so no better word than 400."""
    return (
        isinstance(error, NO_CREDENTIALS)
        or status(error) in (401, 403)
        or code(error) in (*_CREDENTIAL_CODES, "400")
    )


def speechless(error: BaseException) -> bool:
    """Whether the store refused without a word of its own, as it does a HEAD."""
    return status(error) in (301, 400, 401, 403) and code(error) in ("", str(status(error)))


def undecided(error: BaseException) -> bool:
    """Whether a conditional create was neither carried out nor refused: it may be sent again."""
    return (
        code(error) in ("ConditionalRequestConflict", "OperationAborted", "NoSuchUpload")
        or status(error) == 409
    )


def unsupported(error: BaseException) -> bool:
    """Whether the store says that it does not know a header or call."""
    return status(error) == 501 or code(error) == "NotImplemented"


def explain(error: BaseException, verb: str, place: dict[str, Any], key: str) -> LakeError:
    """The error to raise; `place` has `url, bucket, endpoint, region, source` (of credentials)."""
    what = f"cannot {verb} {key or 'anything'} in {place['url']}"
    if isinstance(error, aws.ClientError):
        return _of_reply(error, what, place, key)
    if isinstance(error, NO_CREDENTIALS):
        return StoreError(
            f"{what}: no usable credentials ({_last(error)}); looked in "
            f"{_CHAIN}. Set them up or log in again; anonymous=True (LAKE_ANONYMOUS=1) reads public buckets"
        )
    if isinstance(error, _UNREACHABLE):
        return StoreError(
            f"{what}: {place['endpoint']} cannot be reached ({_last(error)}). "
            "Is endpoint_url right, and the network up?",
            retryable=True,
        )
    if isinstance(error, aws.SSLError):
        return StoreError(
            f"{what}: no trusted TLS connection to {place['endpoint']} ({_last(error)}); "
            "AWS_CA_BUNDLE names own roots"
        )
    if isinstance(error, aws.ParamValidationError):
        return ConfigError(f"{what}: {_last(error)}")
    return StoreError(
        f"{what}: the connection to {place['endpoint']} failed ({_last(error)})", retryable=True
    )


def _of_reply(error: aws.ClientError, what: str, place: dict[str, Any], key: str) -> LakeError:
    word, number = code(error), status(error)
    said = f"{number} {word}: {error.response.get('Error', {}).get('Message', '')}".rstrip(": ")
    if word == "NoSuchBucket":
        return NotFoundError(
            f"bucket {place['bucket']!r} does not exist at {place['endpoint']}: "
            f"create it or correct the name ({place['url']})"
        )
    if number == 404:
        return NotFoundError(f"no {key} in {place['url']}")
    if word == "RequestTimeTooSkewed":
        return StoreError(f"{what}: this machine's clock differs too much from the store's ({said}); set it")
    if word in _ELSEWHERE or number == 301:
        return StoreError(
            f"{what}: {place['endpoint']} says that bucket {place['bucket']} is elsewhere than in region "
            f"{place['region']} ({said}){_pointer(error)}; pass region=, or endpoint_url= of where it is"
        )
    if about_credentials(error):
        return StoreError(
            f"{what}: refused ({said}); asked with {place['source']}. {_way_in(word, place['source'])}"
        )
    later = (number >= 500 and number != 501) or number in (408, 429) or word in _LATER
    tail = "; the store asks for patience" if number == 429 or word == "SlowDown" else ""
    return StoreError(f"{what}: {said}{tail}", retryable=later)


def _pointer(error: aws.ClientError) -> str:
    """Where the store says that the bucket is, if it does."""
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    told = error.response.get("Error", {})
    where = headers.get("x-amz-bucket-region") or told.get("Region") or told.get("Endpoint")
    return f": in {where}" if where else ""


def _way_in(word: str, source: str) -> str:
    if source == ANONYMOUS:
        return "The bucket is not public: open it without anonymous=True"
    if word in _CREDENTIAL_CODES:
        return f"Refresh or correct the credentials (the chain: {_CHAIN})"
    return (
        "The permission is missing; or the key and s3:ListBucket are (a store then hides what is missing); "
        "anonymous=True reads public buckets"
    )


def source(anonymous: bool, method: str | None) -> str:
    """Where credentials came from, in words; never what they are."""
    if anonymous:
        return ANONYMOUS
    return f"credentials from {method!r}" if method else "no credentials"


def _last(error: BaseException) -> str:
    """The innermost reason: botocore wraps urllib3, which wraps the socket's own words."""
    inner = getattr(error, "kwargs", {}).get("error") or error
    return " ".join(str(inner).split())[:300]
