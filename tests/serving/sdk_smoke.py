#!/usr/bin/env python3
"""The libraries that people use, against the real binary: OpenAI's, Anthropic's, LiteLLM and LangChain for Python.

    tests/serving/sdk_smoke.py [--binary target/release/flint-rt] [--device NAME] [--venv FOLDER]

Makes a virtual environment with the libraries where there is none yet (some 300 MB, from the package index that pip is set up for), and
runs itself in it. Exits 1 if a check fails.
"""
import argparse
import os
import subprocess
import sys
import venv

from common import Server, add_flags

PACKAGES = ["openai", "anthropic", "litellm", "langchain-openai", "langchain-anthropic"]
KEY = "smoke-key"
TASK = "Write a Python function that adds two numbers."


def checks(server):
    """Each check, by its name."""
    import anthropic
    import litellm
    import openai
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

    base = server.root + "/v1"
    client = openai.OpenAI(base_url=base, api_key=KEY, max_retries=0)
    claude = anthropic.Anthropic(base_url=server.root, api_key=KEY, max_retries=0)
    ask = [{"role": "user", "content": TASK}]
    options = {"model": "flint", "temperature": 0, "max_tokens": 24}
    # Its newest versions have no name for a temperature.
    claude_options = {"model": "flint", "max_tokens": 24, "extra_body": {"temperature": 0}}
    tool = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    wanted = client.chat.completions.create(messages=ask, **options).choices[0].message.content

    def openai_stream():
        chunks = client.chat.completions.create(messages=ask, stream=True, stream_options={"include_usage": True}, **options)
        text, usage = "", None
        for chunk in chunks:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
        assert text == wanted and usage.completion_tokens > 0, text

    def openai_tool():
        message = client.chat.completions.create(
            messages=ask, tools=[{"type": "function", "function": tool}], tool_choice="required", **dict(options, max_tokens=80)
        ).choices[0].message
        call = message.tool_calls[0]
        assert call.function.name == "add", message
        history = [*ask, message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        again = client.chat.completions.create(messages=history, tools=[{"type": "function", "function": tool}], **options)
        assert again.usage.prompt_tokens_details.cached_tokens > 0, again.usage

    def openai_schema():
        import json

        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        reply = client.chat.completions.create(messages=ask, response_format=form, **options)
        assert isinstance(json.loads(reply.choices[0].message.content)["ok"], bool)

    def openai_responses():
        assert client.responses.create(model="flint", input=TASK, temperature=0, max_output_tokens=24).output_text == wanted
        events = list(client.responses.create(model="flint", input=TASK, temperature=0, max_output_tokens=24, stream=True))
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == wanted
        assert events[-1].type in ("response.completed", "response.incomplete"), events[-1].type

    def openai_errors():
        for wrong, kind in [({"temperature": -1}, openai.BadRequestError), ({"messages": [{"role": "user", "content": "x " * 60000}]}, openai.BadRequestError)]:
            try:
                client.chat.completions.create(**{"messages": ask, "model": "flint", **wrong})
                raise AssertionError("it was taken")
            except kind:
                pass
        try:
            openai.OpenAI(base_url=base, api_key="other", max_retries=0).models.list()
            raise AssertionError("it was let in")
        except openai.AuthenticationError:
            pass

    def openai_cancel():
        stream = client.chat.completions.create(messages=ask, stream=True, model="flint", max_tokens=2000, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()

    def openai_models():
        assert client.models.retrieve(client.models.list().data[0].id).object == "model"

    def anthropic_whole():
        reply = claude.messages.create(messages=ask, **claude_options)
        assert reply.content[0].text == wanted and reply.usage.output_tokens > 0, reply
        counted = claude.messages.count_tokens(model="flint", messages=ask).input_tokens
        usage = reply.usage
        assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0), (counted, usage)

    def anthropic_stream():
        with claude.messages.stream(messages=ask, **claude_options) as stream:
            assert "".join(stream.text_stream) == wanted
            assert stream.get_final_message().stop_reason in ("end_turn", "max_tokens")

    def anthropic_tool():
        own = {"name": "add", "description": "Adds.", "input_schema": tool["parameters"]}
        reply = claude.messages.create(messages=ask, tools=[own], tool_choice={"type": "any", "disable_parallel_tool_use": True}, **dict(claude_options, max_tokens=80))
        call = next(block for block in reply.content if block.type == "tool_use")
        assert reply.stop_reason == "tool_use" and call.name == "add", reply
        history = [*ask, {"role": "assistant", "content": reply.content}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "3"}]}]
        assert claude.messages.create(messages=history, tools=[own], **claude_options).type == "message"

    def litellm_whole():
        reply = litellm.completion(model="openai/flint", api_base=base, api_key=KEY, messages=ask, temperature=0, max_tokens=24)
        assert reply.choices[0].message.content == wanted

    def litellm_overflow():
        try:
            litellm.completion(model="openai/flint", api_base=base, api_key=KEY, messages=[{"role": "user", "content": "x " * 60000}], num_retries=0)
            raise AssertionError("it was taken")
        except litellm.ContextWindowExceededError:
            pass

    def langchain_openai():
        model = ChatOpenAI(base_url=base, api_key=KEY, model="flint", temperature=0, max_tokens=24)
        assert model.invoke(TASK).content == wanted
        assert "".join(chunk.content for chunk in model.stream(TASK)) == wanted
        assert isinstance(model.with_structured_output(schema | {"title": "answer"}, method="json_schema").invoke(TASK)["ok"], bool)

    def langchain_anthropic():
        model = ChatAnthropic(base_url=server.root, api_key=KEY, model="flint", temperature=0, max_tokens=24)
        assert model.invoke(TASK).content == wanted

    return [value for value in list(locals().values()) if callable(value) and getattr(value, "__qualname__", "").startswith("checks.<locals>")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.add_argument("--venv", default="target/sdk-smoke")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        python = os.path.join(args.venv, "bin", "python")
        if not os.path.exists(python):
            venv.create(args.venv, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        environment = dict(os.environ, LITELLM_LOCAL_MODEL_COST_MAP="True", LANGCHAIN_TRACING_V2="false")
        sys.exit(subprocess.run([python, *sys.argv, "--inside"], env=environment).returncode)
    failed = 0
    with Server(args, ["--api-key", KEY]) as server:
        for check in checks(server):
            try:
                check()
                print(f"ok      {check.__name__}")
            except Exception as error:  # whatever a library throws is a finding
                failed += 1
                print(f"FAILED  {check.__name__}: {type(error).__name__}: {str(error)[:400]}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
