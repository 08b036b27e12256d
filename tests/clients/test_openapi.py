# SPDX-License-Identifier: MIT
"""What /openapi.json says, held against the server by schemathesis: bodies as the document allows them
and as it does not. The cases are the same in every run."""
import http.client

import hypothesis
import hypothesis.strategies as st
import pytest
import schemathesis
from harness import BUILD, Cistern
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from test_equal import SMALL

EXAMPLES = {GenerationMode.POSITIVE: 80, GenerationMode.NEGATIVE: 20}  # of each operation
MEMBERS_MAX = 3  # beside the required ones: a body of all members is refused for one of them
# The document says of a message, an item, a tool only what every API has in common, so a body that it
# allows may still be refused; what is refused is told by 400.
EXCLUDED = ["positive_data_acceptance"]
METHODS = {"get", "post", "put", "delete", "patch", "head", "options", "trace"}


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory):
    slots = {
        "gateway.slot_dir": tmp_path_factory.mktemp("slots"),
        "gateway.poolctl": BUILD / "poold/poolctl",
    }
    settings = {**SMALL, **slots, "model.context": 128, "model.name": "tiny", "gateway.queue": 64}
    with Cistern(tiny_model, settings=settings).start() as c:
        yield c


@pytest.fixture(scope="module")
def api(server):
    load_all_checks()
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")


def operations(api):
    return {f"{o.method.upper()} {o.path}": o for o in (r.ok() for r in api.get_all_operations())}


def hold(operation, mode):
    """The statuses that it was answered with."""
    excluded = CHECKS.get_by_names(EXCLUDED)
    statuses = set()

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=EXAMPLES[mode],
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(
        case=operation.as_strategy(generation_mode=mode),
        members=st.sets(st.integers(0, 63), max_size=MEMBERS_MAX),
    )
    def run(case, members):
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            schema = operation.definition.raw["requestBody"]["content"]["application/json"]["schema"]
            known = list(schema["properties"])
            keep = {known[m % len(known)] for m in members} | set(schema.get("required", []))
            case.body = {k: v for k, v in case.body.items() if k in keep}
        statuses.add(case.call_and_validate(excluded_checks=excluded, timeout=600).status_code)

    run()
    return statuses


def test_allowed_bodies(api, subtests):
    for name, operation in operations(api).items():
        with subtests.test(name):
            statuses = hold(operation, GenerationMode.POSITIVE)
            assert 200 in statuses or "{" in name, statuses


def test_other_bodies(api, subtests):
    for name, operation in operations(api).items():
        if operation.body:
            with subtests.test(name):
                hold(operation, GenerationMode.NEGATIVE)


def test_document_names_every_route(server, api):
    """Wrong methods are told apart from unknown paths, for every path of the document."""
    for path, item in api.raw_schema["paths"].items():
        method = "DELETE" if "delete" not in item else "PATCH"
        connection = server.connect()
        connection.request(method, path.replace("{", "").replace("}", ""))
        response = connection.getresponse()
        assert isinstance(response, http.client.HTTPResponse)
        assert response.status == 405 and response.headers["Allow"], path
