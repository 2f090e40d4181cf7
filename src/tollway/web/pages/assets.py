"""The stylesheet, modules and icons of the pages, at `/ui/{mark}/{name}`. They are read once and kept in memory, gzipped too.

`mark` is a digest over all files, so that relative imports between modules stay within one release and every response is immutable. A mark of another release gets the
current file for a minute: two releases behind one balancer serve each other's pages.
"""

import gzip
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.discovery.gateway_operator import Logo
from tollway.errors import Code, Problem, Refusal
from tollway.web.http.page_response import PageResponse, accepts_gzip

UI_FOLDER = Path(__file__).parent / "ui"
MARK_DIGITS = 12
IMMUTABLE = "public, max-age=31536000, immutable"
OF_ANOTHER_RELEASE = "public, max-age=60"

LOGO_NAME = "operator_logo"
DEMO_MODULE = "demo_wallet.js"
"""Served by the gateway of a demo alone."""
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAsset:
    """One file, as it is and gzipped."""

    media_type: str
    body: bytes
    gzipped: bytes


class PageAssets:
    """The files of a folder. `mark`: 12 hex digits of the SHA-256 over the names and contents of all of them."""

    def __init__(self, files: Mapping[str, PageAsset]) -> None:
        self._files = dict(files)
        digest = sha256()
        for name in sorted(files):
            digest.update(name.encode() + b"\0" + sha256(files[name].body).digest())
        self.mark = digest.hexdigest()[:MARK_DIGITS]

    def find(self, name: str) -> PageAsset | None:
        return self._files.get(name)

    def path_of(self, name: str) -> str:
        """The path of a file in this release. Raises KeyError for an unknown name: a template names only files that exist."""
        if name not in self._files:
            raise KeyError(name)
        return f"/ui/{self.mark}/{name}"

    @property
    def logo_path(self) -> str | None:
        """The path of the operator's logo; None without one."""
        return next((self.path_of(name) for name in self._files if Path(name).stem == LOGO_NAME), None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)


@lru_cache(maxsize=4)
def read_assets(
    folder: Path = UI_FOLDER, *, logo: Logo | None = None, left_out: Collection[str] = (DEMO_MODULE,)
) -> PageAssets:
    """Reads and compresses the files of the folder, once in a process. `logo`: of the operator, which becomes one of the files. `left_out`: files that this gateway does not serve."""
    files = {
        path.name: _make_asset(_TYPES[path.suffix], path.read_bytes())
        for path in sorted(folder.iterdir())
        if path.suffix in _TYPES and path.name not in left_out
    }
    if logo is not None:
        files[f"{LOGO_NAME}{logo.suffix}"] = _make_asset(logo.media_type, logo.content)
    return PageAssets(files)


def _make_asset(media_type: str, body: bytes) -> PageAsset:
    return PageAsset(media_type=media_type, body=body, gzipped=gzip.compress(body, 9, mtime=0))


def asset_router(assets: PageAssets) -> Router:
    async def show_asset(request: Request) -> Response:
        found = assets.find(request.path_params["name"])
        if found is None:
            raise Refusal(_NO_FILE)
        is_current = request.path_params["mark"] == assets.mark
        headers = {
            "Cache-Control": IMMUTABLE if is_current else OF_ANOTHER_RELEASE,
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Vary": "Accept-Encoding",
        }
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            headers["Content-Encoding"] = "gzip"
            return PageResponse(found.gzipped, media_type=found.media_type, headers=headers)
        return PageResponse(found.body, media_type=found.media_type, headers=headers)

    return Router([Route("/ui/{mark}/{name}", show_asset, methods=["GET"])])


_NO_FILE = Problem(code=Code.ROUTE_NOT_FOUND, detail="No file of the pages has this name.")
