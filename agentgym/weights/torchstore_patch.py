"""Makes TorchStore 0.1.2 load under Monarch 0.7, which refuses actors that mix `def` and `async def` endpoints.

Import it before TorchStore is used, in every process. Where TorchStore's classes are of one kind it changes
nothing, so a fixed release needs no change here.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Coroutine

from agentgym.actors.runtime import EndpointProperty
from agentgym.errors import UserError

# TorchStore asks Monarch for RDMA under a deprecated name; on one host messages were measured, not RDMA.
os.environ.setdefault("TORCHSTORE_RDMA_ENABLED", "0")
INSTALL = "install it with `pip install --no-deps torchstore==0.1.2 && pip install pygtrie`"


def make_endpoints_async(actor_class: type) -> bool:
    """Wrap the synchronous endpoints of a class that mixes both kinds; returns whether the class was one."""
    attributes = ((name, getattr(actor_class, name, None)) for name in dir(actor_class))
    endpoints = {name: found for name, found in attributes if isinstance(found, EndpointProperty)}
    synchronous = [n for n, found in endpoints.items() if not inspect.iscoroutinefunction(found._method)]
    if len(synchronous) in (0, len(endpoints)):
        return False
    for name in synchronous:
        found = endpoints[name]
        wrapped = type(found)(
            _as_async(found._method), found._propagator, found._explicit_response_port, found._instrument
        )
        setattr(actor_class, name, wrapped)
    return True


def apply() -> None:
    """Raises UserError when TorchStore is not installed."""
    try:
        controller = importlib.import_module("torchstore.controller")
        volume = importlib.import_module("torchstore.storage_volume")
    except ImportError as error:
        raise UserError(
            f"weights.store is 'torchstore' but it could not be imported ({error}); {INSTALL}, "
            "or use weights.store=shared_memory"
        ) from error
    make_endpoints_async(controller.Controller)
    make_endpoints_async(volume.StorageVolume)


def _as_async(method: Callable[..., object]) -> Callable[..., Coroutine[None, None, object]]:
    @functools.wraps(method)
    async def wrapper(*args: object, **kwargs: object) -> object:
        return method(*args, **kwargs)

    return wrapper


apply()
