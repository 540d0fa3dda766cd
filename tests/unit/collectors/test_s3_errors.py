"""Causes and remedies of errors of object stores."""

from __future__ import annotations

from datetime import UTC, datetime
from email.message import Message
from email.utils import format_datetime
from typing import Any

import pytest

from treehammer.collectors.s3_errors import S3Error, read_error

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
        (400, "ExpiredToken", "expired", "Renew"),
        (400, "expiredtoken", "expired", "Renew"),
        (403, "InvalidObjectState", "archived", "Restore"),
        (400, "AuthorizationHeaderMalformed", "region", "region = …"),
        (301, "PermanentRedirect", "region", "region = …"),
        (503, "SlowDown", "overload", "fewer requests"),
        (503, "NewNameOfOverload", "overload", "fewer requests"),
        (500, "InternalError", "store", "Try again"),
        (404, "NoSuchBucket", "missing", "Correct the bucket"),
        (404, "NoSuchKey", "missing", ""),
        (507, "XMinioStorageFull", "no-space", "Make room"),
        (400, "EntityTooLarge", "size", "smaller files"),
        (400, "KMS.DisabledException", "key", "bucket's owner"),
        (501, "NotImplemented", "unsupported", "Signature Version 4"),
        (418, "Unheard", "store", "Try again"),
    ],
)
def test_codes_have_remedies(status: int, code: str, kind: str, remedy: str) -> None:
    error = read(status, code)
    assert (error.code, error.cause.kind) == (code, kind)
    assert remedy in error.cause.remedy
    assert bool(remedy) == bool(error.cause.remedy)
    assert error.cause.is_transient == (kind in ("overload", "store"))


def test_texts_of_stores_say_more_than_their_codes() -> None:
    texts = ("Forbidden: No such key: GK31c2", "Forbidden: Invalid signature")
    unknown, wrong = (read(403, "AccessDenied", text).cause.remedy for text in texts)
    assert ("aws_access_key_id" in unknown, "aws_secret_access_key" in wrong) == (True, True)
    nested = b"\n<?xml version='1.0'?><R><E><error><code>ExpiredToken</code></error></E></R>"
    for body in (nested, b'{"Code": "ExpiredToken"}'):
        assert read_error(403, Message(), body, has_keys=True).cause.kind == "expired"
    plain = b"Client sent an HTTP request to an HTTPS server.\n"
    assert "s3s://" in read_error(400, Message(), plain, has_keys=True).cause.remedy


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        # The signature was made for this request, so keys and permissions are not to blame.
        ("AccessDenied", "Request has expired", "clock"),
        ("AccessDenied", "Request is not valid yet", "clock"),
        ("InvalidRequest", "The object was stored using a form of Server Side Encryption.", "key"),
        ("AuthorizationQueryParametersError", "the region 'us-east-1' is wrong", "region"),
        ("AuthorizationQueryParametersError", "the Credential is mal-formed", "refused"),
        ("AuthorizationQueryParametersError", "X-Amz-Algorithm only supports", "unsupported"),
        ("InvalidArgument", "Credential access key has length 20, should be 32", "refused"),
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
        (400, {}, "", "expired"),
        (401, {}, "", "refused"),
        (403, {"x_minio_error_code": '"InvalidAccessKeyId"'}, "InvalidAccessKeyId", "refused"),
        (404, {"x_ms_error_code": "ContainerNotFound"}, "ContainerNotFound", "missing"),
        (404, {}, "", "missing"),
        (503, {}, "", "overload"),
        (403, {"Date": "yesterday"}, "", "not-permitted"),
    ],
)
def test_answers_without_body_have_remedies(
    status: int, fields: dict[str, Any], code: str, kind: str
) -> None:
    error = read(status, **fields)
    assert (error.code, error.cause.kind) == (code, kind)


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
    assert (error.code, error.cause.kind) == ("", "not-permitted")
