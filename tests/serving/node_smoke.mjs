// OpenAI's and Anthropic's libraries for Node, and the AI SDK, against a server: started by node_smoke.py, which says where it is.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool as aiTool } from "ai";
import OpenAI, { AuthenticationError, BadRequestError } from "openai";

const [root, apiKey] = process.argv.slice(2);
const ask = [{ role: "user", content: "Write a Python function that adds two numbers." }];
const schema = { type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "add", description: "Adds.", parameters: schema } }];
const own = [{ name: "add", description: "Adds.", input_schema: schema }];
const options = { model: "flint", messages: ask, temperature: 0, max_tokens: 24 };
const long = [{ role: "user", content: "x ".repeat(60000) }];

const openai = new OpenAI({ baseURL: `${root}/v1`, apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: root, apiKey, maxRetries: 0 });
const provider = createOpenAICompatible({ name: "flint", baseURL: `${root}/v1`, apiKey, includeUsage: true });
const wanted = (await openai.chat.completions.create(options)).choices[0].message.content;

/** Whether nothing is computed any more, within a while. */
async function isIdle() {
  for (let round = 0; round < 600; round++) {
    const slots = await fetch(`${root}/slots`, { headers: { authorization: `Bearer ${apiKey}` } });
    if (!(await slots.json()).some((slot) => slot.is_processing)) return true;
    await new Promise((done) => setTimeout(done, 100));
  }
  return false;
}

const checks = {
  // The helper is stricter than the plain stream: it wants a role, an end and numbered calls.
  async openai_stream_helper() {
    const stream = openai.chat.completions.stream({ ...options, stream_options: { include_usage: true } });
    assert.equal(await stream.finalContent(), wanted);
    assert.ok((await stream.totalUsage()).completion_tokens > 0);
  },
  async openai_tool_stream() {
    const more = { tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 120 };
    const stream = openai.chat.completions.stream({ ...options, ...more });
    const message = await stream.finalMessage();
    const call = message.tool_calls[0];
    assert.equal(call.function.name, "add");
    assert.ok(Number.isInteger(JSON.parse(call.function.arguments).a));
    const history = [...ask, message, { role: "tool", tool_call_id: call.id, content: "3" }];
    const again = await openai.chat.completions.create({ ...options, messages: history, tools });
    assert.ok(again.usage.prompt_tokens_details.cached_tokens > 0);
  },
  async openai_schema() {
    const form = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
    const reply = await openai.chat.completions.create({ ...options, response_format: form, max_tokens: 60 });
    assert.ok(Number.isInteger(JSON.parse(reply.choices[0].message.content).a));
  },
  async openai_responses() {
    const stream = openai.responses.stream({ model: "flint", input: ask[0].content, temperature: 0, max_output_tokens: 24 });
    let text = "";
    for await (const event of stream) text += event.type === "response.output_text.delta" ? event.delta : "";
    assert.equal(text, wanted);
  },
  async openai_errors() {
    await assert.rejects(openai.chat.completions.create({ ...options, temperature: -1 }), BadRequestError);
    await assert.rejects(openai.chat.completions.create({ ...options, messages: long, stream: true }), BadRequestError);
    const other = new OpenAI({ baseURL: `${root}/v1`, apiKey: "other", maxRetries: 0 });
    await assert.rejects(other.models.list(), AuthenticationError);
  },
  async openai_abort() {
    const stream = await openai.chat.completions.create({ ...options, stream: true, max_tokens: 3000, ignore_eos: true });
    for await (const _ of stream) break;
    stream.controller.abort();
    assert.ok(await isIdle());
  },
  async anthropic_stream() {
    const stream = anthropic.messages.stream(options);
    assert.equal(await stream.finalText(), wanted);
    assert.ok(["end_turn", "max_tokens"].includes((await stream.finalMessage()).stop_reason));
  },
  async anthropic_tool_stream() {
    const choice = { type: "any", disable_parallel_tool_use: true };
    const stream = anthropic.messages.stream({ ...options, max_tokens: 120, tools: own, tool_choice: choice });
    const message = await stream.finalMessage();
    const call = message.content.find((block) => block.type === "tool_use");
    assert.equal(message.stop_reason, "tool_use");
    assert.ok(Number.isInteger(call.input.a));
    const result = { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "3" }] };
    const history = [...ask, { role: "assistant", content: message.content }, result];
    assert.equal((await anthropic.messages.create({ ...options, messages: history, tools: own })).type, "message");
  },
  async anthropic_errors() {
    await assert.rejects(anthropic.messages.create({ ...options, messages: long }), Anthropic.BadRequestError);
    const other = new Anthropic({ baseURL: root, apiKey: "other", maxRetries: 0 });
    await assert.rejects(other.messages.create(options), Anthropic.AuthenticationError);
    assert.ok((await anthropic.messages.countTokens({ model: "flint", messages: ask })).input_tokens > 0);
  },
  async anthropic_abort() {
    const stream = anthropic.messages.stream({ ...options, max_tokens: 3000 });
    for await (const _ of stream) break;
    stream.abort();
    assert.ok(await isIdle());
  },
  async ai_sdk_text() {
    const model = provider("flint");
    const { textStream } = streamText({ model, messages: ask, temperature: 0, maxOutputTokens: 24 });
    let text = "";
    for await (const part of textStream) text += part;
    assert.equal(text, wanted);
  },
  async ai_sdk_tool() {
    const add = aiTool({ description: "Adds.", inputSchema: jsonSchema(schema) });
    const made = await generateText({
      model: provider("flint"), messages: ask, tools: { add }, toolChoice: { type: "tool", toolName: "add" }, temperature: 0, maxOutputTokens: 120,
    });
    assert.equal(made.toolCalls[0].toolName, "add");
    assert.ok(Number.isInteger(made.toolCalls[0].input.a));
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok      ${name}`);
  } catch (error) {
    // Whatever a library throws is a finding.
    failed += 1;
    console.log(`FAILED  ${name}: ${String(error).slice(0, 400)}`);
  }
}
process.exit(failed ? 1 : 0);
