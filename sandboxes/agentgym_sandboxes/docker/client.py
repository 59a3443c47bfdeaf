"""Connects the docker SDK to an engine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentgym_sandboxes.docker.endpoint import Endpoint

if TYPE_CHECKING:
    from docker import APIClient

CONNECT_TIMEOUT_S = 5.0  # of a busy host's engine, which starts programs to report its version


class NoAnswer(Exception):
    """Nothing answered, or not as an engine does."""


def open_client(endpoint: Endpoint, timeout_s: float) -> APIClient:
    """Connect. timeout_s: for later calls, so that an engine that hangs does not hold our threads for good."""
    import docker
    import requests

    tls: object = False
    if endpoint.tls is not None:
        endpoint.tls.check()
        tls = docker.tls.TLSConfig(
            client_cert=(endpoint.tls.cert, endpoint.tls.key), ca_cert=endpoint.tls.ca, verify=True
        )

    def client_of(version: str, timeout_s: float) -> APIClient:
        client = docker.APIClient(base_url=endpoint.base_url, version=version, timeout=timeout_s, tls=tls)
        client.trust_env = False  # else REQUESTS_CA_BUNDLE would take the place of our authority
        return client

    try:
        endpoint.check_listening(CONNECT_TIMEOUT_S)
        first = client_of(docker.constants.DEFAULT_DOCKER_API_VERSION, CONNECT_TIMEOUT_S)
        try:
            version = str(first.version(api_version=False)["ApiVersion"])
        finally:
            first.close()
        return client_of(version, timeout_s)
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise NoAnswer(_short(error)) from error


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, FileNotFoundError):
        return "no such socket"
    certificate = re.search(r"certificate verify failed: [^(')\"]*", text)
    if certificate:
        return certificate[0].strip()
    for known in ("Permission denied", "Connection refused", "timed out", "Name or service not known"):
        if known.lower() in text.lower():
            return known.lower()
    return text[:160]
