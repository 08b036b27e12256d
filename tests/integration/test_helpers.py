# SPDX-License-Identifier: MIT
"""The helpers that front ends of llama.cpp's server ask for, keys, and pages in browsers."""
import http.client
import json

import pytest
from harness import Cistern, chat_body, eventually
from test_equal import SMALL, words

pytestmark = pytest.mark.cpu("the gateway's own routes")

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def c(tiny_model):
    settings = {**SMALL, "model.name": "tiny", "gateway.strict_model": "yes"}
    settings["gateway.cors_origins"] = "https://a.example, https://b.example"
    with Cistern(tiny_model, settings=settings).start() as c:
        yield c


def ask(c, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", c.port)
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, headers or {})
    response = connection.getresponse()
    data = response.read()
    return response.status, response.headers, json.loads(data) if data else None


def post(c, path, body):
    status, _, answer = ask(c, "POST", path, body)
    assert status == 200, answer
    return answer


def test_tokens_there_and_back(c):
    for text in ("hello", "", "naïve 漢字 \U0001f600", "a<|im_end|>b"):
        ids = post(c, "/tokenize", {"content": text})["tokens"]
        assert post(c, "/detokenize", {"tokens": ids})["content"] == text
    plain = post(c, "/tokenize", {"content": "<|im_end|>", "parse_special": False})["tokens"]
    special = post(c, "/tokenize", {"content": "<|im_end|>"})["tokens"]
    assert len(special) == 1 < len(plain)
    pieces = post(c, "/tokenize", {"content": "ï", "with_pieces": True})["tokens"]
    assert all(set(p) == {"id", "piece"} for p in pieces)
    assert post(c, "/detokenize", {"tokens": [p["id"] for p in pieces][:1]})["content"]


@pytest.mark.parametrize(
    "path, body, part",
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 7}, "content"),
        ("/detokenize", {"tokens": [10**12]}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {"messages": [{"role": "x", "content": "y"}]}, "messages[0].role"),
        ("/completion", {}, "prompt"),
        ("/completion", {"prompt": "x", "grammar": "root ::= x"}, "grammar"),
        ("/v1/chat/completions", {"messages": HELLO, "model": "tiny", "tools": [{}]}, "tools[0].type"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [{}]}], "model": "tiny"},
            "messages[0].tool_calls[0].function",
        ),
    ],
)
def test_refusals_name_the_field(c, path, body, part):
    status, _, answer = ask(c, "POST", path, body)
    assert status == 400 and answer["error"]["param"] == part, answer


def test_apply_template_is_the_prompt_of_a_chat(c):
    prompt = post(c, "/apply-template", {"messages": HELLO})["prompt"]
    assert "hello" in prompt and prompt.endswith("assistant\n")
    n = len(post(c, "/tokenize", {"content": prompt, "add_special": True})["tokens"])
    chat = post(c, "/v1/chat/completions", {"messages": HELLO, "model": "tiny", "max_tokens": 1})
    assert chat["usage"]["prompt_tokens"] == n


