"""Where the endpoint is said to be."""

from dataclasses import dataclass


@dataclass
class ClientConfig:
    api_base_url: str
    api_key_var: str
    max_retries: int = 0
