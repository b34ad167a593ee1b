"""One generated notebook as a full-screen page, from one command: Voilà runs its cells and shows what they show.

The page is for the one who started it: it is served on 127.0.0.1 alone, behind a token drawn for this page, and the
browser is told to fetch nothing from anywhere else, so that it works with the network cable out. Everybody who opens
it gets a kernel of their own, which ends when the page is closed or reloaded, and when the command ends, however.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from paci_lab.errors import InputError
from paci_lab.language import _, language

__all__ = ["HOST", "open_page"]

HOST = "127.0.0.1"
"""Where every page is served."""

_TEMPLATE = "paci_lab"
_EXTENSIONS = ["@jupyter-widgets/jupyterlab-manager", "@voila-dashboards/widgets-manager8", "anywidget"]

_INDEX = """{% extends 'voila/templates/lab/index.html.j2' %}
{% import "spinner.macro.html.j2" as spinner %}
{#- Voilà's own block asks another host for icons, which it has itself; the rest of it is here. -#}
{%- block notebook_css -%}
{{ resources.include_js("static/voila-style.js") }}
{{ spinner.css() }}
{{ super.super() }}
<style>PAGE_STYLE</style>
{%- endblock notebook_css -%}
"""

# The theme can change while the page is shown: `data-jp-theme-light` of its body decides.
_STYLE = """
.jp-mod-noOutputs.jp-mod-noInput { display: none; }
html, body { height: 100%; }
body.jp-Notebook { margin: 0; padding: 0; overflow: auto; color: var(--jp-content-font-color1);
  background: var(--jp-layout-color0); color-scheme: light; }
body[data-jp-theme-light="false"] { color-scheme: dark;
  --jp-layout-color0: #14171c; --jp-layout-color1: #14171c; --jp-layout-color2: #2a2f38; --jp-layout-color3: #414956;
  --jp-content-font-color0: #ffffff; --jp-content-font-color1: #eceff3; --jp-content-font-color2: #a3abb8;
  --jp-ui-font-color0: #ffffff; --jp-ui-font-color1: #eceff3; --jp-ui-font-color2: #a3abb8;
  --jp-border-color0: #5a6270; --jp-border-color1: #414956; --jp-border-color2: #2a2f38;
  --jp-inverse-layout-color0: #ffffff; --jp-rendermime-error-background: #4a1f1f; }
body[data-jp-theme-light="true"] {
  --jp-layout-color0: #ffffff; --jp-layout-color1: #ffffff; --jp-layout-color2: #e6e8ec; --jp-layout-color3: #c9cfd8;
  --jp-content-font-color0: #000000; --jp-content-font-color1: #1b1f26; --jp-content-font-color2: #5b6370;
  --jp-ui-font-color0: #000000; --jp-ui-font-color1: #1b1f26; --jp-ui-font-color2: #5b6370;
  --jp-border-color0: #8a93a0; --jp-border-color1: #c9cfd8; --jp-border-color2: #e6e8ec;
  --jp-inverse-layout-color0: #111111; --jp-rendermime-error-background: #fdeaea; }
body { --jp-widgets-color: var(--jp-content-font-color1); --jp-widgets-label-color: var(--jp-content-font-color1);
  --jp-widgets-readout-color: var(--jp-content-font-color1); --jp-widgets-input-color: var(--jp-content-font-color1);
  --jp-widgets-input-background-color: var(--jp-layout-color0); }
#rendered_cells .jp-Cell, #rendered_cells .jp-OutputArea-output { margin: 0; padding: 0; }
#rendered_cells .jp-OutputArea, #rendered_cells .jp-OutputArea-output { max-width: 100%; overflow: visible; }
#rendered_cells .jp-OutputPrompt { display: none; }
"""


def open_page(
    code: str | Sequence[str],
    *,
    title: str,
    theme: str = "light",
    port: int = 0,
    browser: bool = True,
    folder: str | Path | None = None,
) -> int:
    """Serve a page until Ctrl-C, SIGTERM or the end of the terminal, and return the exit code of the command.

    Args:
        code: the cells of the notebook; what the last expression of each shows is on the page. Code is not shown, an
            error is, with its traceback.
        title: of the browser's tab.
        theme: "light" or "dark" to begin with. A page changes it by setting `document.body.dataset.jpThemeLight` to
            "true" or "false", which our charts and JupyterLab's colours follow.
        port: 0 for a free one.
        browser: open the reader's browser; the address is printed in any case.
        folder: working directory of the cells; where the command was given when None.

    Raises InputError when a package is missing, the port is taken or the theme is unknown.
    """
    if theme not in ("light", "dark"):
        raise InputError("theme", theme, "light | dark", "use light")
    folder = Path(folder or ".").resolve()
    if not folder.is_dir():
        raise InputError("folder", folder, "an existing folder", "create it, or name another one")
    server = _server_class()
    sockets = _listen(port)
    port = sockets.getsockname()[1]
    token = secrets.token_hex(16)
    address = f"http://{HOST}:{port}/?token={token}"
    cells = [code] if isinstance(code, str) else list(code)
    with tempfile.TemporaryDirectory(prefix="paci-lab-page-") as name:
        place = Path(name)
        _write(place, cells, title, folder)
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [name, os.environ.get("JUPYTER_PATH")]))
        voila = server(
            config=_config(port, token, theme),
            config_file_paths=[],
            notebook_path=str(place / "page.ipynb"),
            log_level=40,
        )
        voila.initialize([])
        voila.sockets, voila.say = [sockets], lambda: _say(address, place, browser)
        signal.signal(signal.SIGHUP, voila._handle_signal_stop)  # the terminal is closed
        voila.start()
    return 0


def _listen(port: int) -> socket.socket:
    """A socket that listens; bound here, since a port that is found free first may be another's a moment later."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setblocking(False)
    try:
        listening.bind((HOST, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        raise InputError(
            "--port",
            port,
            "a port that nobody uses" if taken else "a port that may be opened, mostly 1024 to 65535",
            "leave --port out to get a free one",
        ) from None
    return listening


def _say(address: str, place: Path, browser: bool) -> None:
    print(address, file=sys.stderr)  # alone on its line: a language from right to left has marks around its sentences
    print(
        _("That is the address of the page. Press Ctrl-C here to end it, with everything that it started."),
        file=sys.stderr,
        flush=True,
    )
    if browser:
        # Other users of the machine see the command line of a browser, so the token goes to it in a file.
        file = place / "open.html"
        file.write_text(f'<meta http-equiv="refresh" content="0; url={escape(address)}">', encoding="utf-8")
        threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()


def _write(place: Path, cells: list[str], title: str, folder: Path) -> None:
    import nbformat

    cells = [f"import os; os.chdir({str(folder)!r})", *cells]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel, "title": title}
    )
    nbformat.write(notebook, place / "page.ipynb")
    template = place / "voila" / "templates" / _TEMPLATE
    template.mkdir(parents=True)
    (template / "conf.json").write_text(json.dumps({"base_template": "lab"}), encoding="utf-8")
    (template / "index.html.j2").write_text(_INDEX.replace("PAGE_STYLE", _STYLE), encoding="utf-8")


def _config(port: int, token: str, theme: str) -> Any:
    from traitlets.config import Config

    sources = f"'self' ws://{HOST}:{port} blob: data:"
    policy = f"default-src {sources}; script-src {sources} 'unsafe-inline' 'unsafe-eval'; "
    policy += f"style-src {sources} 'unsafe-inline'; frame-ancestors 'self'"
    return Config(
        {
            "Voila": {
                "ip": HOST,
                "port": port,
                "token": token,
                "open_browser": False,
                "tornado_settings": {"headers": {"Content-Security-Policy": policy}},
            },
            "VoilaConfiguration": {
                "template": _TEMPLATE,
                "theme": theme,
                "allow_template_override": "NO",
                "allow_theme_override": "NO",
                "preheat_kernel": False,
                "show_tracebacks": True,
                "file_allowlist": [],
                "extension_allowlist": _EXTENSIONS,
            },
            "VoilaExporter": {"language_code": language().partition("_")[0]},
        }
    )


def _server_class() -> type:
    try:
        from tornado.httpserver import HTTPServer
        from tornado.ioloop import IOLoop
        from voila.app import Voila
    except ImportError as error:
        raise InputError(
            "notebook packages",
            f"missing {error.name}",
            "an installation with voila",
            "run: python -m pip install voila",
        ) from None

    class Page(Voila):
        """Voilà on sockets that are already bound: its own search for a port tries those of others as well."""

        def listen(self) -> None:
            HTTPServer(self.app).add_sockets(self.sockets)
            self.ioloop = IOLoop.current()
            self.say()
            try:
                self.ioloop.start()
            except KeyboardInterrupt:
                pass
            finally:
                self.stop()  # ends the kernels

    return Page
