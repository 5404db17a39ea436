"""The server: Streamlit over ``pages/main.py``, Plotly's script from the installed package, compression, headers."""

from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse
from starlette.routing import Route

PLOTLY = Path(str(files("plotly"))) / "package_data" / "plotly.min.js"


class Headers:
    """Adds the security headers that a public page should have."""

    ADDED = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"same-origin")]

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def with_headers(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self.ADDED]
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)


async def plotly(request):
    """Plotly's bundle; its address names the version, so browsers may keep it."""
    return FileResponse(
        PLOTLY, media_type="text/javascript", headers={"cache-control": "public, max-age=31536000, immutable"}
    )


@asynccontextmanager
async def ready(app):
    """Import what the first visitor would wait for."""
    import vram.working

    vram.working.warm_up()
    yield {}


app = st.App(
    "pages/main.py",
    lifespan=ready,
    routes=[Route("/plotly-{version}.js", plotly)],
    middleware=[Middleware(Headers), Middleware(GZipMiddleware, minimum_size=2048)],
)
