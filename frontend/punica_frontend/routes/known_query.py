"""Refuses unknown query parameters of filtered lists: an ignored filter would return too much."""

from fastapi import Depends, Request
from fastapi.routing import APIRoute

from punica_frontend.api.field_names import nearest, shown
from punica_serve.errors import InvalidRequest


def _check_query(request: Request) -> None:
    """Raises InvalidRequest for the first parameter that is unknown, or given twice."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = [param.alias for param in route.dependant.query_params]
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name in seen:
            raise InvalidRequest(f"`{name}` is given twice, and only one would count", param=name)
        seen.add(name)
        if name not in known:
            near = nearest(name, known)
            advice = f"did you mean `{near}`?" if near else f"it has {' and '.join(map(_quoted, known)) or 'none'}"
            message = f"`{shown(name)}`: {request.url.path} has no such query parameter; {advice}"
            raise InvalidRequest(message, param=shown(name))


def _quoted(name: str) -> str:
    return f"`{name}`"


#: For a route's ``dependencies``.
KNOWN_QUERY = Depends(_check_query)
