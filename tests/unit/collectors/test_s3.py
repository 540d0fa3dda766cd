"""Object stores: signed addresses, keys, and the meaning of errors."""

from __future__ import annotations

from datetime import UTC, datetime
from email.message import Message
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from treehammer.collectors.job_spec import InputFile, SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.s3_errors import S3Error, read_error
from treehammer.collectors.s3_signing import (
    CREDENTIALS_VARIABLE,
    S3CredentialError,
    S3Keys,
    load_keys,
    mask_signatures,
    read_keys,
    sign_address,
)
from treehammer.collectors.worker.run.payload_addresses import find_addresses

#: "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)", Amazon S3's API reference.
EXAMPLE_KEYS = S3Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
EXAMPLE_TIME_S = 1369353600  # 20130524T000000Z
EXAMPLE_ADDRESS = (
    "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
    "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
)


def sign(url: str, keys: S3Keys | None = EXAMPLE_KEYS, method: str = "GET") -> str:
    return sign_address(method, url, keys, 86_400, now_s=EXAMPLE_TIME_S)


def read_field(address: str, name: str) -> str:
    return parse_qs(urlsplit(address).query)[f"X-Amz-{name}"][0]


def test_address_is_that_of_the_published_example() -> None:
    for url in (
        "https://examplebucket.s3.amazonaws.com/test.txt",
        "s3s://examplebucket.s3.amazonaws.com/test.txt",
        "s3s://ExampleBucket.s3.amazonaws.com:443/test.txt",
        EXAMPLE_ADDRESS,  # as a redirect repeats it
    ):
        assert sign(url) == EXAMPLE_ADDRESS


