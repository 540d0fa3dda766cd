"""Attacks on permissions and by hostile input that a client can try against a running service."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import re
import ssl
import time
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import httpx
from measurement_factory import STARTED_US
from proxied_service import USER_HEADER, ProxiedService, mint_token
from service_thread import make_body, make_sent_measurement

from treehammer.collectors.job_spec import STARTS_PATH
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.rows import CampaignRow, JobRow, ReplicaRow
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.keyring import Keyring
from treehammer.sql.write.maintenance import ChangeScope, DatabaseChange
from treehammer.sql.write.store import Store
from treehammer.web.service.proxy_setup import SECRET_HEADER

Attack = Callable[[ProxiedService], str]
#: Attack, as the page names it -> function that tries it and returns the result.
ATTACKS: dict[str, Attack] = {}
CAMPAIGN = CampaignRow(
    "c", "nightly", STARTED_US, "https://x.org/r", "main", "abc", False, "reads", "tests/reads",
    CampaignPlan(), 1, 1,
)  # fmt: skip
JOB = JobRow("j", "c", "A", "root", "timed", 1, "cold", "htcondor@must", "7.0", 4, "running")
CHECK = ReplicaRow("f", 5, "tiny", "h", "local", "root", "f", "root://", False, "torn")
BROWSER = {"Accept": "text/html,*/*"}
OPEN_SIGN_IN = (
    b"POST /sign-in HTTP/1.1\r\nHost: HOST\r\nContent-Length: 100\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\na"
)


def fill_host(service: ProxiedService, sent: bytes) -> bytes:
    # Caddy answers requests to other hosts itself.
    return sent.replace(b"HOST", service.host.encode())


def attack(name: str) -> Callable[[Attack], Attack]:
    """Add an attack under its name on the page."""

    def add(function: Attack) -> Attack:
        ATTACKS[name] = function
        return function

    return add


def join_statuses(*answers: httpx.Response) -> str:
    """Return the different statuses of answers, in order of their first one."""
    return ", ".join(dict.fromkeys(str(answer.status_code) for answer in answers))


def name_campaign(name: str) -> tuple[CampaignRow, JobRow]:
    """Make a campaign with one job for an attack."""
    return replace(CAMPAIGN, id=name), replace(JOB, id=f"{name}-job", campaign_id=name)


# --- tokens and sessions


@attack("a forged, altered, unsigned or expired token")
def forge_tokens(service: ProxiedService) -> str:
    key = service.make_key("alice")
    token = mint_token(key, "tokens", "job")
    head, claims, signature = token.split(".")
    other = base64.urlsafe_b64encode(b'{"campaign":"x","job":"y","exp":9999999999}').decode()
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    forged = (
        f"{key.text[:-4]}AAAA",
        f"{head}.{other.rstrip('=')}.{signature}",
        f"{unsigned}.{claims}.",
        mint_token(replace(key, secret="s" * 43), "tokens", "job"),
        mint_token(key, "tokens", "job", seconds=-3600),
    )
    return join_statuses(*(service.send(token) for token in forged))


@attack("a job's token for the measurements of another job")
def send_for_another_job(service: ProxiedService) -> str:
    token = mint_token(service.make_key("alice"), "token", "token-job")
    return join_statuses(
        service.send(token, make_sent_measurement("token-job2", campaign_id="token")),
        service.send(token, make_sent_measurement("token-job", campaign_id="token2")),
    )


@attack("a revoked key or token")
def use_revoked_key(service: ProxiedService) -> str:
    key = service.make_key("alice")
    token = mint_token(key, "revoked", "revoked-job")
    assert service.send(token).status_code == 200
    with closing(ServiceDatabase(service.database)) as database:
        database.keyring.revoke_key(key.key_id, now_us=1)
    deadline_s = time.monotonic() + 20
    while (answer := service.send(token)).status_code == 200 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return join_statuses(answer, service.send(key.text))


class ServiceDatabase:
    """Keys of the service's database."""

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url, create=False)
        self.keyring = Keyring(self._engine)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


@attack("a browser that leaves while it signs in")
def leave_sign_in(service: ProxiedService) -> str:
    with service.connect() as browser:
        browser.sendall(fill_host(service, OPEN_SIGN_IN))
    service.require_service()
    return "a traceback" if "Traceback" in service.read_log() else "no traceback"


@attack("a stolen cookie")
def steal_cookie(service: ProxiedService) -> str:
    key = service.make_key("reader", "admin").text
    with service.make_client() as browser, service.make_client() as thief:
        assert browser.post("/sign-in", data={"token": key}).status_code == 303
        assert key not in str(browser.cookies), "the cookie is not the key"
        thief.cookies.update(browser.cookies)
        reading = thief.get("/api/v1/overview")
        uploading = thief.post("/api/v1/measurements", json=make_body([]))
        assert browser.post("/sign-out").status_code == 303
        after = thief.get("/api/v1/overview")
    assert (reading.status_code, uploading.status_code, after.status_code) == (200, 401, 401)
    return "reads only, until its session ends"


