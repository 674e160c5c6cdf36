"""A pod's credentials: who the server is, and who we are; both change while the client runs."""

import logging
import os
import time
from pathlib import Path

import pytest

from dradriver.clock import SYSTEM, Clock
from dradriver.kube import (
    TLS,
    Connection,
    StatusError,
    UnreachableError,
    in_cluster,
)
from kubeserver import NODE, Authority, Request, Server, Wire, client_of, environment, pod, whoami
from waiting import eventually


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other-ca")


def test_a_pod_speaks_tls_and_shows_its_token(authority: Authority, tmp_path: Path) -> None:
    with Server(whoami, authority.context()) as server:
        connection = in_cluster(pod(tmp_path, "one\n", authority.pem.read_text()), environment(server))
        with client_of(connection) as client:
            assert client.get(NODE) == {"token": "Bearer one", "certificate": [], "path": NODE}
            assert client.server == server.url


def test_a_token_is_taken_from_its_file_as_soon_as_that_is_replaced(
    authority: Authority, tmp_path: Path
) -> None:
    with Server(whoami, authority.context()) as server:
        directory = pod(tmp_path, "one", authority.pem.read_text())
        with client_of(in_cluster(directory, environment(server))) as client:
            assert client.get(NODE)["token"] == "Bearer one"
            (tmp_path / "new").write_text("two")
            (tmp_path / "new").rename(tmp_path / "token")
            assert client.get(NODE)["token"] == "Bearer two"
            assert server.accepted == 1, "the connection stays"


def test_a_token_that_changed_unseen_is_found_within_seconds(authority: Authority, tmp_path: Path) -> None:
    clock = Clock(speed=20)
    with Server(whoami, authority.context()) as server:
        directory = pod(tmp_path, "one", authority.pem.read_text())
        with client_of(in_cluster(directory, environment(server), clock=clock), clock) as client:
            assert client.get(NODE)["token"] == "Bearer one"
            before = (tmp_path / "token").stat()
            (tmp_path / "token").write_text("two")
            os.utime(tmp_path / "token", ns=(before.st_atime_ns, before.st_mtime_ns))
            began = clock.now()
            eventually(lambda: client.get(NODE)["token"] == "Bearer two")
            assert clock.now() - began < 200


def test_a_token_that_the_server_refuses_is_read_again_at_once(authority: Authority, tmp_path: Path) -> None:
    def demanding(request: Request, wire: Wire) -> None:
        if request.headers["Authorization"] == "Bearer two":
            wire.send({})
        else:
            wire.refuse(401, "Unauthorized")

    with Server(demanding, authority.context()) as server:
        directory = pod(tmp_path, "one", authority.pem.read_text())
        with client_of(in_cluster(directory, environment(server))) as client:
            with pytest.raises(StatusError):
                client.get(NODE)
            assert len(server.requests) == 1
            before = (tmp_path / "token").stat()
            (tmp_path / "token").write_text("two")
            os.utime(tmp_path / "token", ns=(before.st_atime_ns, before.st_mtime_ns))
            assert client.get(NODE) == {}
            assert len(server.requests) == 3


def test_while_a_token_cannot_be_read_the_last_one_serves(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dradriver")
    with Server(whoami, authority.context()) as server:
        directory = pod(tmp_path, "one", authority.pem.read_text())
        with client_of(in_cluster(directory, environment(server))) as client:
            (tmp_path / "token").rename(tmp_path / "gone")
            for _ in range(5):
                assert client.get(NODE)["token"] == "Bearer one"
            (tmp_path / "token").write_text("t\nw\no")
            assert client.get(NODE)["token"] == "Bearer one"
            (tmp_path / "token").write_text("three")
            assert client.get(NODE)["token"] == "Bearer three"
    used, token = "the last credentials are used as long as they serve", tmp_path / "token"
    assert [record.getMessage() for record in caplog.records] == [
        f"{used}: cannot read {token}: No such file or directory",
        f"{used}: the token in {token} is empty, or has characters that cannot stand in a header",
        f"the credentials in {tmp_path} can be read again",
    ]


def test_a_rotated_ca_is_taken_over(authority: Authority, other_authority: Authority, tmp_path: Path) -> None:
    with Server(whoami, authority.context()) as server:
        directory = pod(tmp_path, "one", authority.pem.read_text())
        with client_of(in_cluster(directory, environment(server))) as client:
            client.get(NODE)
            server.context = other_authority.context()
            server.hang_up()
            eventually(lambda: not server.open)
            with pytest.raises(UnreachableError, match="certificate is not accepted"):
                client.get(NODE)
            # As the controller does it: old and new ones together for a while.
            (tmp_path / "ca.crt").write_text(
                authority.pem.read_text() + "\n# new\n" + other_authority.pem.read_text()
            )
            client.get(NODE)
            server.context = authority.context()
            server.hang_up()
            eventually(lambda: not server.open)
            client.get(NODE)


def test_a_server_that_is_not_the_one_is_refused(
    authority: Authority, other_authority: Authority, tmp_path: Path
) -> None:
    with Server(whoami, other_authority.context()) as server:
        connection = in_cluster(pod(tmp_path, "one", authority.pem.read_text()), environment(server))
        with client_of(connection) as client, pytest.raises(UnreachableError, match="is not accepted: "):
            client.get(NODE)
        assert server.requests == []
    with Server(whoami, authority.context("DNS:elsewhere")) as server:
        connection = in_cluster(pod(tmp_path, "one", authority.pem.read_text()), environment(server))
        with (
            client_of(connection) as client,
            pytest.raises(UnreachableError, match=r"is not accepted: .*mismatch"),
        ):
            client.get(NODE)
        assert server.requests == []


def test_a_tls_handshake_has_a_deadline(authority: Authority) -> None:
    with Server(whoami, authority.context()) as server:
        server.mute = True
        with client_of(Connection(server.url, tls=TLS(ca=authority.pem.read_text()))) as client:
            began = time.monotonic()
            with pytest.raises(UnreachableError, match="no connection within"):
                client.get(NODE, deadline=SYSTEM.now() + 0.4)
            assert time.monotonic() - began < 5


def test_plain_http_at_a_tls_port_and_the_other_way_round(authority: Authority) -> None:
    with (
        Server(whoami) as plain,
        client_of(Connection(plain.url.replace("http:", "https:"))) as client,
        pytest.raises(UnreachableError, match="TLS: "),
    ):
        client.get(NODE)
    with (
        Server(whoami, authority.context()) as secure,
        client_of(Connection(secure.url.replace("https:", "http:"))) as client,
        pytest.raises(UnreachableError),
    ):
        client.get(NODE)
