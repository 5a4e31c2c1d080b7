"""Pages about the gateway itself: sessions, tokens, the audit log, certificates.

The auth service serves them because REST does not have this data. Each page shows only what the policy grants to the
caller. Changes are forms with the session's CSRF token. No page reads a private key (docs/adr/0051-*).
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import msgspec
from aiohttp import hdrs, web

from sluice.core import Home, SluiceError
from sluice.core.pages import HTML, Pages, page_headers
from sluice.gateway.audit_log import AuditRecord, Filter, audit_file, read_records
from sluice.gateway.authz import Verdict
from sluice.gateway.credentials import Authenticated, TokenStore, Unauthenticated, read_last_used
from sluice.gateway.errors import AuditLogError, TokenNotFound
from sluice.gateway.problem import problem_body
from sluice.gateway.signin import AuditNote, AuthRequest, Refused, SignIn, answer, check_origin, redirect
from sluice.gateway.templates import TEMPLATES
from sluice.gateway.ui.certificates import PkiView, pki_view
from sluice.gateway.ui.revocation_client import REASONS, RevocationClient
from sluice.gateway.ui.verify_process import VerificationResult
from sluice.pki import CertificateUnknown, PkiConfig
from sluice.pki.assertions import TokenId
from sluice.pki.revocation import Reason

MAX_SEARCHED = 5_000
"""A search covers this many of the newest records; the command and the access report cover all."""
MAX_SHOWN = 200
MAX_TEXT = 100
MAX_LISTED = 500
VERIFY_SECONDS = 120.0

GATEWAY_PAGE, AUDIT_PAGE, PKI_PAGE = "/auth/ui/gateway", "/auth/ui/audit-log", "/auth/ui/pki"

_SERIAL = re.compile(r"[0-9a-f]{1,40}")
_TEMPLATES = Pages(TEMPLATES)
_Page = Callable[[AuthRequest, AuditNote], Awaitable[web.Response]]


@dataclass
class AdminPages:
    """The handlers under ``/auth/ui/``."""

    sign_in: SignIn
    home: Home
    authority: RevocationClient
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def routes(self) -> Mapping[tuple[str, str], tuple[str, _Page]]:
        """Method and path -> operation and handler."""
        return {
            ("GET", GATEWAY_PAGE): ("sessions.list", self._page(self.gateway)),
            ("POST", "/auth/ui/sessions/revoke"): ("sessions.revoke", self._page(self.revoke_session)),
            ("POST", "/auth/ui/tokens/revoke"): ("tokens.revoke", self._page(self.revoke_token)),
            ("GET", AUDIT_PAGE): ("audit_log.search", self._page(self.audit_log)),
            ("POST", "/auth/ui/audit-log/verify"): ("audit_log.search", self._page(self.verify)),
            ("GET", PKI_PAGE): ("certificates.list", self._page(self.certificates)),
            ("POST", "/auth/ui/certificates/revoke"): ("certificates.revoke", self._page(self.revoke_certificate)),
        }

    async def gateway(self, request: AuthRequest, note: AuditNote, who: Authenticated) -> web.Response:
        """Show sessions and limits, and tokens to callers who may list them."""
        sign_in, now = self.sign_in, self.sign_in.clock()
        revoked = sign_in.authenticator.revocations.current()
        sessions = [
            each
            for each in sign_in.authenticator.sessions.records
            if now < each.expires_at and not revoked.is_revoked(("session", each.id), now=now)
        ]
        may_see_tokens = self._may(who, "tokens.list")
        tokens = sign_in.authenticator.tokens.get().records if may_see_tokens else ()
        return self._render(
            request,
            who,
            "gateway.html",
            sessions=sorted(sessions, key=lambda each: -each.seen_at)[:MAX_LISTED],
            own=who.principal.credential.id,
            tokens=sorted(tokens, key=lambda each: -each.created_at)[:MAX_LISTED],
            used=await asyncio.to_thread(read_last_used, self.home) if may_see_tokens else {},
            config=sign_in.config,
            may_see_tokens=may_see_tokens,
            may_revoke_sessions=self._may(who, "sessions.revoke"),
            may_revoke_tokens=self._may(who, "tokens.revoke"),
        )

    async def revoke_session(self, request: AuthRequest, note: AuditNote, who: Authenticated) -> web.Response:
        """End the session with this id, of any principal."""
        identifier = request.form.get("id", "")
        found = [each for each in self.sign_in.authenticator.sessions.records if each.id == identifier]
        if not found:
            raise Refused(404, "no such session", "This session does not exist, or has ended.")
        await self.sign_in.end_session(found[0].id, found[0].name, by=who.principal.name)
        note.reason = f"ended session {identifier} of {found[0].name}"
        await self.sign_in.audit.event("session.revoked", who.principal.name, {"id": identifier, "name": found[0].name})
        return redirect(f"{GATEWAY_PAGE}?done=session")

    async def revoke_token(self, request: AuthRequest, note: AuditNote, who: Authenticated) -> web.Response:
        """Revoke an API token, its access tokens, and the sessions that began with it."""
        try:
            record = await asyncio.to_thread(
                TokenStore(self.home).revoke, TokenId(request.form.get("id", "")[:MAX_TEXT])
            )
        except TokenNotFound as error:
            raise Refused(404, "no such token", "This token does not exist.") from error
        note.reason = f"revoked token {record.id} of {record.name}"
        await self.sign_in.audit.event("token.revoked", who.principal.name, {"id": record.id, "name": record.name})
        return redirect(f"{GATEWAY_PAGE}?done=token")

    async def audit_log(self, request: AuthRequest, note: AuditNote, who: Authenticated) -> web.Response:
        """Search the newest records."""
        return await self._audit_page(request, who, None)

    async def verify(self, request: AuthRequest, note: AuditNote, who: Authenticated) -> web.Response:
        """Verify every line and signature of the log."""
        outcome = await self._verified()
        note.reason = outcome.problem or f"verified {outcome.lines} lines"
        return await self._audit_page(request, who, outcome)

    async def certificates(self, request: AuthRequest, note: AuditNote, who: Authenticated) -> web.Response:
        """Show authorities, certificates by expiry, and the phase of a rotation."""
        config = PkiConfig(trust_domain=self.sign_in.realm)
        async with self._one_at_a_time:
            view: PkiView = await asyncio.to_thread(pki_view, self.home, config, self.sign_in.clock())
        may_revoke = self._may(who, "certificates.revoke") and await asyncio.to_thread(lambda: self.authority.possible)
        return self._render(request, who, "pki.html", pki=view, may_revoke=may_revoke, reasons=REASONS)

    async def revoke_certificate(self, request: AuthRequest, note: AuditNote, who: Authenticated) -> web.Response:
        """Ask the authority to revoke a certificate by its serial number."""
        serial, name = request.form.get("id", ""), who.principal.name
        if _SERIAL.fullmatch(serial) is None:
            raise Refused(404, "no such certificate", "This certificate does not exist.")
        try:
            reason = Reason(request.form.get("reason", ""))
        except ValueError as error:
            raise Refused(400, "no reason", "Select a reason for the revocation.") from error
        try:
            answer = await asyncio.to_thread(self.authority.revoke, serial, reason, name)
        except CertificateUnknown as error:
            raise Refused(404, "no such certificate", "The authority does not know this certificate.") from error
        except SluiceError as error:
            raise Refused(503, error.what, f"The authority did not revoke it: {error}") from error
        note.reason = f"revoked {serial} of {answer.identity}"
        detail = {"identities": answer.identity, "serials": serial, "count": int(answer.new), "reason": reason.value}
        await self.sign_in.audit.event("certificate.revoked", name, detail)
        return redirect(f"{PKI_PAGE}?done=certificate")

    async def _audit_page(
        self, request: AuthRequest, who: Authenticated, outcome: VerificationResult | None
    ) -> web.Response:
        terms = {name: request.query.get(name, "")[:MAX_TEXT] for name in ("principal", "operation", "decision")}
        wanted = Filter(terms["principal"], terms["operation"], terms["decision"])
        records: list[AuditRecord] = []
        problem = ""
        try:
            async with self._one_at_a_time:
                records = await asyncio.to_thread(self._search, wanted)
        except AuditLogError as error:
            problem = str(error)
        return self._render(
            request,
            who,
            "audit_log.html",
            records=records,
            terms=terms,
            outcome=outcome,
            problem=problem,
            searched=MAX_SEARCHED,
        )

    def _search(self, wanted: Filter) -> list[AuditRecord]:
        newest: deque[AuditRecord] = deque(maxlen=MAX_SEARCHED)
        newest.extend(read_records(audit_file(self.home).parent, last=MAX_SEARCHED))
        found = [each for each in newest if each.event != "checkpoint" and wanted.admits(each)]
        return found[-MAX_SHOWN:][::-1]

    async def _verified(self) -> VerificationResult:
        async with self._one_at_a_time:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "sluice.gateway.ui.verify_process",
                str(audit_file(self.home).parent),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                async with asyncio.timeout(VERIFY_SECONDS):
                    output, _ = await process.communicate()
                return msgspec.json.decode(output, type=VerificationResult)
            except TimeoutError:
                return VerificationResult(
                    problem=f"not finished within {VERIFY_SECONDS:.0f} s; use `sluice audit-log verify`"
                )
            except msgspec.MsgspecError:
                return VerificationResult(problem="the check ended unexpectedly; use `sluice audit-log verify`")
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    def _page(self, handler: Callable[[AuthRequest, AuditNote, Authenticated], Awaitable[web.Response]]) -> _Page:
        """Wrap ``handler``: authenticate and authorize the request, and turn errors into pages."""

        async def handle(request: AuthRequest, note: AuditNote) -> web.Response:
            sign_in = self.sign_in
            check_origin(request)
            try:
                who = await sign_in.who(request)
            except Unauthenticated as error:
                if request.method == "GET" and not request.presented.authorization:
                    note.reason = error.reason
                    return redirect(f"/auth/login?{urlencode({'return_to': request.path})}")
                raise
            note.principal, note.credential, note.reason = who.principal.name, who.principal.credential.id, "viewed"
            if not self._may(who, note.operation):
                note.reason = "no role allows it"
                detail = f"{who.principal.name} may not {note.operation}."
                return self._problem(request, who, HTTPStatus.FORBIDDEN, detail)
            try:
                response = await handler(request, note, who)
            except Refused as error:
                note.reason = error.reason
                return self._problem(request, who, HTTPStatus(error.status), error.detail)
            if (cookie := sign_in.renewed_cookie(who)) is not None:
                response.headers.add(hdrs.SET_COOKIE, cookie)
            return response

        return handle

    def _may(self, who: Authenticated, operation: str) -> bool:
        return self.sign_in.authenticator.policy.get().rule(who.principal, operation).verdict is Verdict.ALLOW

    def _problem(self, request: AuthRequest, who: Authenticated, status: HTTPStatus, detail: str) -> web.Response:
        if who.csrf is None:  # a program
            return answer(status, problem_body(status, detail), "application/problem+json")
        return self._render(request, who, "problem.html", status=status, title=status.phrase, detail=detail)

    def _render(
        self,
        request: AuthRequest,
        who: Authenticated,
        template: str,
        *,
        status: int = 200,
        **values: Any,  # noqa: ANN401
    ) -> web.Response:
        text = _TEMPLATES.render(
            template,
            who=who.principal.name,
            here=AUDIT_PAGE if request.path.startswith(AUDIT_PAGE) else request.path,
            csrf=who.csrf or "",
            done=request.query.get("done", ""),
            now=self.sign_in.clock(),
            **values,
        )
        response = answer(status, text.encode(), HTML, headers=page_headers())
        response.charset = "utf-8"
        return response