@attack("a form of another site that signs a visitor in or out")
def send_form_of_another_site(service: ProxiedService) -> str:
    key = service.make_key("reader", "read").text
    with service.make_client() as browser:
        answers = [
            browser.post(path, data=form, headers=headers)
            for path, form in (("/sign-in", {"token": key}), ("/sign-out", {}))
            for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"})
        ]
        same_origin = browser.post("/sign-in", data={"token": key}, headers={"Origin": service.url})
    assert same_origin.status_code == 303, "the proxy passes Host on"
    return join_statuses(*answers)


@attack("a Host header that names another site")
def name_another_host(service: ProxiedService) -> str:
    answer = service.get("/campaigns/", Host="evil.example", **BROWSER)
    assert "evil" not in f"{answer.headers} {answer.text}"
    if answer.status_code == 307:
        return f"redirected to `{answer.headers['Location']}`"
    return f"answered by the proxy: {answer.status_code}, {len(answer.content)} bytes"


@attack("a client that claims to be a proxy")
def claim_to_be_a_proxy(service: ProxiedService) -> str:
    answer = service.get(
        "/api/v1/overview", source="127.0.0.3", X_Forwarded_For="192.0.2.66",
        X_Forwarded_Proto="http", X_Treehammer_Proxy="root",
    )  # fmt: skip
    service.wait_for_log("127.0.0.3 GET /api/v1/overview")
    assert "192.0.2.66" not in service.read_log()
    return join_statuses(answer)


@attack("a client that names itself in the header of `serve_user_header`")
def claim_to_be_a_user(service: ProxiedService) -> str:
    return join_statuses(service.get("/api/v1/overview", **{USER_HEADER: "root"}))


@attack("a user of the service's machine who claims to be the proxy, at the service itself")
def pass_by_the_proxy(service: ProxiedService) -> str:
    url = f"http://127.0.0.1:{service.settings.serve_port}/api/v1/overview"
    headers = {USER_HEADER: "root", "X-Forwarded-For": "192.0.2.67", "X-Forwarded-Proto": "https"}
    answers = [
        httpx.get(url, headers=headers | forged, timeout=60)
        for forged in ({}, {SECRET_HEADER: ""}, {SECRET_HEADER: "guess"})
    ]
    assert "192.0.2.67" not in service.read_log()
    return join_statuses(*answers)


@attack("plain HTTP after a visit over TLS; guessed content types")
def look_for_headers(service: ProxiedService) -> str:
    for path in ("/static/page.css", "/none", "/", "/api/v1/health", "/campaigns/"):
        headers = service.get(path).headers
        assert headers.get_list("Strict-Transport-Security") == ["max-age=31536000"], path
        assert headers.get_list("X-Content-Type-Options") == ["nosniff"], path
    return "HSTS and `nosniff` on every response"


@attack("TLS 1.0 or 1.1")
def speak_old_tls(service: ProxiedService) -> str:
    agreed = []
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        # Otherwise the security level of this OpenSSL would refuse them as well.
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore"):
            context.minimum_version = context.maximum_version = version
        with suppress(OSError), context.wrap_socket(service.open_socket()) as connection:
            agreed.append(connection.version())
    assert "TLSv1.2" in agreed
    return "no handshake" if agreed == ["TLSv1.2"] else f"{agreed}"


# --- submitters


@attack("cancel or rename somebody else's campaign")
def change_a_campaign(service: ProxiedService) -> str:
    alice, mallory = service.make_key("alice"), service.make_key("mallory")
    campaign, job = name_campaign("owned")
    assert service.send_campaign(alice, campaign, [job]).status_code == 200
    return join_statuses(
        service.send_campaign(mallory, campaign, [replace(job, state="cancelled")]),
        service.send_campaign(mallory, replace(campaign, name="mine")),
    )


@attack("be the first to send something of it (squatting)")
def squat(service: ProxiedService) -> str:
    alice, mallory = service.make_key("alice"), service.make_key("mallory")
    campaign, job = name_campaign("squatted")
    with Store.open(service.database) as store:
        store.add_campaign(campaign, [job], key_id=alice.key_id)
    measurement = make_sent_measurement(job.id, campaign_id=campaign.id)
    refused = service.send(mint_token(mallory, campaign.id, job.id), measurement)
    assert service.send(alice.text, measurement).json()["new"] == 1
    return join_statuses(refused)