def test_tools_reach_the_prompt(c):
    """This template knows no tools, so that they are written out for it."""
    function = {"name": "weather", "parameters": {"type": "object"}}
    call = {"id": None, "function": {"name": "weather", "arguments": '{"place":"x"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": None},
    ]
    body = {"messages": messages, "tools": [{"type": "function", "function": function}]}
    prompt = post(c, "/apply-template", body)["prompt"]
    assert '"name":"weather","parameters"' in prompt and '"arguments":{"place":"x"}' in prompt
    assert "<tool_response>\nrain\n</tool_response>" in prompt
    none = post(c, "/apply-template", {**body, "tool_choice": "none"})["prompt"]
    assert '"parameters"' not in none


def test_props_and_version(c):
    props = ask(c, "GET", "/props")[2]
    assert props["total_slots"] > 0 and props["default_generation_settings"]["n_ctx"] == 2048
    assert "messages" in props["chat_template"] and "/" not in props["model_path"]
    assert ask(c, "GET", "/version")[2]["name"] == "cistern"
    assert ask(c, "GET", "/v1/health")[0] == 200


def test_completion(c):
    body = {"prompt": "hello", "n_predict": 12, "temperature": 0}
    whole = post(c, "/completion", body)
    assert whole["stop"] and whole["stop_type"] in ("limit", "eos")
    assert whole["tokens_evaluated"] > 0 and whole["tokens_predicted"] <= 12
    connection = c.connect()
    connection.request("POST", "/completion", json.dumps({**body, "stream": True}))
    lines = connection.getresponse().read().decode().strip().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(e["content"] for e in events) == whole["content"]
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
    cut = post(c, "/completion", {**body, "stop": [whole["content"][3:5]]})
    assert cut["stop_type"] == "word" and cut["stopping_word"] == whole["content"][3:5]


def test_slots_show_what_runs(c):
    def busy_slots():
        return [s for s in ask(c, "GET", "/slots")[2] if s["is_processing"]]

    eventually(lambda: not busy_slots(), "what came before is over")
    assert len(ask(c, "GET", "/slots")[2]) == ask(c, "GET", "/props")[2]["total_slots"]
    content, fields = words(20, 3), {"max_tokens": 1500, "ignore_eos": True, "model": "tiny"}
    stream = c.half_way(content, 1, **fields)
    busy = busy_slots()
    assert len(busy) == 1 and busy[0]["n_prompt_tokens"] > 0 and busy[0]["next_token"]
    assert busy[0]["n_past"] >= busy[0]["n_prompt_tokens"]
    c.workers[1].thaw()
    stream.leave()
    eventually(lambda: not busy_slots(), "the slot is free")


def test_openapi_says_what_is_parsed(c):
    """Bounds that the document states are those at which bodies are refused."""
    paths = ask(c, "GET", "/openapi.json")[2]["paths"]
    for path, base in (
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/messages", {"messages": HELLO}),
        ("/completion", {"prompt": "x"}),
    ):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(body.get("required", [])) == set(base)
        numbers = {n: s for n, s in body["properties"].items() if "maximum" in s}
        assert {"temperature", "top_p"} <= set(numbers)
        for name, schema in numbers.items():
            for value in (schema["minimum"] - 1, schema["maximum"] + 1):
                status, _, answer = ask(c, "POST", path, {**base, name: value})
                assert status == 400 and name in answer["error"]["message"], (path, name, value)
    assert "400" in paths["/v1/chat/completions"]["post"]["responses"]
    assert "529" in paths["/v1/messages"]["post"]["responses"]


def test_strict_model(c):
    for path, body in (
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/completions", {"prompt": "x"}),
    ):
        status, _, answer = ask(c, "POST", path, {**body, "model": "other"})
        assert status == 404 and answer["error"]["code"] == "model_not_found"
    status, _, answer = ask(c, "POST", "/v1/messages", {"messages": HELLO, "model": "other"})
    assert status == 404 and answer["error"]["type"] == "not_found_error"


def test_pages_of_listed_origins_only(c):
    question = {"Access-Control-Request-Method": "POST"}
    for origin, allowed in (("https://b.example", True), ("https://evil.example", False)):
        headers = ask(c, "GET", "/v1/models", headers={"Origin": origin})[1]
        assert headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
        path = "/v1/chat/completions"
        status, headers, _ = ask(c, "OPTIONS", path, headers={"Origin": origin, **question})
        assert status == 204
        names = headers.get("Access-Control-Allow-Headers", "").lower()
        for name in ("authorization", "x-api-key", "anthropic-version", "anthropic-beta"):
            assert (name in names) == allowed


# ---- keys


@pytest.fixture(scope="module")
def locked(tiny_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("# ours\nfile-key\n")
    path.chmod(0o600)
    settings = {**SMALL, "gateway.keys": "one, two", "gateway.keys_file": path}
    settings |= {"gateway.key_requests": 1, "gateway.share_prefixes": "key"}
    with Cistern(tiny_model, settings=settings).start() as c:
        yield c


def test_a_key_is_wanted_everywhere_but_for_health(locked):
    bad = {"Authorization": "Bearer nine"}
    for path in ("/v1/models", "/metrics", "/slots", "/props", "/nowhere", "/version"):
        for headers in (None, bad, {"x-api-key": "onetwo"}, {"Authorization": "Basic one"}):
            status, answer_headers, answer = ask(locked, "GET", path, headers=headers)
            assert status == 401 and answer["error"]["code"] == "invalid_api_key"
            assert answer_headers["WWW-Authenticate"] == "Bearer"
    status, _, answer = ask(locked, "POST", "/v1/messages", {}, bad)
    assert status == 401 and answer["error"]["type"] == "authentication_error"
    assert ask(locked, "GET", "/health")[0] == ask(locked, "GET", "/v1/health")[0] == 200
    for headers in (
        {"Authorization": "Bearer one"},
        {"authorization": "bearer  two"},
        {"x-api-key": "file-key"},
    ):
        assert ask(locked, "GET", "/v1/models", headers=headers)[0] == 200


def send(c, key):
    connection = c.connect()
    body = json.dumps(chat_body("x", {"max_tokens": 2}))
    connection.request("POST", "/v1/chat/completions", body, {"x-api-key": key})
    return connection


def test_a_key_has_its_limit_and_its_own_prefixes(locked):
    def chat(key, **fields):
        body = chat_body(words(40, 8), {"max_tokens": 2, "temperature": 0, **fields})
        return ask(locked, "POST", "/v1/chat/completions", body, {"x-api-key": key})

    assert chat("one")[0] == 200
    assert chat("one")[2]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert chat("two")[2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    first = locked.begin(lambda: send(locked, "one"))
    status, headers, answer = chat("one")
    assert status == 429 and answer["error"]["code"] == "rate_limit_exceeded"
    assert int(headers["Retry-After"]) > 0
    body = {"messages": HELLO, "max_tokens": 2}
    status, _, answer = ask(locked, "POST", "/v1/messages", body, {"x-api-key": "one"})
    assert status == 429 and answer["error"]["type"] == "rate_limit_error"
    other = locked.begin(lambda: send(locked, "two"))
    locked.workers[1].thaw()
    assert other.getresponse().status == 200, "another key has its own"
    first.close()
    eventually(lambda: chat("one")[0] == 200, "the place is free again")


def test_a_key_has_its_share_of_the_queue(tiny_model):
    """The one lane's head stands still: who asks is in the queue."""
    more = {"gateway.keys": "one, two", "gateway.key_queue": 1}
    more["worker.lanes"] = 1
    with Cistern(tiny_model, settings={**SMALL, **more}).start() as c:

        def in_flight(n):
            connection = c.connect()
            connection.request("GET", "/metrics", headers={"x-api-key": "one"})
            return f"cistern_requests_in_flight {n}\n" in connection.getresponse().read().decode()

        c.workers[0].freeze()
        try:
            first = send(c, "one")
            eventually(lambda: in_flight(1), "it is in the queue")
            refused = send(c, "one").getresponse()
            assert refused.status == 429 and int(refused.headers["Retry-After"]) > 0
            assert json.loads(refused.read())["error"]["code"] == "rate_limit_exceeded"
            other = send(c, "two")
            eventually(lambda: in_flight(2), "another key's is, too")
        finally:
            c.workers[0].thaw()
        assert first.getresponse().status == other.getresponse().status == 200
        again = send(c, "one").getresponse()
        assert again.status == 200, "what had a lane waits no longer"


def test_a_file_of_keys_that_others_can_read_is_refused(tiny_model, tmp_path):
    path = tmp_path / "keys"
    path.write_text("k\n")
    path.chmod(0o640)
    with Cistern(tiny_model, settings={**SMALL, "gateway.keys_file": path}) as c:
        c.start_poold()
        p = c.launch("gateway")
        assert p.wait() == 1 and "chmod 600" in p.text()
