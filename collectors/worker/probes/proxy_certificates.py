"""Contents of an x509 proxy: expiry of its chain, identity, and the attributes that a VOMS server signed."""

from __future__ import annotations

import base64
import calendar
import re
import time
from typing import Iterator, List, NamedTuple, Optional, Tuple

# Signatures are not verified: doors do that, and this only explains their decisions.

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_UTC_TIME_TAG, _GENERALIZED_TIME_TAG, _VERSION_TAG = 0x17, 0x18, 0xA0
_OCTETS_TAG, _OBJECT_TAG, _CONSTRUCTED = 0x04, 0x06, 0x20
#: Position of subject and validity in a certificate without its version.
_VALIDITY, _SUBJECT = 3, 4
#: Object identifiers of VOMS (1.3.6.1.4.1.8005.100.100): the certificates of attributes in a proxy,
#: and the attributes in such a certificate.
_VOMS_CERTIFICATES = bytes.fromhex("2b06010401be45646405")
_VOMS_ATTRIBUTES = bytes.fromhex("2b06010401be45646404")
_NAMES = {
    bytes.fromhex("550403"): "CN",
    bytes.fromhex("550406"): "C",
    bytes.fromhex("550407"): "L",
    bytes.fromhex("550408"): "ST",
    bytes.fromhex("55040a"): "O",
    bytes.fromhex("55040b"): "OU",
    bytes.fromhex("0992268993f22c640119"): "DC",
}
#: Names that proxies append to the subject of their user.
_PROXY_NAMES = re.compile(r"(/CN=(proxy|limited proxy|\d+))+$")
#: Endings of attributes without information.
_EMPTY_PARTS = re.compile(r"(/Role=NULL)?(/Capability=NULL)?$")


class ProxyDetails(NamedTuple):
    """Contents of a proxy.

    Attributes:
        identity: subject of its user, such as ``/DC=org/CN=Alice``.
        expires_at: earliest expiry of the chain, seconds since 1970.
        attributes: VOMS attributes, such as ``/atlas/Role=production``; the first is the primary.
        attributes_expire_at: end of the attributes; None without any.
    """

    identity: str
    expires_at: float
    attributes: Tuple[str, ...] = ()
    attributes_expire_at: Optional[float] = None

    @property
    def vo(self) -> str:
        """Return the virtual organization of the primary attribute; '' without any."""
        return self.attributes[0].split("/")[1] if self.attributes else ""


def read_proxy(path: str) -> ProxyDetails:
    """Read a proxy's contents.

    Raises:
        OSError: the file cannot be read.
        ValueError: not a proxy; the message repeats no content.
    """
    with open(path, "rb") as stream:
        text = stream.read(1_000_000).decode("ascii", "replace")
    ends: List[float] = []
    attributes: List[str] = []
    attribute_ends: List[float] = []
    identity = ""
    for part in text.split(_BEGIN)[1:]:
        try:
            fields = _certificate_fields(base64.b64decode(part.split(_END)[0]))
            ends.append(_parse_validity(fields[_VALIDITY][1]))
            identity = identity or _parse_identity(fields)
            for signed in _find_attribute_certificates(fields):
                attributes += _parse_attributes(signed)
                attribute_ends += _parse_attribute_ends(signed)
        except (ValueError, IndexError, StopIteration):
            raise ValueError("it contains an unreadable certificate") from None
    if not ends:
        raise ValueError("it contains no certificate")
    expiry = min(attribute_ends) if attribute_ends else None
    return ProxyDetails(identity, min(ends), tuple(attributes), expiry)


def _certificate_fields(der: bytes) -> List[Tuple[int, bytes]]:
    """Return the fields of a certificate (RFC 5280, 4.1), without its version."""
    (_, certificate) = next(_parse_elements(der))
    (_, signed) = next(_parse_elements(certificate))
    return [item for item in _parse_elements(signed) if item[0] != _VERSION_TAG]


def _parse_validity(der: bytes) -> float:
    """Return the end of a validity."""
    _, (tag, end) = _parse_elements(der)
    form = {_UTC_TIME_TAG: "%y%m%d%H%M%SZ", _GENERALIZED_TIME_TAG: "%Y%m%d%H%M%SZ"}.get(tag, "")
    return float(calendar.timegm(time.strptime(end.decode("ascii"), form)))


def _parse_identity(fields: List[Tuple[int, bytes]]) -> str:
    """Return the subject in the form of grid tools; '' if it has another form."""
    names = []
    for _, content in _walk(fields[_SUBJECT][1] if len(fields) > _SUBJECT else b""):
        pair = _try_elements(content)
        if len(pair) == 2 and pair[0][0] == _OBJECT_TAG:
            (_, kind), (_, value) = pair
            names.append(f"/{_NAMES.get(kind, kind.hex())}={value.decode('utf-8', 'replace')}")
    return _PROXY_NAMES.sub("", "".join(names))


def _find_attribute_certificates(fields: List[Tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield VOMS's extension of a certificate."""
    for _, content in fields[_SUBJECT + 1 :]:
        for extension in _find_sequences(content, _VOMS_CERTIFICATES):
            yield extension[-1][1]


def _parse_attributes(der: bytes) -> Iterator[str]:
    """Yield the attributes in the certificates of a VOMS extension."""
    for pair in _find_sequences(der, _VOMS_ATTRIBUTES):
        for tag, content in _walk(pair[-1][1]):
            if tag == _OCTETS_TAG:
                yield _EMPTY_PARTS.sub("", content.decode("utf-8", "replace"))


def _parse_attribute_ends(der: bytes) -> Iterator[float]:
    """Yield the ends of the validity of a VOMS extension's certificates."""
    for _, content in _walk(der):
        pair = _try_elements(content)
        if [tag for tag, _ in pair] == [_GENERALIZED_TIME_TAG] * 2:
            yield _parse_validity(content)


def _find_sequences(der: bytes, name: bytes) -> Iterator[List[Tuple[int, bytes]]]:
    """Yield the elements of each sequence that begins with an object identifier."""
    for _, content in _walk(der):
        elements = _try_elements(content)
        if elements and elements[0] == (_OBJECT_TAG, name):
            yield elements


def _walk(der: bytes) -> Iterator[Tuple[int, bytes]]:
    """Yield all elements, those of constructed ones included, as far as they can be read."""
    for tag, content in _try_elements(der):
        yield tag, content
        if tag & _CONSTRUCTED:
            yield from _walk(content)


def _try_elements(der: bytes) -> List[Tuple[int, bytes]]:
    """Return the elements of a sequence; none of anything else."""
    try:
        return list(_parse_elements(der))
    except (ValueError, IndexError):
        return []


def _parse_elements(der: bytes) -> Iterator[Tuple[int, bytes]]:
    """Yield tag and content of each element of a DER sequence."""
    offset = 0
    while offset < len(der):
        tag, size, offset = der[offset], der[offset + 1], offset + 2
        if size & 0x80:
            count = size & 0x7F
            size, offset = int.from_bytes(der[offset : offset + count], "big"), offset + count
        if offset + size > len(der):
            raise ValueError("truncated")
        yield tag, der[offset : offset + size]
        offset += size