def test_signature_depends_on_method_path_query_and_keys() -> None:
    url = "s3://localhost:9000/bucket/a b"
    addresses = [
        sign(url),
        sign(url, method="HEAD"),
        sign(f"{url}c"),
        sign("s3://localhost:9000/bucket?list-type=2&prefix=a%2Fb"),
        sign(url, S3Keys("other", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")),
        sign(url, S3Keys(EXAMPLE_KEYS.access_key, "other")),
    ]
    assert len({read_field(address, "Signature") for address in addresses}) == len(addresses)
    assert addresses[0].startswith("http://localhost:9000/bucket/a%20b?")
    assert sign("s3://localhost:80/a%20b", None) == "http://localhost/a%20b"


def test_region_and_session_token_are_part_of_the_address() -> None:
    assert "/eu-west-1/" in read_field(sign("s3s://s3.eu-west-1.amazonaws.com/b/k"), "Credential")
    temporary = S3Keys("key", "secret", "a+token/", "cern")
    address = sign("s3s://s3.example.org/b/k", temporary)
    assert "/cern/" in read_field(address, "Credential")
    assert read_field(address, "Security-Token") == "a+token/"


def test_expiry_is_bounded_by_a_week() -> None:
    address = sign_address("GET", "s3://h/b/k", EXAMPLE_KEYS, 10**9)
    assert read_field(address, "Expires") == "604800"


def test_masked_address_has_no_secret_part() -> None:
    keys = S3Keys("public", "hidden", "session-token")
    text = f"cannot open {sign('s3://h/b/k', keys)}: 403\n<{EXAMPLE_ADDRESS}>"
    masked = mask_signatures(text)
    assert "cannot open http://h/b/k?X-Amz-Algorithm=" in masked
    assert masked.count("X-Amz-Signature=***") == 2
    secrets = (
        "aeeed9bb",
        "session-token",
        "public",
        "AKIA",
        read_field(text.split()[2], "Signature"),
    )
    for secret in secrets:
        assert secret not in masked


KEYS_FILE = """
[default]
aws_access_key_id = usual
aws_secret_access_key = a%b=c
[store.example.org:9000]
aws_access_key_id = of-port
aws_secret_access_key = s
[store.example.org]
aws_access_key_id = of-host
aws_secret_access_key = s
region = cern
[mine]
aws_access_key_id = of-profile
aws_secret_access_key = s
aws_session_token = t
"""


def test_section_of_the_host_precedes_profile_and_default(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(KEYS_FILE)
    env = {CREDENTIALS_VARIABLE: str(tmp_path / "keys"), "AWS_REGION": "here"}

    def load(url: str, **variables: str) -> S3Keys | None:
        return load_keys(url, {**env, **variables})

    assert load("s3://h/b/k") == S3Keys("usual", "a%b=c", "", "here")
    assert load("s3://h/b/k", AWS_PROFILE="mine") == S3Keys("of-profile", "s", "t", "here")
    assert load("s3s://STORE.example.org/b/k") == S3Keys("of-host", "s", "", "cern")
    assert load("s3://store.example.org:9000/b/k") == S3Keys("of-port", "s", "", "here")
    given = {"AWS_ACCESS_KEY_ID": "given", "AWS_SECRET_ACCESS_KEY": "s"}
    assert load("s3://h/b/k", **given) == S3Keys("given", "s", "", "here")


def test_without_keys_objects_are_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_keys("s3://h/b/k", {}) is None
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(KEYS_FILE)
    keys = load_keys("s3://h/b/k", {})
    assert keys is not None
    assert keys.access_key == "usual"
    assert "a%b=c" not in repr(keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hidden", "no file of sections"),
        ("[default]\nhidden", "no file of sections"),
        ("[default]\naws_access_key_id = hidden", "no section with aws_access_key_id and"),
        (None, "cannot be read: No such file"),
    ],
)
def test_unusable_file_is_named_without_its_content(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    with pytest.raises(S3CredentialError, match=message) as caught:
        read_keys(str(path))
    assert str(path) in str(caught.value)
    assert "hidden" not in str(caught.value)


FILE = InputFile("f", "s3://h:9000/b/f.root", 1, "00000001")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "keys"
    path.write_text("[default]\naws_access_key_id = key\naws_secret_access_key = secret\n")
    return {CREDENTIALS_VARIABLE: str(path)}


@pytest.mark.parametrize("provider", ["none", "pypi", "path", "cvmfs", "current"])
def test_address_is_signed_beyond_the_wall_limit(env: dict[str, str], provider: str) -> None:
    addresses = find_addresses([FILE], SoftwareRequest("x", provider, "6.38.00", ""), env, 3_000)
    (file,) = addresses.files
    assert file.url.startswith("http://h:9000/b/f.root?X-Amz-Algorithm=")
    assert int(parse_qs(urlsplit(file.url).query)["X-Amz-Expires"][0]) > 3_000
    assert addresses.are_signed
    assert "BEARER_TOKEN_FILE" in addresses.withheld
    assert "secret" not in file.url
    assert (file.size, file.adler32) == (FILE.size, FILE.adler32)


def test_wheel_signs_by_itself_or_reports_its_missing_class(env: dict[str, str]) -> None:
    def find(version: str, url: str = FILE.url) -> tuple[str, dict[str, str]]:
        software = SoftwareRequest(version, "wheel", version, "")
        file = InputFile("f", url, 1, "00000001")
        addresses = find_addresses([file], software, env, 0)
        assert not addresses.are_signed
        return addresses.files[0].url, dict(addresses.environment)

    keys = {"S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret"}
    assert find("6.38.00") == ("s3http://h:9000/b/f.root", keys)
    assert find("6.40.00") == (FILE.url, {})
    assert find("6.38.00", "s3s://h/b/f.root")[0] == "s3s://h/b/f.root"


def test_other_doors_are_opened_as_they_are(env: dict[str, str]) -> None:
    for url in ("root://h//f", "https://h/f", "/data/f"):
        file = InputFile("f", url, 1, "00000001")
        addresses = find_addresses([file], SoftwareRequest("x", "pypi", "", ""), env, 60)
        assert addresses.files == (file,)
        assert (addresses.environment, addresses.withheld, addresses.are_signed) == ({}, (), False)


def test_unusable_keys_are_a_failure_of_credentials() -> None:
    env = {CREDENTIALS_VARIABLE: "/no/file"}
    with pytest.raises(ExecutionError, match="/no/file cannot be read") as caught:
        find_addresses([FILE], SoftwareRequest("x", "none", "", ""), env, 60)
    failure = caught.value.failure
    assert (failure.failure_class, failure.kind) == ("credential", "invalid")


NOW_S = 1_800_000_000.0


def read(
    status: int, code: str = "", text: str = "", *, has_keys: bool = True, **fields: str
) -> S3Error:
    """Read an error; fields named as headers (``x_amz_…``, ``Date``) become headers, others elements."""
    headers = Message()
    elements = {"Code": code, "Message": text}
    for name, value in fields.items():
        if name == "Date" or name.startswith("x_"):
            headers[name.replace("_", "-")] = value
        else:
            elements[name] = value
    body = "".join(f"<{name}>{value}</{name}>" for name, value in elements.items())
    body = f"<?xml version='1.0'?><Error>{body}</Error>" if code else ""
    return read_error(status, headers, body.encode(), has_keys=has_keys, now_s=NOW_S)


@pytest.mark.parametrize(
    ("status", "code", "kind", "remedy"),
    [
        (403, "RequestTimeTooSkewed", "clock", "clock of this machine"),
        (403, "InvalidAccessKeyId", "refused", "aws_access_key_id"),
        (403, "SignatureDoesNotMatch", "refused", "aws_secret_access_key"),
        (403, "AllAccessDisabled", "refused", "store's provider"),
        (403, "SecondLevelDomainForbidden", "unsupported", "BUCKET.HOST"),
        (400, "ExpiredToken", "expired", "Renew"),
        (400, "expiredtoken", "expired", "Renew"),
        (403, "InvalidObjectState", "archived", "Restore"),
        (400, "AuthorizationHeaderMalformed", "region", "region = …"),
        (503, "NewNameOfOverload", "overload", "fewer requests"),
        (409, "Unheard", "store", "Try again"),
        (404, "NoSuchBucket", "missing", "Correct the bucket"),
        (404, "NoSuchKey", "missing", ""),
        (507, "XMinioStorageFull", "no-space", "Make room"),
        (400, "EntityTooLarge", "size", "smaller files"),
        (400, "KMS.DisabledException", "key", "bucket's owner"),
        (416, "InvalidRange", "unsupported", "ranges"),
        (418, "Unheard", "request", "temporary keys"),
    ],
)
def test_codes_have_remedies(status: int, code: str, kind: str, remedy: str) -> None:
    error = read(status, code)
    assert (error.text, error.cause.kind) == (code, kind)
    assert remedy in error.cause.remedy
    assert bool(remedy) == bool(error.cause.remedy)
    assert error.cause.is_transient == (kind in ("overload", "store"))


def test_texts_of_stores_say_more_than_their_codes() -> None:
    texts = ("Forbidden: No such key: GK31c2", "Forbidden: Invalid signature")
    unknown, wrong = (read(403, "AccessDenied", text).cause.remedy for text in texts)
    assert ("aws_access_key_id" in unknown, "aws_secret_access_key" in wrong) == (True, True)
    nested = b"\n<?xml version='1.0'?><R><E><key>a&b</key><code>ExpiredToken</code></E></R>"
    for body in (nested, b'{"Code": "ExpiredToken"}'):
        assert read_error(403, Message(), body, has_keys=True).cause.kind == "expired"
    for plain in (b"sent an HTTP request to an HTTPS server.\n", b"a plain-text request from TLS"):
        assert "s3s://" in read_error(400, Message(), plain, has_keys=True).cause.remedy


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        # The signature was made for this request, so keys and permissions are not to blame.
        ("AccessDenied", "Request has expired", "clock"),
        ("AccessDenied", "Request is not valid yet", "clock"),
        ("InvalidRequest", "The object was stored using a form of Server Side Encryption.", "key"),
        ("AuthorizationHeaderMalformed", "unexpected scope: 20260519/us-east-1/s3", "region"),
        (
            "AuthorizationQueryParametersError",
            "Credential is mal-formed; expecting /REGION/",
            "refused",
        ),
        ("AccessDenied", "transaction (Class B) cap exceeded", "refused"),
        ("AuthorizationQueryParametersError", "X-Amz-Algorithm only supports", "unsupported"),
        ("InvalidArgument", "Credential access key has length 20, should be 32", "refused"),
        ("InvalidRequest", "Please use AWS4-HMAC-SHA256.", "unsupported"),
    ],
)
def test_texts_decide_between_causes_of_one_code(code: str, text: str, kind: str) -> None:
    assert read(403, code, text).cause.kind == kind


@pytest.mark.parametrize(
    ("seconds", "kind", "words"),
    [
        (7200, "clock", "120 min behind the store's"),
        (-7200, "clock", "120 min ahead of the store's"),
        (30, "not-permitted", "bucket's owner"),
    ],
)
@pytest.mark.parametrize("code", ["", "AccessDenied"])
def test_clock_is_compared_with_that_of_the_store(
    code: str, seconds: float, kind: str, words: str
) -> None:
    time_of_answer = datetime.fromtimestamp(NOW_S + seconds, UTC)
    error = read(403, code, Date=format_datetime(time_of_answer, usegmt=True))
    assert (error.cause.kind, words in error.cause.remedy) == (kind, True)


@pytest.mark.parametrize(
    ("status", "fields", "code", "kind"),
    [
        (301, {"x_amz_bucket_region": "eu-x-1"}, "", "region"),
        (400, {"x_amz_bucket_region": "eu-x-1"}, "", "region"),
        (400, {}, "", "request"),
        (401, {}, "", "refused"),
        (403, {"x_minio_error_code": '"InvalidAccessKeyId"'}, "InvalidAccessKeyId", "refused"),
        (404, {"x_ms_error_code": "ContainerNotFound"}, "ContainerNotFound", "missing"),
        (410, {}, "", "missing"),
        (503, {}, "", "overload"),
        (403, {"Date": "yesterday"}, "", "not-permitted"),
    ],
)
def test_answers_without_body_have_remedies(
    status: int, fields: dict[str, Any], code: str, kind: str
) -> None:
    error = read(status, **fields)
    assert (error.text, error.cause.kind) == (code, kind)


@pytest.mark.parametrize("code", ["", "AccessDenied", "AuthenticationFailed"])
def test_refusals_without_keys_name_their_file(code: str) -> None:
    error = read(403, code, has_keys=False)
    assert error.cause.kind == "missing"
    assert "AWS_SHARED_CREDENTIALS_FILE" in error.cause.remedy


@pytest.mark.parametrize(
    ("status", "code", "fields", "remedy"),
    [
        (400, "AuthorizationHeaderMalformed", {"Region": "eu-x-1"}, "region = eu-x-1"),
        (
            400,
            "AuthorizationQueryParametersError",
            {"text": "the region 'us-east-1' is wrong; expecting 'eu-x-1'"},
            "region = eu-x-1",
        ),
        (301, "PermanentRedirect", {"x_amz_bucket_region": "eu-x-1"}, "region = eu-x-1"),
        (
            301,
            "PermanentRedirect",
            {"Bucket": "b", "Endpoint": "b.s3.eu-x-1.example"},
            "The prefix needs the host s3.eu-x-1.example.",
        ),
    ],
)
def test_region_and_host_are_named(
    status: int, code: str, fields: dict[str, Any], remedy: str
) -> None:
    assert remedy in read(status, code, **fields).cause.remedy


ENTITY = b"<!DOCTYPE x [<!ENTITY a 'aaaa'>]><Error><Code>&a;</Code></Error>"


@pytest.mark.parametrize("body", [ENTITY, b"<html><code>/b</code></html>", b'{"C": "x"}', b"\xff"])
def test_other_bodies_have_no_code(body: bytes) -> None:
    error = read_error(403, Message(), body, has_keys=True, now_s=NOW_S)
    assert (error.text, error.cause.kind) == ("", "not-permitted")
