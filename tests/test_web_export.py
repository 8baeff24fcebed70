"""`myxtts export --format web`: the page speaks in Chromium as `speak.py` does, and its packages are checked."""

import http.server
import threading
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from page_browser import CHROMIUM, DRIVER, chromium, free_port
from test_export import export, run, synthesizer  # noqa: F401, F811  fixtures
from tiny import WORDS

from myxtts.config.checks import UserError
from myxtts.interchange.onnx import web
from myxtts.interchange.onnx.speak import Speaker

NO_BROWSER = ["selenium"] * (find_spec("selenium") is None)
NO_BROWSER += [path for path in (CHROMIUM, DRIVER) if not Path(path).exists()]


def test_package_of_the_page_is_checked_and_is_named_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    kept = tmp_path / "myxtts" / "npm" / f"ort-{web.RUNTIME.version}.tgz"
    with pytest.raises(UserError) as missing:
        web.fetch_package(web.RUNTIME)
    assert "onnxruntime-web@" in str(missing.value) and str(kept) in str(missing.value)
    kept.write_bytes(b"another")
    with pytest.raises(UserError, match="onnxruntime-web"):
        web.fetch_package(web.RUNTIME)


@pytest.mark.skipif(bool(NO_BROWSER), reason=f"needs {', '.join(NO_BROWSER)}")
def test_page_in_a_browser_gives_the_samples_of_speak_py_and_asks_nobody_else(export, tmp_path):  # noqa: F811
    try:
        web.fetch_package(web.RUNTIME)
    except UserError as error:
        pytest.skip(str(error))
    assert export(tmp_path / "page", "--format", "web", "--weights", "float32") == 0
    speaker = Speaker(tmp_path / "page")
    text = f"{WORDS[0]} {WORDS[1]}. {WORDS[2]}, {WORDS[0]}."
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "page")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = chromium(["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])
        try:
            browser.set_script_timeout(120)
            browser.get(f"http://127.0.0.1:{server.server_port}/")
            script = """const [text, done] = arguments, get = (id) => document.getElementById(id);
                get("text").value = text;
                const timer = setInterval(() => {
                    if (!get("speak").disabled && !window.asked) { window.asked = true; get("speak").click(); }
                    if (get("state").className === "wrong") { clearInterval(timer); done(get("state").textContent); }
                    if (window.spoken) { clearInterval(timer); done([...window.spoken]); }
                }, 100);"""
            spoken = browser.execute_async_script(script, text)
            entries = browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
        finally:
            browser.quit()
            server.shutdown()
    assert not isinstance(spoken, str), spoken
    np.testing.assert_allclose(np.array(spoken, "float32"), speaker.speak(text, "emma"), atol=1e-3)
    assert entries and all(f"127.0.0.1:{server.server_port}" in one for one in entries)
