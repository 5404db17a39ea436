"""Fetches one config.json from a hub by the model's name."""

from __future__ import annotations

import os
import re
import time

from vram import ScenarioError
from vram.config import LARGEST
from vram.errors import Message, quoted
from vram.terms import N_

TIMEOUT = 5.0
"""Seconds to wait for the hub to connect or to send more."""
_PATIENCE = 10.0
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def fetch_config(name: str) -> bytes:
    """The bytes of ``config.json`` in the repository ``name``, which is "organisation/model".

    The hub is the one that huggingface_hub is set up for (HF_ENDPOINT). No
    token is ever sent: what the server may read is not what its visitors may.

    Raises
    ------
    ScenarioError
        One sentence: no such name, not public, no hub in reach, or too large a file.
    """
    if not _NAME.fullmatch(name):
        raise _refused(name, N_("A model's name on the hub has the form organisation/model."))
    import httpx2
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session

    address = hf_hub_url(name, "config.json", endpoint=os.environ.get("HF_ENDPOINT"))
    asked = {"headers": build_hf_headers(token=False), "timeout": TIMEOUT, "follow_redirects": True}
    deadline = time.monotonic() + _PATIENCE
    try:
        with get_session().stream("GET", address, **asked) as answer:
            if answer.status_code in (401, 403):
                raise _refused(name, N_("{name} is not there, or its files are not public; paste its config.json."))
            if answer.status_code == 404:
                raise _refused(name, N_("The hub has no config.json under {name}."))
            if answer.status_code != 200:
                raise _refused(name, N_("The hub answered with an error ({status})."), status=answer.status_code)
            found = bytearray()
            for chunk in answer.iter_bytes():
                found += chunk
                if len(found) > LARGEST or time.monotonic() > deadline:
                    raise _refused(name, N_("The config.json of {name} is too large, or comes too slowly."))
            return bytes(found)
    except httpx2.HTTPError as error:
        raise _refused(name, N_("No model hub can be reached from here; paste or upload the config.json.")) from error


def _refused(name: str, template: str, **values: object) -> ScenarioError:
    return ScenarioError("model", name, Message(template, name=quoted(name), **values))
