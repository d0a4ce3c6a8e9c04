"""The pages, and the files that they consist of."""

from dataclasses import dataclass

from punica_frontend.dashboard.assets import Asset, Assets, carried_assets, own_assets

_INDEX = "index.html"

#: Content security policy: nothing from other hosts, no inline scripts, no framing by other sites.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Swagger UI needs inline styles.
_STYLED_POLICY = _POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")


@dataclass(frozen=True)
class Page:
    """A path with its index, and the files below it."""

    path: str
    files: Assets
    policy: str

    @property
    def index(self) -> Asset:
        return self.files[_INDEX]

    @property
    def paths(self) -> frozenset[str]:
        return frozenset({self.path, *(f"{self.path}/{name}" for name in self.files)})


def dashboard_page() -> Page:
    """Returns the dashboard. Its charts use uPlot, 44 kB that draw 64 stacked series five times a second."""
    files = {**own_assets("page"), **carried_assets("metaflow-card-uplot", ("uPlot.iife.min.js", "uPlot.min.css"))}
    return Page("/dashboard", files, _POLICY)


def api_page() -> Page:
    """Returns Swagger UI for /openapi.json, with the dashboard's login."""
    carried = carried_assets("fastapi-offline", ("swagger-ui-bundle.js", "swagger-ui.css"))
    return Page("/docs", {**own_assets("api_page"), **carried}, _STYLED_POLICY)