@attack("post another job's `measurement_id` before that job does")
def take_an_identity(service: ProxiedService) -> str:
    alice, mallory = service.make_key("alice"), service.make_key("mallory")
    campaign, job = name_campaign("first")
    assert service.send_campaign(alice, campaign, [job]).status_code == 200
    body = make_body([make_sent_measurement("mallory-job", campaign_id="mallory")])
    target = make_sent_measurement(job.id, campaign_id=campaign.id)
    body["measurements"][0]["values"]["measurement_id"] = target.id
    return join_statuses(
        service.send(mallory.text, make_sent_measurement(job.id, campaign_id="mallory")),
        service.post(body, mallory.text),
    )


def read_plausible(service: ProxiedService, campaign: str) -> dict[str, bool]:
    """Return whether the measurements of a campaign are plausible, by job."""
    with Store.open(service.database) as store:
        rows = store.measurements(Selection.parse([], [f"campaign_id={campaign}"]))
        return {str(row["job_id"]): bool(row["plausible"]) for row in rows}


@attack("send values that cannot be true, such as −9.2e18 s of CPU per event, as plausible")
def send_impossible_values(service: ProxiedService) -> str:
    key, campaign = service.make_key("alice").text, "impossible"
    negative = make_sent_measurement(
        "negative", campaign_id=campaign, plausible=True, cpu_per_event_s=-9.2e18
    )
    stored = service.send(key, negative)
    assert read_plausible(service, campaign) == {"negative": False}
    refused = [
        service.send(key, make_sent_measurement("early", campaign_id=campaign, started_us=0, day=19700101)),
        service.send(key, make_sent_measurement("late", campaign_id=campaign, started_us=7258118400000000, day=22000101)),
    ]  # fmt: skip
    return f"{join_statuses(stored)} and marked; {join_statuses(*refused)} for other years"


@attack("send a false value that is possible, 9·10⁹ times the usual one")
def send_an_outlier(service: ProxiedService) -> str:
    values: dict[str, Any] = {"campaign_id": "outlier", "series": "outlier"}
    honest = [
        make_sent_measurement(f"h{n}", cpu_per_event_s=1e-4 + n * 1e-6, **values) for n in range(8)
    ]
    assert service.send(service.make_key("alice").text, *honest).status_code == 200
    liar = make_sent_measurement("liar", cpu_per_event_s=9e5, **values)
    stored = service.send(service.make_key("alice").text, liar)
    marked = [
        job for job, is_plausible in read_plausible(service, "outlier").items() if not is_plausible
    ]
    assert marked == ["liar"]
    return f"{join_statuses(stored)} and marked"


@attack("declare the replicas of a site bad")
def declare_replicas_bad(service: ProxiedService) -> str:
    alice, mallory = service.make_key("alice"), service.make_key("mallory")
    reads: dict[str, Any] = {"dataset_hash": "h", "door": "root", "plausible": True}
    for key, name in ((alice, "bad-hers"), (mallory, "bad-own")):
        assert service.send(
            key.text, make_sent_measurement(name, campaign_id=name, **reads)
        ).is_success
    campaign = name_campaign("bad-own")[0]
    assert service.send_campaign(mallory, campaign, checks=[CHECK]).is_success
    assert read_plausible(service, "bad-own") == {"bad-own": False}
    assert read_plausible(service, "bad-hers") == {"bad-hers": True}
    return "marks the own measurements only"


@attack("send a known check of a replica again, to have it deleted with the own ones")
def send_a_check_again(service: ProxiedService) -> str:
    alice, mallory = service.make_key("alice"), service.make_key("mallory")
    check = replace(CHECK, id="check", dataset_hash="other")
    assert service.send_campaign(alice, name_campaign("check-hers")[0], checks=[check]).is_success
    assert service.send_campaign(mallory, name_campaign("check-own")[0], checks=[check]).is_success
    with Store.open(service.database) as store:
        scope = ChangeScope(key_id=mallory.key_id)
        store.apply_change(DatabaseChange("delete checks", scope, "root", 1, "", "checks"))
        assert replace(check, owner="alice") in store.replicas()
    return "it belongs to its first sender"


START = {"barrier": "b", "jobs": 2, "wait_s": 60, "lead_s": 1, "waited_s": 0}


@attack("join another campaign's common start")
def join_a_start(service: ProxiedService) -> str:
    campaign, job = name_campaign("start")
    assert service.send_campaign(service.make_key("alice"), campaign, [job]).is_success
    token = mint_token(service.make_key("mallory"), campaign.id, job.id)
    return join_statuses(service.post(START, token, STARTS_PATH))


@attack(
    "upload a job under an own campaign that has reported, but whose campaign is not uploaded yet"
)
def take_a_job_over(service: ProxiedService) -> str:
    mallory = service.make_key("mallory")
    _, job = name_campaign("reported")
    measurement = make_sent_measurement(job.id, campaign_id="reported")
    assert service.send(service.make_key("alice").text, measurement).is_success
    return join_statuses(service.send_campaign(mallory, name_campaign("taken")[0], [job]))


