"""What every test may ask for: an S3 service on this machine, stores, and a home that is not the user's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from lake.stores import LocalStore, Store, open_store

BUCKET = "lake-tests"

# No test fails because the machine is busy, and none passes or fails by luck: new examples are for full runs.
settings.register_profile(
    "unhurried",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="LAKE_TEST_FULL" not in os.environ,
)
settings.load_profile("unhurried")

_SERVER = """
import logging, sys, threading
from moto.moto_server import threaded_moto_server as moto

class OneByOne(moto.DomainDispatcherApplication):  # moto's conditional completion is not atomic; S3's is
    turn = threading.Lock()
    def __call__(self, *request):
        with self.turn:
            return super().__call__(*request)

moto.DomainDispatcherApplication = OneByOne
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # until the tests are over, however they end
"""


@pytest.fixture(scope="session", autouse=True)
def _nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees, or leaves anything in, the home, credentials or configuration of whoever runs it."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "LAKE_", "R2_", "XDG_"))]:
            if not name.startswith("LAKE_TEST_"):
                patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("USERPROFILE", str(home))
        patch.setenv("AWS_CONFIG_FILE", str(home / "no-aws-config"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "no-aws-credentials"))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Programs that tests interrupt can be, also where these tests run in the background of a shell."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _every_request_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine answers are late: where requests are counted, none is sent again for that alone."""
    monkeypatch.setattr("lake.parts.flight._SLOW_SECONDS", 3600.0)


@pytest.fixture(scope="session")
def s3_server(_nobodys_home: None) -> Iterator[str]:
    """The endpoint URL of an S3 service (moto, a process of its own) that has the bucket `BUCKET`."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        endpoint = f"http://127.0.0.1:{int(process.stdout.readline())}"
        import boto3  # here: most tests need no S3

        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield endpoint
        process.terminate()  # a forked child of some test may still hold the other end of its stdin


@pytest.fixture
def s3_url(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of its own, which `lake.open(s3_url)` and `open_store(s3_url)` find without an endpoint."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def s3_store(s3_url: str) -> Store:
    return open_store(s3_url)


@pytest.fixture
def local_store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "lake")


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    """A store of each kind in turn, empty."""
    found: Store = request.getfixturevalue(f"{request.param}_store")
    return found
