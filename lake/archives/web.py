"""A file behind http:// or https://, read by ranges. Asks for nothing that it was not asked for."""

from __future__ import annotations

import http.client
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Final

from lake.archives.content import ahead
from lake.errors import ArchiveError, NotFoundError, StoreError

_REQUEST: Final = 4 << 20  # bytes of one request of many
_ATTEMPTS: Final = 4
_PAUSE: Final = 0.3  # seconds, at most, before the second attempt
_TIMEOUT: Final = 60.0  # seconds without a byte


class WebFile:
    """A file on a web server that serves ranges."""

    remote = True

    def __init__(self, url: str) -> None:
        self.name = url
        headers, _ = self._ask("HEAD", {})
        if not (headers.get("Content-Length") or "").isdecimal():
            raise StoreError(
                f"{url}: the server does not say how long the file is: download it, and open that"
            )
        self.size = int(headers["Content-Length"])
        self.identity = f"{url}|{self.size}|{headers.get('ETag')}|{headers.get('Last-Modified')}"

    def read_at(self, start: int, length: int) -> bytes:
        """Exactly these bytes, in one request."""
        if not length:
            return b""
        headers, data = self._ask("GET", {"Range": f"bytes={start}-{start + length - 1}"}, length)
        if len(data) != length or not headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise ArchiveError(f"{self.name}: the server answered something else than bytes {start:,} and on")
        return data

    def stream(self) -> Iterator[bytes]:
        """The file, by several requests at once."""
        starts = range(0, self.size, _REQUEST)
        return ahead(lambda at: self.read_at(at, min(_REQUEST, self.size - at)), starts, 4)

    def close(self) -> None:
        """Nothing is held."""

    def _ask(
        self, verb: str, headers: dict[str, str], length: int = 0
    ) -> tuple[http.client.HTTPMessage, bytes]:
        request = urllib.request.Request(self.name, method=verb, headers=headers)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
                    if headers and reply.status != 206:
                        raise StoreError(
                            f"{self.name}: the server does not serve ranges: download it, and open that"
                        )
                    return reply.headers, reply.read(length)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in (404, 410):
                    raise NotFoundError(f"no archive {self.name!r} ({error.code} {error.reason})") from None
                if error.code < 500 and error.code != 429:
                    raise StoreError(f"cannot read {self.name}: {error.code} {error.reason}") from None
                failure: Exception = error
            except (OSError, http.client.HTTPException) as error:
                failure = error
            if attempt < _ATTEMPTS:
                time.sleep(random.uniform(0, _PAUSE * 2 ** (attempt - 1)))
        raise StoreError(f"cannot read {self.name}: {failure}", retryable=True) from failure