@attack("post to a campaign that was imported, or made before the first key")
def post_to_a_local_campaign(service: ProxiedService) -> str:
    campaign, job = name_campaign("imported")
    with Store.open(service.database) as store:
        store.add([make_sent_measurement(job.id, campaign_id=campaign.id)])
    return post_to(service, campaign, job)


def post_to(service: ProxiedService, campaign: CampaignRow, job: JobRow) -> str:
    mallory = service.make_key("mallory")
    later = make_sent_measurement(job.id, round_=2, campaign_id=campaign.id)
    return join_statuses(
        service.send(mallory.text, later),
        service.send(mint_token(mallory, campaign.id, job.id), later),
        service.send_campaign(mallory, campaign, [replace(job, state="cancelled")]),
    )


@attack("post to a campaign that was deleted")
def post_to_a_deleted_campaign(service: ProxiedService) -> str:
    campaign, job = name_campaign("deleted")
    assert service.send_campaign(service.make_key("alice"), campaign, [job]).is_success
    with Store.open(service.database) as store:
        scope = ChangeScope(campaign_id=campaign.id)
        store.apply_change(DatabaseChange("delete", scope, "root", 1, "", "all"))
    return post_to(service, campaign, job)


# --- hostile input


@attack("NUL, lone surrogates, NaN, numbers beyond 64 bits, duplicate keys, deep nesting")
def send_hostile_bodies(service: ProxiedService) -> str:
    key = service.make_key("mallory").text
    (record,) = make_body([make_sent_measurement("hostile", campaign_id="hostile")])["measurements"]
    changes = ({"host": "a\0b"}, {"host": "\ud800"}, {"retries": 2**63})
    bodies = (
        *(json.dumps({"measurements": [{**record, "values": {**record["values"], **change}}]}).encode() for change in changes),
        b'{"measurements": [NaN]}',
        b'{"measurements": [], "measurements": []}',
        b"[" * 200_000,
    )  # fmt: skip
    statuses = join_statuses(*(service.post(body, key) for body in bodies))
    assert read_plausible(service, "hostile") == {}
    return f"{statuses}; nothing is stored"


@attack("a gzip bomb, damaged gzip data")
def send_gzip_bombs(service: ProxiedService) -> str:
    key = service.make_key("mallory").text
    bomb = gzip.compress(b" " * 40_000_000)
    return join_statuses(
        *(service.post(body, key, Content_Encoding="gzip") for body in (bomb, bomb[:-9], b"x"))
    )


@attack("a body above 16 MB")
def send_a_large_body(service: ProxiedService) -> str:
    key = service.make_key("mallory").text
    request = (
        f"POST /api/v1/measurements HTTP/1.1\r\nHost: {service.host}\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        "Content-Length: 16800000\r\n\r\n"
    )
    with service.connect() as connection:
        connection.sendall(request.encode())
        with suppress(OSError):  # A client that sends on after the refusal may miss the answer.
            connection.sendall(b" " * 16_800_000)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
    service.require_service()
    return str(answer.status)


@attack("markup in names of sites, hosts and tests")
def send_markup(service: ProxiedService) -> str:
    key, reader = service.make_key("mallory").text, service.make_key("reader", "read").text
    markup = "<script>alert(1)</script>"
    measurement = make_sent_measurement("markup", campaign_id="markup", site=markup, host=markup)
    assert service.send(key, measurement).is_success
    page = service.get("/sites", Authorization=f"Bearer {reader}", **BROWSER).text
    assert markup not in page
    assert "&lt;script&gt;alert(1)" in page
    return "shown as text"


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: HOST\r\n\r\n"


@attack("two requests in one (request smuggling)")
def smuggle(service: ProxiedService) -> str:
    answers: dict[str, None] = {}
    for headers in (
        b"Content-Length: 47\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 47\r\n\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: 42\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: +0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n",
    ):
        with service.connect() as connection:
            head = b"POST /sign-out HTTP/1.1\r\nHost: HOST\r\n" + headers
            connection.sendall(fill_host(service, head + SMUGGLED))
            received = b""
            with suppress(OSError):
                connection.settimeout(2)
                while part := connection.recv(10_000):
                    received += part
        first, *later_statuses = re.findall(rb"^HTTP/1.1 (\d+)", received, re.MULTILINE)
        remark = (
            ", the second request answered as one of its own" if later_statuses == [b"404"] else ""
        )
        assert remark or not later_statuses or {first, *later_statuses} == {b"400"}, received
        answers[f"{first.decode()}{remark}"] = None
    return "; ".join(sorted(answers))
