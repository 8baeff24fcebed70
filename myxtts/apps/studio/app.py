"""The web page: its Gradio blocks with five tabs, access control, and mounting on a FastAPI app."""

import hmac
import os
import time
from collections import deque
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported

import gradio as gr
from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse

from myxtts.apps.studio.making_tabs import data_tab, models_tab, train_tab
from myxtts.apps.studio.parts import Choices
from myxtts.apps.studio.speech_tabs import compare_tab, speak_tab
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.texts import PREFIX, TEXTS
from myxtts.storage.files import digest_bytes

TABS = dict(speak=speak_tab, data=data_tab, train=train_tab, compare=compare_tab, models=models_tab)


def build_page(studio: Studio, language: str) -> gr.Blocks:
    """Builds the page in one language, `en` or `fa`."""
    texts = TEXTS[language]
    with gr.Blocks(title=texts["title"], analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        with gr.Column(elem_classes=["rtl"] * (language == "fa")):
            other = "fa" if language == "en" else "en"
            gr.Markdown(f"## {texts['title']} &nbsp; <small>[{texts['other']}]({PREFIX[other]}/)</small>")
            choices = Choices(studio, texts, page, language)
            for name, fill in TABS.items():
                with gr.Tab(texts[name], elem_id=f"tab_{name}") as choices.tab:
                    fill(studio, texts, choices)
    return page.queue(default_concurrency_limit=8)


MOST_WRONG, WRONG_SECONDS = 10, 60.0
"""Limit for guessing: no password is accepted after `MOST_WRONG` wrong passwords within `WRONG_SECONDS`."""


def _checks_password(password):
    """Returns a function for Gradio's `auth` that accepts the password with any user name and limits wrong attempts."""
    wrong: deque[float] = deque(maxlen=MOST_WRONG)

    def accepts(name, given):
        is_blocked = len(wrong) == MOST_WRONG and time.monotonic() - wrong[0] < WRONG_SECONDS
        is_right = hmac.compare_digest(given.encode(), password.encode())
        if not (is_blocked or is_right):
            wrong.append(time.monotonic())
        return is_right and not is_blocked

    return accepts


class Door:
    """ASGI middleware that protects the page: rejects requests from other origins, and requests without the token.

    A request with the correct `?token=` gets a cookie for later requests. If `token` is None, no token is needed.
    """

    def __init__(self, app, token: str | None):
        self.app, self.token = app, token
        # All ports of a host share cookies, so the name of the cookie depends on the token.
        self.cookie: str = f"myxtts_{digest_bytes((token or '').encode())[:8]}"

    async def __call__(self, scope, receive, send):
        path = scope.get("path", "/")
        language = next((one for one, prefix in PREFIX.items() if prefix == f"/{path.split('/')[1]}"), None)
        answer = self.app
        if language and scope["type"] in ("http", "websocket"):
            connection = HTTPConnection(scope)
            origin = connection.headers.get("origin")
            if origin and origin.partition("://")[2] != connection.headers.get("host"):
                answer = PlainTextResponse("Requests from other origins are refused.", 403)
            elif self.token and self._is_right(connection.query_params.get("token")):
                answer = RedirectResponse(f"{PREFIX[language]}/")
                answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
            elif self.token and not self._is_right(connection.cookies.get(self.cookie)):
                answer = PlainTextResponse("This page needs its token. Open the address that was printed.", 401)
            elif path == f"{PREFIX[language]}/":
                # `_in_language` changes the HTML, so the response must not be compressed.
                scope["headers"] = [one for one in scope["headers"] if one[0] != b"accept-encoding"]
                send = _in_language(language, send)
        await answer(scope, receive, send)

    def _is_right(self, given):
        return hmac.compare_digest((given or "").encode(), self.token.encode())


def _in_language(language, send):
    """Wraps ASGI's `send` so that Gradio's own labels ("Drop file here") are in `language` in any browser."""
    script = f"<head><script>Object.defineProperty(navigator, 'language', {{get: () => '{language}'}})</script>"

    async def changed(message):
        if message["type"] == "http.response.start":
            del MutableHeaders(raw=message["headers"])["content-length"]
        body = message.get("body", b"").replace(b"<head>", script.encode(), 1)
        await send(message | ({"body": body} if body else {}))

    return changed


def mount_page(app: FastAPI, studio: Studio, password: str | None, token: str | None) -> None:
    """Mounts the page in all languages. Access requires `password` or, without a password, `token` (see `Door`)."""
    studio.home.mkdir(parents=True, exist_ok=True)
    app.add_middleware(Door, token=None if password else token)
    for language, prefix in PREFIX.items():
        page = build_page(studio, language)
        # Otherwise Gradio accepts any path in a request as upload, even the path of a private key in the home folder.
        page.has_launched = True
        look = dict(css_paths=Path(__file__).with_name("page.css"), ssr_mode=False, footer_links=[], show_error=True)
        limits = dict(max_file_size="500mb", allowed_paths=[str(studio.home.resolve())])
        gr.mount_gradio_app(app, page, prefix, auth=_checks_password(password) if password else None, **look, **limits)


def make_page_app(studio: Studio, password: str | None, token: str | None = None) -> FastAPI:
    """Builds an app with only the page (see `mount_page`). Without a password, the app answers only on localhost."""
    app = FastAPI(openapi_url=None)
    if not password:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]"])
    for path in ("/", "/favicon.ico", "/manifest.json"):  # browsers request the files from the root
        app.add_route(path, lambda request: RedirectResponse(f"{PREFIX['en']}{request.url.path}?{request.url.query}"))
    mount_page(app, studio, password, token)
    return app
