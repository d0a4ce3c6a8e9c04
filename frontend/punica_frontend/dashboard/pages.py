"""Which pages there are, and what they are made of."""

from dataclasses import dataclass

from punica_frontend.dashboard.assets import Asset, Assets, carried_assets, own_assets

_INDEX = "index.html"

#: Nothing comes from elsewhere, no script stands in the page itself, and no other site frames it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Swagger UI writes styles into its elements.
_STYLED_POLICY = _POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")


@dataclass(frozen=True)
class Page:
    """A path with its index, and below it the files that the index asks for."""

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
    """Its charts are uPlot's: the script draws 64 stacked series five times a second, and is 44 kB."""
    files = {**own_assets("page"), **carried_assets("metaflow-card-uplot", ("uPlot.iife.min.js", "uPlot.min.css"))}
    return Page("/dashboard", files, _POLICY)


def api_page() -> Page:
    """Swagger UI on /openapi.json."""
    carried = carried_assets("fastapi-offline", ("swagger-ui-bundle.js", "swagger-ui.css"))
    return Page("/docs", {**own_assets("api_page"), **carried}, _STYLED_POLICY)
