"""Errors of object stores: their causes by code, and the remedy of each.

Codes are those of Amazon, Ceph, Google, MinIO and gateways to Azure.  Answers to HEAD have no body, and so no
code but in a header of some stores: there the status, the region and the store's clock decide.
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime
from typing import Any, Dict, Mapping, NamedTuple, Optional

from .xml_documents import BARE_AMPERSAND, XmlError, local_name, parse_xml

#: Bytes of an error's body that are read.
MAX_ERROR_BYTES = 20_000
#: Seconds between the clocks of client and store that stores accept.
MAX_CLOCK_DIFFERENCE_S = 900.0
#: Differences below this may be the time of the request.
_MIN_CLOCK_DIFFERENCE_S = 60.0

KEYS_HINT = (
    "Name a file with a section [HOST] or [default], aws_access_key_id and aws_secret_access_key "
    "in AWS_SHARED_CREDENTIALS_FILE."
)
_SECTION = "in the section of this host in AWS_SHARED_CREDENTIALS_FILE"
_REGION = f"Set the bucket's region (region = …) {_SECTION}, or AWS_REGION."


class S3Cause(NamedTuple):
    """Cause of an error.

    Attributes:
        kind: kind of a recorded failure.
        remedy: sentence, '' for that of a missing file.
        is_credential: whether the keys are to blame.
        is_transient: whether another attempt may succeed.
    """

    kind: str
    remedy: str
    is_credential: bool = False
    is_transient: bool = False


_CLOCK = S3Cause("clock", "Set the clock of this machine (NTP): signatures state the time.")
_EXPIRED = S3Cause(
    "expired",
    "Renew the temporary keys: aws_access_key_id, aws_secret_access_key and aws_session_token.",
    is_credential=True,
)
_UNKNOWN_KEY = S3Cause(
    "refused",
    f"Correct aws_access_key_id {_SECTION}: the store does not know it.",
    is_credential=True,
)
_SIGNATURE = S3Cause(
    "refused",
    f"Correct aws_secret_access_key {_SECTION}. A proxy before the store must pass on the Host "
    "header and the path.",
    is_credential=True,
)
_NO_KEYS = S3Cause("missing", KEYS_HINT, is_credential=True)
_PERMISSION = S3Cause(
    "not-permitted",
    f"Check bucket and prefix, and the keys {_SECTION}: the bucket's owner must permit this to them.",
    is_credential=True,
)
_ACCOUNT = S3Cause(
    "refused",
    "The account of the keys is suspended, or nobody pays for it: ask the store's provider.",
    is_credential=True,
)
_WRONG_REGION = S3Cause("region", _REGION)
_TLS = S3Cause("tls", "The port speaks TLS: use s3s:// in the prefix.")
_OVERLOAD = S3Cause(
    "overload",
    "The store is overloaded: send fewer requests at once, or try again later.",
    is_transient=True,
)
_STORE = S3Cause(
    "store", "Try again; if it stays so, look into the store's log.", is_transient=True
)
_REQUEST = S3Cause(
    "request",
    "Check the prefix, the region, and whether temporary keys have expired; the store's log has the "
    "reason.",
)
_BUCKET = S3Cause(
    "missing", "Correct the bucket in the prefix (s3s://HOST/BUCKET/…), or create it."
)
_OBJECT = S3Cause("missing", "")
_ARCHIVED = S3Cause("archived", "Restore the object from the archive, then try again.")
_SPACE = S3Cause("no-space", "Make room in the bucket, or raise its quota.")
_SIZE = S3Cause("size", "The store takes smaller objects only: use a dataset with smaller files.")
_NAME = S3Cause("name", "The store does not permit this name: correct the prefix.")
_ENCRYPTION = S3Cause(
    "key", "The key that encrypts the object cannot be used: ask the bucket's owner."
)
_UNSUPPORTED = S3Cause(
    "unsupported",
    "The store needs signed addresses (AWS Signature Version 4) and ranges: update or configure it.",
)
_PATH_STYLE = S3Cause(
    "unsupported",
    "The store takes the bucket in the host only: s3s://BUCKET.HOST/…, with a file by --dataset.",
)

_CODES: Mapping[S3Cause, str] = {
    _CLOCK: "RequestTimeTooSkewed RequestExpired ExpiredRequest RequestNotReadyYet "
    "ExpiredPresignRequest",
    _EXPIRED: "ExpiredToken ExpiredTokenException TokenExpired TokenRefreshRequired InvalidToken "
    "InvalidTokenId InvalidSecurityToken MalformedSecurityToken SecurityTokenExpired",
    _UNKNOWN_KEY: "InvalidAccessKeyId InvalidAccessKey InvalidClientTokenId NoSuchAccessKey "
    "NoSuchUser UnrecognizedClientException AccessKeyDisabled",
    _SIGNATURE: "SignatureDoesNotMatch InvalidSignature InvalidSignatureException "
    "AuthenticationFailed InvalidAuthenticationInfo",
    _NO_KEYS: "AuthenticationRequired MissingSecurityHeader MissingSecurityElement "
    "MissingAuthenticationToken MissingAuthenticationTokenException NoAuthenticationInformation",
    _PERMISSION: "AccessDenied AccessDeniedException AccessForbidden Forbidden Unauthorized "
    "UnauthorizedAccess UnauthorizedOperation AuthorizationFailure AuthorizationPermissionMismatch "
    "InsufficientAccountPermissions UserProjectAccessDenied InvalidPayer",
    _ACCOUNT: "AccountProblem AllAccessDisabled NotSignedUp OptInRequired UserSuspended "
    "UserDisabled UserDisable AccountIsDisabled InvalidSecurity UserProjectAccountProblem "
    "UserProjectInvalid UserProjectMissing InArrearOrInsufficientBalance",
    _WRONG_REGION: "PermanentRedirect TemporaryRedirect Redirect AuthorizationHeaderMalformed "
    "AuthorizationQueryParametersError AuthorizationParametersError IncorrectEndpoint InvalidRegion "
    "InvalidRegionName IllegalLocationConstraintException InvalidLocationConstraint WrongRegion",
    _OVERLOAD: "SlowDown SlowDownRead SlowDownWrite ServiceUnavailable ServerBusy Busy Throttling "
    "ThrottlingException ThrottledException RequestLimitExceeded RequestThrottled "
    "RequestThrottledException TooManyRequests TooManyRequestsException RateLimitExceeded "
    "BandwidthLimitExceeded QpsLimitExceeded KMS.ThrottlingException",
    _STORE: "InternalError InternalFailure InternalServerError OperationAborted OperationTimedOut "
    "RequestTimeout ConditionalRequestConflict BadDigest IncompleteBody XAmzContentSHA256Mismatch "
    "XMinioServerNotInitialized InsufficientReadQuorum InsufficientWriteQuorum",
    _BUCKET: "NoSuchBucket InvalidBucketName InvalidBucketState BucketNotFound ContainerNotFound "
    "ContainerBeingDeleted NoSuchContainer",
    _OBJECT: "NoSuchKey NoSuchVersion NoSuchObject KeyNotFound ObjectNotFound NotFound BlobNotFound "
    "ResourceNotFound",
    _ARCHIVED: "InvalidObjectState ObjectNotInActiveTierError BlobArchived",
    _SPACE: "QuotaExceeded StorageFull InsufficientStorage InsufficientCapacity XMinioStorageFull "
    "XMinioAdminBucketQuotaExceeded ServiceQuotaExceededException AccountQuotaExceeded "
    "TooManyBuckets",
    _SIZE: "EntityTooLarge MaxMessageLengthExceeded",
    _NAME: "KeyTooLong KeyTooLongError InvalidURI InvalidObjectName InvalidResourceName "
    "XMinioInvalidObjectName",
    _ENCRYPTION: "KMSNotConfigured KMS.DisabledException KMS.NotFoundException "
    "KMS.KMSInvalidStateException KMS.InvalidStateException KMS.InvalidKeyUsageException",
    _PATH_STYLE: "SecondLevelDomainForbidden VirtualHostDomainRequired PathStyleDomainForbidden",
    _UNSUPPORTED: "NotImplemented XNotImplemented NotSupported UnsupportedOperation "
    "MethodNotAllowed UnsupportedSignature CredentialsNotSupported InvalidRange",
}
#: Codes in lower case, in which some stores write them.
_CAUSES_BY_CODE = {code: cause for cause, codes in _CODES.items() for code in codes.lower().split()}
_CAUSES_BY_STATUS: Mapping[int, S3Cause] = {
    **dict.fromkeys((301, 302, 303, 307, 308), _WRONG_REGION),
    401: _SIGNATURE,
    403: _PERMISSION,
    **dict.fromkeys((404, 410), _OBJECT),
    **dict.fromkeys((408, 409, 425), _STORE),
    **dict.fromkeys((405, 416, 501), _UNSUPPORTED),
    413: _SIZE,
    **dict.fromkeys((429, 503), _OVERLOAD),
    507: _SPACE,
}
#: Headers that name the code where there is no body: MinIO, Amazon's web sites, Azure.
_CODE_HEADERS = ("x-minio-error-code", "x-amz-error-code", "x-ms-error-code")
_REGION_HEADER = "x-amz-bucket-region"
#: Words of nginx, Apache and servers in Go to a client that speaks plain HTTP.
PLAIN_HTTP = re.compile(rb"plain(-text| HTTP) (request|to an SSL)|HTTP request to an HTTPS")
_EXPECTED_REGION = re.compile(r"expecting '([\w-]+)'")
#: Messages of a refusal that say more than its code, such as those of Garage; the signature was made
#: for this request, so its time is that of the clock.
_CAUSES_BY_MESSAGE = {
    r"\bcap exceeded\b": _ACCOUNT,
    r"expired|valid yet|not yet valid|in the future|date is too old": _CLOCK,
    r"\bno such key\b|\bcredential is mal-?formed|\baccess key has length\b": _UNKNOWN_KEY,
    r"\binvalid signature\b": _SIGNATURE,
    r"server.side encryption|\bkms:": _ENCRYPTION,
    r"not supported|\baws4-hmac": _UNSUPPORTED,
}
#: A text of an error in JSON, with its name.
_JSON_TEXT = re.compile(r'"(\w+)"\s*:\s*"([^"\\]*)"')


class S3Error(NamedTuple):
    """An error of an object store: its code and message, '' without, and its cause."""

    text: str
    cause: S3Cause


def read_error(
    status: int, headers: Any, body: bytes, *, has_keys: bool, now_s: Optional[float] = None
) -> S3Error:
    """Find the cause of an error.

    Args:
        status: HTTP status.
        headers: headers of the answer.
        body: start of the answer's body, empty for HEAD.
        has_keys: whether the request was signed.
        now_s: time of this machine, seconds since 1970; now by default.
    """
    fields = read_fields(body)
    code = read_code(headers, body)
    region = fields.get("region") or headers.get(_REGION_HEADER, "")
    cause = _TLS if PLAIN_HTTP.search(body) else _find_cause(status, code, region)
    behind_s = _measure_clock(headers, time.time() if now_s is None else now_s)
    message = " ".join(fields.get("message", "").split())
    cause = _find_cause_by_message(cause, code, message, behind_s)
    if cause in (_PERMISSION, _SIGNATURE) and not has_keys:
        cause = _NO_KEYS
    if cause is _WRONG_REGION:
        cause = cause._replace(remedy=_name_region(fields, region))
    if cause is _CLOCK:
        cause = cause._replace(remedy=_name_difference(behind_s))
    return S3Error(": ".join(filter(None, (code, message[:200].rstrip(".")))), cause)


def _find_cause(status: int, code: str, region: str) -> S3Cause:
    if status == 400 and region and not code:  # the answer to HEAD in another region
        return _WRONG_REGION
    default = _REQUEST if 400 <= status < 500 else _STORE
    return _CAUSES_BY_CODE.get(code.lower()) or _CAUSES_BY_STATUS.get(status, default)


def _find_cause_by_message(cause: S3Cause, code: str, message: str, behind_s: float) -> S3Cause:
    """Find the cause that a message or the clock names where a code has several; else the cause given."""
    # Malformed authorizations, by the region most often.
    is_malformed = cause is _WRONG_REGION and code.startswith("Authorization")
    if cause is _PERMISSION or code in ("InvalidRequest", "InvalidArgument"):
        if abs(behind_s) > MAX_CLOCK_DIFFERENCE_S:
            return _CLOCK
    elif not is_malformed or not message or re.search("[Rr]egion|scope", message):
        return cause
    else:
        cause = _UNSUPPORTED
    causes = _CAUSES_BY_MESSAGE.items()
    return next((named for text, named in causes if re.search(text, message, re.IGNORECASE)), cause)


def read_code(headers: Any, body: bytes) -> str:
    """Read the code of an error from the start of its answer, or from its headers; '' without."""
    code = read_fields(body).get("code") or next(filter(None, map(headers.get, _CODE_HEADERS)), "")
    return code.strip('" ')


def read_fields(body: bytes) -> Dict[str, str]:
    """Read the texts of an error in XML or JSON, named in lower case; empty for others and a web page."""
    try:
        root = parse_xml(BARE_AMPERSAND.sub(b"&amp;", body), is_cut=len(body) >= MAX_ERROR_BYTES)
    except XmlError:
        is_json = body.lstrip().startswith(b"{")
        texts = _JSON_TEXT.findall(body.decode(errors="replace")) if is_json else ()
        return {name.lower(): text for name, text in texts}
    elements = () if local_name(root).lower() == "html" else root.iter()
    return {local_name(element).lower(): (element.text or "").strip() for element in elements}


def _measure_clock(headers: Any, now_s: float) -> float:
    """Return the seconds by which this machine's clock is behind the store's; 0 if unknown."""
    try:
        return parsedate_to_datetime(headers.get("Date") or "").timestamp() - now_s
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _name_difference(behind_s: float) -> str:
    """Name the difference of the clocks, as far as the store states its time."""
    if abs(behind_s) < _MIN_CLOCK_DIFFERENCE_S:
        return _CLOCK.remedy
    minutes = f"{abs(behind_s) / 60:.0f} min {'behind' if behind_s > 0 else 'ahead of'}"
    return f"Set the clock of this machine (NTP): it is {minutes} the store's."


def _name_region(fields: Mapping[str, str], region: str) -> str:
    """Name region and address of a bucket, as far as the store states them."""
    expected = _EXPECTED_REGION.search(fields.get("message", ""))
    region = region or (expected[1] if expected else "")
    remedy = f"Set region = {region} {_SECTION}, or AWS_REGION." if region else _REGION
    endpoint = fields.get("endpoint", "")
    if endpoint:
        host = endpoint.removeprefix(f"{fields.get('bucket', '')}.")
        remedy += f" The prefix needs the host {host}."
    return remedy
