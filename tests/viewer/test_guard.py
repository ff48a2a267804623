"""The viewer's security boundary (docs/security.md).

Which requests it answers, what its pages may do, and that the names in a profile stay text.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.serving import make_server

from ipuscope.profiler import Report, open_report
from ipuscope.viewer import app
from ipuscope.viewer.app import PAGES, create_app
from ipuscope.viewer.guard import MAX_BODY_BYTES, TOKEN_VARIABLE, Guard
from tests.strangers import HTML, named
from tests.synthetic import synthetic_profile
from tests.viewer.browser import tab
from tools.screenshots import serving, settled

UPDATE = "/_dash-update-component"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Report]:
    path = tmp_path_factory.mktemp("guard") / "profile.pop"
    with open_report(synthetic_profile(path, tiles=16)) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(report: Report) -> Any:
    return create_app(report).server.test_client()


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:8050", "[::1]:8050", "LOCALHOST:1", "localhost."]
)
def test_this_machines_names_are_answered(client: Any, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8050", "127.0.0.1.evil.example", "", "[", "192.168.0.9"]
)
@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/_dash-dependencies", "/assets/viewer.js"])
def test_another_name_is_not_answered(client: Any, host: str, path: str) -> None:
    """A site that points its own host name at this machine learns nothing (DNS rebinding)."""
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 403
    assert "--allow-host" in answer.text


def test_a_host_may_be_allowed(report: Report) -> None:
    guard = Guard.bound_to("127.0.0.1", ["profiles.example"])
    client = create_app(report, guard=guard).server.test_client()
    client.set_cookie(guard.cookie, guard.token, domain="profiles.example")
    assert client.get("/", headers={"Host": "profiles.example"}).status_code == 200
    assert client.get("/", headers={"Host": "other.example"}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost:3000", "null", "http://[", "http://"]
)
def test_another_origins_request_is_refused(client: Any, origin: str) -> None:
    headers = {"Host": "localhost:8050", "Origin": origin}
    assert client.post(UPDATE, json={}, headers=headers).status_code == 403


def test_an_origin_of_its_own_is_taken(client: Any) -> None:
    headers = {"Host": "localhost:8050", "Origin": "http://localhost:8050"}
    assert client.get("/_dash-layout", headers=headers).status_code == 200


def test_a_large_request_is_refused(client: Any) -> None:
    answer = client.post(UPDATE, data=b"x" * (MAX_BODY_BYTES + 1), content_type="application/json")
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("address", "host"), [("0.0.0.0", "192.168.0.9"), ("127.0.0.1", "127.0.0.1")]
)
def test_an_address_has_a_token(report: Report, address: str, host: str) -> None:
    """Also on this machine: its other users reach its ports."""
    guard = Guard.bound_to(address)
    assert len(guard.token) >= 24
    client = create_app(report, guard=guard).server.test_client()
    outside = {"Host": f"{host}:8050"}
    for path in ("/", "/_dash-layout", "/?token=guess", "/?token="):
        refused = client.get(path, headers=outside)
        assert refused.status_code == 403 and guard.token not in refused.text
    response = client.get(f"/pipeline?run=1&token={guard.token}&ipu=2", headers=outside)
    assert (response.status_code, response.location) == (302, "/pipeline?run=1&ipu=2")
    cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    client.set_cookie(guard.cookie, guard.token, domain=host)
    assert client.get("/_dash-layout", headers=outside).status_code == 200
    rebound = {"Host": "evil.example:8050"}
    assert client.get(f"/?token={guard.token}", headers=rebound).status_code == 403


def test_a_token_leads_nowhere_else(report: Report) -> None:
    guard = Guard.bound_to("0.0.0.0")
    client = create_app(report, guard=guard).server.test_client()
    response = client.get(f"//evil.example/?token={guard.token}", headers={"Host": "10.0.0.1"})
    assert response.status_code in (302, 404)
    assert not (response.location or "/").startswith(("//", "http"))


def test_each_viewer_has_a_token_of_its_own_but_for_those_of_a_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Guard.bound_to("localhost").token != Guard.bound_to("localhost").token
    monkeypatch.setenv(TOKEN_VARIABLE, "of the sweep")
    assert Guard.bound_to("localhost").token == "of the sweep"


def test_a_request_that_does_not_end_gives_its_thread_back(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert app._Handler.timeout is not None and app._Handler.timeout <= 60
    monkeypatch.setattr(app._Handler, "timeout", 0.2)
    server = make_server(
        "127.0.0.1", 0, create_app(report).server, threaded=True, request_handler=app._Handler
    )
    serves = threading.Thread(target=server.serve_forever, daemon=True)
    serves.start()
    before = threading.active_count()
    post = b"POST /_dash-update-component HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
    half_sent = [socket.create_connection(server.server_address[:2]) for _ in range(40)]
    for number, one in enumerate(half_sent):
        one.sendall((b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: loc", post + b"{")[number % 4])
    for one in half_sent:
        one.settimeout(30)
        while one.recv(4096):  # until the server closes it
            pass
        one.close()
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
    server.shutdown()
    serves.join()


BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"3",
    b"no JSON",
    b"\xff\xfe",
    b"[" * 5_000,
    json.dumps({"output": "no.such", "outputs": [], "inputs": [], "changedPropIds": []}).encode(),
    json.dumps({"output": 5, "inputs": 5, "changedPropIds": 5}).encode(),
)


@pytest.mark.parametrize("body", BODIES)
def test_a_request_that_makes_no_sense_is_a_line(client: Any, body: bytes) -> None:
    answer = client.post(UPDATE, data=body, content_type="application/json")
    assert 400 <= answer.status_code < 500
    assert "Traceback" not in answer.text and "/" not in answer.text


def test_scripts_carry_the_nonce_of_their_answer(client: Any) -> None:
    first, second = client.get("/"), client.get("/")
    policies = [answer.headers["Content-Security-Policy"] for answer in (first, second)]
    nonces = [re.search("'nonce-([^']+)'", policy)[1] for policy in policies]  # type: ignore[index]
    assert nonces[0] != nonces[1]
    scripts = policies[0].split("script-src")[1].split(";")[0]
    assert "unsafe" not in scripts and "http" not in policies[0]
    assert "default-src 'none'" in policies[0]
    tags = re.findall("<script[^>]*>", first.text)
    assert len(tags) > 3
    assert all(f'nonce="{nonces[0]}"' in tag for tag in tags)
    assert not re.search(r"\son\w+=|(?:src|href)=.?https?:", first.text)


def test_the_frame_escapes_the_title(tmp_path: Path) -> None:
    folder = tmp_path / "<img onerror=x>{%scripts%}"
    path = synthetic_profile(folder / "profile.pop", tiles=4)
    with open_report(path) as plain:
        plain.meta["model"] = ""  # a profile without a name takes its directory's
        page = create_app(plain).server.test_client().get("/").text
        assert "<title>IPUscope · &lt;img onerror=x&gt;&#123;%scripts%}</title>" in page
    with open_report(named(path, HTML)) as report:
        page = create_app(report).server.test_client().get("/").text
        assert "<script>window.pwned" not in page and "evil.example" in page


@pytest.mark.browser
def test_a_strangers_names_are_text_on_every_page(context: Any, tmp_path: Path) -> None:
    """No script from the profile runs, and no foreign address is requested or linked."""
    paths = [synthetic_profile(tmp_path / f"<b>{i}" / "profile.pop", tiles=8) for i in range(2)]
    one, two = (open_report(named(path, HTML)) for path in paths)
    asked: list[str] = []
    with one, two, serving(create_app(one, two)) as address, tab(context, address) as view:
        page, own = view.page, (address, "data:", "blob:")
        page.on("request", lambda request: asked.append(request.url))
        for at in PAGES:
            page.goto(address + at.path)
            settled(page)
            assert page.evaluate("window.pwned") is None, at.path
            assert "<script>window.pwned" in page.inner_text("body"), at.path
            links = page.evaluate(
                "() => [...document.querySelectorAll('a, img, script, iframe, image, use')].map("
                "one => one.href?.baseVal ?? one.href ?? one.src ?? '')"
            )
            foreign = [one for one in links if one and not str(one).startswith(own)]
            assert foreign == [], at.path
    assert [url for url in asked if not url.startswith(own)] == []


def test_answers_are_compressed_for_who_takes_gzip(report: Report) -> None:
    client = create_app(report).server.test_client()
    own = {"Host": "127.0.0.1:8050"}
    plain = client.get("/_dash-layout", headers=own)
    small = client.get("/_dash-layout", headers={**own, "Accept-Encoding": "gzip"})
    assert plain.status_code == small.status_code == 200
    assert "Content-Encoding" not in plain.headers
    assert small.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in small.headers["Vary"] and "Accept-Encoding" in plain.headers["Vary"]
    assert gzip.decompress(small.data) == plain.data
    assert len(small.data) == int(small.headers["Content-Length"]) < len(plain.data) / 2
