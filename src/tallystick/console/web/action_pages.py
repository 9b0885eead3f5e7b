"""The pages of actions: a dry run by GET, the action by POST; neither without an action service.

They work without JavaScript, and follow no stream: a form must not change while it is filled in.
"""

import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tallystick.console.actions.pending import Submission
from tallystick.console.actions.plan import ActionPlan
from tallystick.console.actions.readings import CannotRead
from tallystick.console.actions.request import (
    DRY_RUN_PATH,
    RUN_PATH,
    ActionKind,
    BadAction,
    ResetTarget,
    build_request,
    format_action_url,
)
from tallystick.console.actions.results import ActionOutcome, ActionResult
from tallystick.console.actions.service import ActionService
from tallystick.console.collect.feed import StateFeed
from tallystick.console.views.page import PageInfo, describe_page
from tallystick.console.views.transaction import find_decider, find_open_state
from tallystick.console.web.forms import FORM_HEADERS, answer_refusal, read_form
from tallystick.console.web.guard import Refusal, check_embedding, check_form_origin
from tallystick.kernel.value import Value, replace

_STATUS_BY_OUTCOME: Final = {
    ActionOutcome.DONE: 200,
    ActionOutcome.REFUSED: 409,
    ActionOutcome.UNKNOWN: 504,  # RFC 9110, 15.6.5: no timely answer from a server behind this one
}


class NameConvertor(Convertor[str]):
    """The rest of a path, as it is. Starlette's own for `path` leaves out a line break at its end."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", NameConvertor())


class ActionPage(Value, kw_only=True):
    """A dry run, or what is missing for one.

    plan      None where something has to be chosen first, or could not be read
    problem   why there is no plan
    token     goes back with the form, once
    run_url   where the form goes
    chosen    what the URL has, for the form in which it is chosen
    targets   where offsets of a group can go
    open_state  what the id has in doubt, when it was last read; "" if nothing
    decided_by  the store or the Spark query that decides the id, as far as it is read here
    """

    info: PageInfo
    kind: str
    subject: str
    plan: ActionPlan | None = None
    problem: str = ""
    token: str = ""
    run_url: str = ""
    back_url: str = "/"
    chosen: Mapping[str, str] = {}
    targets: tuple[str, ...] = ()
    open_state: str = ""
    decided_by: str = ""


class ResultPage(Value, kw_only=True):
    """The result of an action."""

    info: PageInfo
    result: ActionResult
    back_url: str
    again_url: str


class ActionPages:
    """Shows dry runs and takes their forms."""

    def __init__(self, action_service: ActionService, feed: StateFeed, templates: Environment) -> None:
        self._action_service, self._feed, self._templates = action_service, feed, templates

    def list_routes(self) -> list[Route]:
        """Return the routes: GET changes nothing, and nothing but a form is accepted by POST."""
        return [
            Route(f"{DRY_RUN_PATH}/{{kind}}/{{key:name}}", self.show, methods=["GET"]),
            Route(f"{RUN_PATH}/{{kind}}/{{key:name}}", self.run, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        """Answer with the dry run of an action, or with a form for what it still needs."""
        refusal = check_embedding(request.headers)
        if refusal is not None:
            return answer_refusal(refusal)
        kind, key = _read_path(request)
        page = ActionPage(
            info=self._describe(f"{kind.value.replace('-', ' ').capitalize()} {key}"),
            kind=kind.value,
            subject=key,
            back_url=_find_back_url(kind, key),
            chosen=dict(request.query_params),
            targets=tuple(target.value for target in ResetTarget),
            open_state=find_open_state(self._feed.state.snapshot, key),
            decided_by=find_decider(self._feed.state.snapshot, key),
        )
        try:
            action = build_request(kind, key, request.query_params, request.query_params.getlist("id"))
        except BadAction as exc:
            return self._render(request, "action.html", replace(page, problem=str(exc)), 400)
        if action is None:
            return self._render(request, "action.html", page, 200)
        try:
            dry_run = await self._action_service.plan(action)
        except CannotRead as exc:
            problem = f"What is true now could not be read: {exc}."
            return self._render(request, "action.html", replace(page, problem=problem), 503)
        plan = dry_run.plan
        page = replace(
            page,
            info=replace(self._describe(plan.title), failures=plan.failures),
            plan=plan,
            token=dry_run.token,
            run_url=format_action_url(action, RUN_PATH),
        )
        return self._render(request, "action.html", page, 200)

    async def run(self, request: Request) -> Response:
        """Carry out the action of a form, and answer with its result."""
        refusal = check_form_origin(request.headers)
        if refusal is not None:
            return answer_refusal(refusal)
        kind, key = _read_path(request)
        fields = await read_form(request)
        if isinstance(fields, Refusal):
            return answer_refusal(fields)
        submission = Submission(
            kind=kind.value,
            subject=key,
            token=fields.get("token", ""),
            digest=fields.get("digest", ""),
            confirmation=fields.get("confirmation", ""),
            reason=fields.get("reason", ""),
            user=request.state.user,
        )
        result = await self._action_service.run(submission)
        query = request.url.query
        page = ResultPage(
            info=self._describe(f"{result.outcome.value.capitalize()}: {kind.value.replace('-', ' ')} {key}"),
            result=result,
            back_url=_find_back_url(kind, key),
            again_url=f"{DRY_RUN_PATH}/{kind.value}/{quote(key, safe='')}{f'?{query}' if query else ''}",
        )
        return self._render(request, "action_result.html", page, _STATUS_BY_OUTCOME[result.outcome])

    def _describe(self, title: str) -> PageInfo:
        snapshot = self._feed.state.snapshot
        return describe_page(title, snapshot, (), snapshot.at_ms)

    def _render(
        self, request: Request, template: str, page: ActionPage | ResultPage, status: int
    ) -> Response:
        if request.query_params.get("format") == "json":
            return Response(encode_json(page), status, media_type="application/json")
        section = "groups" if page.back_url.startswith("/groups") else "transactions"
        html = self._templates.get_template(template).render(
            page=page, section=section, url=format_url(request), has_session=request.state.has_session
        )
        return HTMLResponse(html, status, headers=FORM_HEADERS)


def _read_path(request: Request) -> tuple[ActionKind, str]:
    """Return the action of a URL. Raises: HTTPException, 404 for one that there is not."""
    try:
        return ActionKind(request.path_params["kind"]), request.path_params["key"]
    except ValueError as exc:
        raise HTTPException(404) from exc


def _find_back_url(kind: ActionKind, key: str) -> str:
    match kind:
        case ActionKind.RESET_OFFSETS:
            return f"/groups/{quote(key, safe='')}"
        case ActionKind.RESOLVE_ROWS:
            return f"/transactions?{urlencode({'store': key, 'select': 'yes'})}"
        case ActionKind.RESOLVE_PREFIX:
            return "/pipelines"
        case ActionKind.ABORT:
            return f"/topics/{quote(key.rpartition('-')[0], safe='')}"
        case ActionKind.RESOLVE | ActionKind.FORCE_TERMINATE | ActionKind.COMPLETE:
            return f"/transactions/{quote(key, safe='')}"


def encode_json(model: object) -> bytes:
    """Return a view model as JSON."""
    return json.dumps(msgspec.to_builtins(model), indent=2).encode()


def format_url(request: Request) -> str:
    """Return path and query, as the page asks for itself again.

    The path is as it was sent: a name in it may have `/..`, `?` and `%2e` of its own.
    """
    path, query = request.scope["raw_path"].decode("ascii"), request.url.query
    return f"{path}?{query}" if query else path
