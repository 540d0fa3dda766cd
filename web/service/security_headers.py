"""Headers of every response, including those that the server sends without the application."""

from __future__ import annotations

#: Seconds for which browsers use TLS only.
HSTS_MAX_AGE_S = 365 * 86400


def security_headers(*, over_tls: bool) -> list[tuple[str, str]]:
    """List the headers for uvicorn.

    Args:
        over_tls: whether clients reach the service over TLS, its own or that of a proxy. Without TLS,
            browsers must ignore Strict-Transport-Security, and it must not be sent (RFC 6797).
    """
    headers = [("X-Content-Type-Options", "nosniff")]
    if over_tls:
        headers.append(("Strict-Transport-Security", f"max-age={HSTS_MAX_AGE_S}"))
    return headers
