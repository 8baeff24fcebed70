"""The page: five tabs over a `Studio`, its own server, and the page on another server of this process."""

import hmac
import os
import time
from collections import deque

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported

import gradio as gr
from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from myxtts.apps.studio.compare_tab import compare_tab
from myxtts.apps.studio.data_tab import data_tab
from myxtts.apps.studio.models_tab import models_tab
from myxtts.apps.studio.parts import Choices
from myxtts.apps.studio.speak_tab import speak_tab
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.texts import PREFIX, RIGHT_TO_LEFT, TEXTS
from myxtts.apps.studio.train_tab import train_tab
from myxtts.storage.files import digest_bytes

MOST_UPLOAD = "500mb"
CSS = ".rtl {direction: rtl} .rtl textarea, .rtl input {unicode-bidi: plaintext} "
CSS += "[data-testid=status-tracker]:has(.error) {display: none} "  # the word "Error" in each box; a sentence is shown
CSS += ".log textarea {direction: ltr; unicode-bidi: normal; font: 12px monospace; white-space: pre; overflow-x: auto}"
UPLOADS_KEPT_SECONDS = 3600
AT_ONCE = 8
"""Pages, and things in each, that are answered at once."""


def build_page(studio: Studio, language: str) -> gr.Blocks:
    """The page in one language."""
    said = TEXTS[language]
    direction = ["rtl"] if language in RIGHT_TO_LEFT else []
    kept = (UPLOADS_KEPT_SECONDS, UPLOADS_KEPT_SECONDS)
    with gr.Blocks(title=said["title"], analytics_enabled=False, delete_cache=kept) as page:
        with gr.Column(elem_classes=direction):
            other = "fa" if language == "en" else "en"
            gr.Markdown(f"# {said['title']}\n[{said['other']}]({PREFIX[other]}/)")
            choices = Choices(studio, said, page)
            with gr.Tab(said["data"], elem_id="tab_data"):
                folder = data_tab(studio, said)
            with gr.Tab(said["train"], elem_id="tab_train"):
                train_tab(studio, said, choices, folder)
            with gr.Tab(said["speak"], elem_id="tab_speak") as tab:
                speak_tab(studio, said, choices)
                choices.refresh_on(tab)
            with gr.Tab(said["compare"], elem_id="tab_compare") as tab:
                compare_tab(studio, said, choices)
                choices.refresh_on(tab)
            with gr.Tab(said["models"], elem_id="tab_models") as tab:
                models_tab(studio, said, choices, tab)
                choices.refresh_on(tab)
    return page.queue(default_concurrency_limit=AT_ONCE)


LOCAL_NAMES = ["localhost", "127.0.0.1", "[::1]"]
MOST_WRONG, WRONG_SECONDS = 10, 60.0
"""Wrong passwords after which none is looked at, until the first of them is so long ago."""


class Password:
    """Gradio's `auth`: any name with the password, and few tries a minute."""

    def __init__(self, password: str):
        self.password = password.encode()
        self._wrong: deque[float] = deque(maxlen=MOST_WRONG)

    def __call__(self, name: str, given: str) -> bool:
        """Whether the password is right and may be tried now."""
        if len(self._wrong) == MOST_WRONG and time.monotonic() - self._wrong[0] < WRONG_SECONDS:
            return False
        if hmac.compare_digest(given.encode(), self.password):
            return True
        self._wrong.append(time.monotonic())
        return False


class Token:
    """Gradio's `auth_dependency`: a cookie that the address with the token sets."""

    def __init__(self, token: str):
        self.token = token
        self.cookie: str = f"myxtts_{digest_bytes(token.encode())[:8]}"
        """Name of the cookie: cookies of a host are shared by its ports."""

    def __call__(self, request: Request) -> str | None:
        """The user of a request; None for a stranger."""
        return "user" if self.is_right(request.cookies.get(self.cookie)) else None

    def is_right(self, given: str | None) -> bool:
        """Whether it is the token."""
        return hmac.compare_digest((given or "").encode(), self.token.encode())


class OwnOrigin:
    """ASGI middleware: what another site lets a browser send to the page is refused before its body is read."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        """See https://asgi.readthedocs.io/en/latest/specs/www.html."""
        headers = Headers(scope=scope) if scope["type"] in ("http", "websocket") else {}
        origin, is_ours = headers.get("origin"), str(scope.get("path", "")).startswith(tuple(PREFIX.values()))
        if is_ours and origin and origin.partition("://")[2] != headers.get("host"):
            await PlainTextResponse("The page answers to its own address only.", 403)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def mount_page(app: FastAPI, studio: Studio, password: str | None, token: Token | None = None) -> None:
    """Puts the page of each language on an app; `password` is asked for, with any name, where it is given."""
    app.add_middleware(OwnOrigin)
    auth = dict(auth=Password(password)) if password else dict(auth_dependency=token)
    for language, prefix in PREFIX.items():
        page = build_page(studio, language)
        # Without it Gradio takes files that a request only names, such as a key in the home folder, for sent ones.
        page.has_launched = True
        options = dict(max_file_size=MOST_UPLOAD, show_error=True, css=CSS, ssr_mode=False)
        gr.mount_gradio_app(app, page, prefix, allowed_paths=[str(studio.home.resolve())], **auth, **options)


def make_page_app(studio: Studio, password: str | None, token: str | None = None) -> FastAPI:
    """An app with the page alone; without a password it answers only those who address this machine by a local name.

    Args:
        token: What `/?token=` must say once in each browser, where no password is asked for; None asks for nothing.
    """
    app, gate = FastAPI(openapi_url=None), Token(token) if token and not password else None
    if not password:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_NAMES)

    @app.get("/")
    def start(request: Request, token: str = "") -> Response:
        if gate and not (gate.is_right(token) or gate(request)):
            return PlainTextResponse("This page needs its token. Open the address that myxtts ui printed.", 401)
        response = RedirectResponse(f"{PREFIX['en']}/")
        if gate and token:
            response.set_cookie(gate.cookie, token, httponly=True, samesite="strict")
        return response

    mount_page(app, studio, password, gate)
    return app
