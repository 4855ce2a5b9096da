"""The webhook's own listener: `/mutate` and `/validate`, which the API server calls over TLS. Every replica answers.

It needs no state and asks nobody, so it is an application apart from the verbs'.
"""

import time
from typing import Final

from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from extender import wire
from extender.app import BadBody, read_body
from extender.metrics import Metrics
from extender.webhook import Admission, BadReview, mutate, validate

MOST_BYTES: Final = 7 << 20  # an update's two objects, of the 3 MiB that an API server takes, with what it adds
WEBHOOKS: Final = {"/mutate": mutate, "/validate": validate}


def build_admission(rules: Admission, metrics: Metrics) -> ASGIApp:
    """Return the application. What is no AdmissionReview gets 400, which the API server takes for no answer."""

    async def answered(scope: Scope, receive: Receive) -> Response:
        name, webhook = scope["path"].strip("/"), WEBHOOKS[scope["path"]]
        started, code = time.perf_counter(), 500
        try:
            reply = webhook(await read_body(scope, receive, MOST_BYTES), rules)
            code = 200
        except (BadBody, BadReview) as bad:
            reply = wire.encode({"Error": str(bad)})
            code = bad.status if isinstance(bad, BadBody) else 400
        finally:
            metrics.requests.labels(name, code).inc()
            metrics.seconds.labels(name).observe(time.perf_counter() - started)
        return Response(reply, code, media_type="application/json")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in WEBHOOKS or scope["method"] != "POST":
            sentence = wire.encode({"Error": "Only POST /mutate and POST /validate are served here."})
            await Response(sentence, 404, media_type="application/json")(scope, receive, send)
        else:
            await (await answered(scope, receive))(scope, receive, send)

    return app
