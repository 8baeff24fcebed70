"""The page's own server, and the page on another server of this process."""

import hmac

import gradio as gr
from fastapi import FastAPI
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import RedirectResponse

from myxtts.apps.studio.page import CSS, MOST_UPLOAD, build_page
from myxtts.apps.studio.studio import Studio
from myxtts.apps.studio.texts import PREFIX

LOCAL_NAMES = ["localhost", "127.0.0.1", "[::1]"]


def mount_page(app: FastAPI, studio: Studio, password: str | None) -> None:
    """Puts the page of each language on an app; `password` is asked for, with any name, where it is given."""
    auth = (lambda _, given: _same(given, password)) if password else None
    for language, prefix in PREFIX.items():
        page = build_page(studio, language)
        # Without it Gradio takes files that a request only names, such as a key in the home folder, for sent ones.
        page.has_launched = True
        options = dict(auth=auth, max_file_size=MOST_UPLOAD, show_error=True, css=CSS, ssr_mode=False)
        gr.mount_gradio_app(app, page, prefix, allowed_paths=[str(studio.home.resolve())], **options)


def make_page_app(studio: Studio, password: str | None) -> FastAPI:
    """An app with the page alone; without a password it answers only those who address this machine by a local name."""
    app = FastAPI(openapi_url=None)
    if not password:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_NAMES)

    @app.get("/")
    def start() -> RedirectResponse:
        return RedirectResponse(f"{PREFIX['en']}/")

    mount_page(app, studio, password)
    return app


def _same(given: str, password: str) -> bool:
    return hmac.compare_digest(given.encode(), password.encode())
