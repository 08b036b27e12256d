# SPDX-License-Identifier: MIT
"""Message lists that reach most branches of real chat templates."""

TRUSTED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place.\nNow.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "The city's name, \"quoted\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 1, "maximum": 10},
        "where": {"type": "object", "properties": {
            "lat": {"type": "number"}, "lon": {"type": ["number", "null"]}}},
        "tags": {"type": "array", "items": {"type": "string"}, "nullable": True}}}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Searches <everything> & more.",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}},
                   "required": ["q"]}}}
EMPTY = {"type": "function", "function": {
    "name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, call_id="abcdefghi"):
    return {"id": call_id, "type": "function",
            "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def tool(text, call_id="abcdefghi", **more):
    return {"role": "tool", "tool_call_id": call_id, "content": text, **more}


CONTEXTS = []


def context(name, messages, **more):
    values = {"messages": messages, "add_generation_prompt": True, **more}
    values = {k: v for k, v in values.items() if v is not None}
    CONTEXTS.append({"name": name, "values": values, "trusted": TRUSTED})


ARGS = {"city": "Zürich", "days": 3, "unit": "celsius", "where": {"lat": 47.4, "lon": None},
        "tags": ["a", "b\n"], "deep": [1.5, True, None, {"x": 1e20}]}

context("user", [user("Hello")])
context("no generation prompt", [user("Hello")], add_generation_prompt=False)
context("system", [system("Be brief."), user("Hi there ")])
context("turns", [system("  You are\na helper. "), user("1+1?"), assistant("2"), user("And 2+2?"),
                  assistant("4"), user("Thanks\n\n")])
context("ends with the assistant", [user("Say A"), assistant("A")], add_generation_prompt=False)
context("unicode and markup", [user("<|im_end|> <b>&amp;</b> \"q\" 'q' \\ äöü 漢字 🙂\u2028x\t\x7f"),
                               assistant("ok <tool_call>"), user("{{ x }} {% y %}")])
context("parts", [{"role": "user", "content": [{"type": "text", "text": "Look"},
                                               {"type": "text", "text": "here"}]}])
context("image", [{"role": "user", "content": [{"type": "image", "image": "x.png"},
                                               {"type": "text", "text": "What is it?"}]}])
context("tools", [system("Use tools."), user("Weather in Rome?")], tools=[WEATHER, SEARCH, EMPTY])
context("tools, no system", [user("Weather in Rome?")], tools=[WEATHER])
context("tool call", [user("Weather?"), assistant("", tool_calls=[call("get_weather", ARGS)]),
                      tool("sunny, 21°", name="get_weather")], tools=[WEATHER, SEARCH])
context("tool call of null content", [
    system("S"), user("Weather?"), assistant(None, tool_calls=[call("get_weather", ARGS)]),
    tool('{"t": 21}', name="get_weather"), assistant("It is 21."), user("And tomorrow?")],
    tools=[WEATHER])
context("arguments as text", [
    user("Weather?"), assistant("", tool_calls=[call("get_weather", '{"city": "Rome"}')]),
    tool("rain", name="get_weather")], tools=[WEATHER])
context("two calls", [
    user("Both?"),
    assistant("Let me see.", tool_calls=[call("get_weather", {"city": "Rome"}, "call00001"),
                                         call("search", {"q": "x < y & z"}, "call00002")]),
    tool("sun", "call00001", name="get_weather"), tool("found", "call00002", name="search"),
    assistant("Done."), user("More")], tools=[WEATHER, SEARCH])
context("reasoning", [user("Q"), assistant("A", reasoning_content="because\nof it"), user("Q2"),
                      assistant("A2", reasoning_content="why not")], add_generation_prompt=False)
context("reasoning in text", [user("Q"), assistant("<think>\nhm\n</think>\n\nA"), user("Q2")],
        enable_thinking=True)
context("no thinking", [user("Q")], enable_thinking=False, thinking=False,
        reasoning_effort="low")
context("thinking", [system("S"), user("Q")], enable_thinking=True, thinking=True,
        reasoning_effort="high")
context("reasoning and call", [
    user("Q"), assistant("", reasoning_content="must look", thinking="must look",
                         tool_calls=[call("search", {"q": "x"})]),
    tool("found", name="search"), assistant("A", reasoning_content="so"), user("Q2")],
    tools=[SEARCH], enable_thinking=True)
context("documents", [user("What do they say?")],
        documents=[{"doc_id": 1, "title": "T1", "text": "one"}, {"title": "T2", "text": "two"}])
context("tool as list of parts", [
    user("Q"), assistant("", tool_calls=[call("search", {"q": "x"})]),
    {"role": "tool", "name": "search", "tool_call_id": "abcdefghi",
     "content": [{"type": "text", "text": "found"}]}], tools=[SEARCH])
context("developer", [{"role": "developer", "content": "Dev."}, user("Q")])
context("two users", [user("a"), user("b")])
context("empty content", [system(""), user("")])
context("no messages", [])
context("odd roles", [{"role": "critic", "content": "x"}, user("y")])
context("many turns", [m for i in range(12) for m in (user(f"q{i}"), assistant(f"a{i}"))]
        + [user("end")])
context("functions", [system("S"), user("Q")], functions=[WEATHER["function"]],
        datetime="2026-01-01", custom_tools=[SEARCH], date_string="1 Jan 2026")
context("built-in tools", [system("S"), user("Q")], builtin_tools=["browser", "python"],
        tools=[{"type": "code_interpreter"}, SEARCH], model_identity="You are X.",
        xml_tools=[SEARCH["function"]], python_tools=[EMPTY["function"]], tools_in_user_message=False)
context("response format", [user("Q")], response_format={"type": "json_object"}, json_schema={
    "type": "object", "properties": {"a": {"type": "string"}}})
context("tools null", [user("x")], tools=[])
