// The official OpenAI client, unmodified, against a running server. Usage: node FILE URL
// Prints TAP. The server runs the demo model (exec-cpu).
import assert from "node:assert/strict";
import OpenAI from "openai";

const baseURL = process.argv[2] + "/v1";
const client = new OpenAI({ baseURL, apiKey: "sk-test", maxRetries: 0, timeout: 60000 });
const model = "k3-tiny";
const hello = [{ role: "user", content: "Hello!" }];
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the weather",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

async function liveSequences() {
  const text = await (await fetch(process.argv[2] + "/metrics", {
    headers: { authorization: "Bearer sk-test" },
  })).text();
  return Number(/^kedge:sequences_live\{.*\} (\d+)$/m.exec(text)[1]);
}

const tests = {
  async models_are_listed_and_retrieved() {
    const list = [];
    for await (const m of client.models.list()) {
      list.push(m.id);
    }
    assert.deepEqual(list, [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
  },

  async a_chat_answers_with_usage() {
    const a = await client.chat.completions.create({ model, messages: hello, temperature: 0 });
    assert.equal(a.object, "chat.completion");
    assert.equal(a.choices[0].message.role, "assistant");
    assert.ok(a.choices[0].message.content.length > 0);
    assert.equal(a.choices[0].finish_reason, "stop");
    assert.equal(a.usage.total_tokens, a.usage.prompt_tokens + a.usage.completion_tokens);
    assert.ok(a._request_id);
  },

  async a_streamed_chat_says_the_same_and_ends_with_usage() {
    const body = { model, messages: hello, temperature: 0 };
    const plain = await client.chat.completions.create(body);
    const stream = await client.chat.completions.create({
      ...body, stream: true, stream_options: { include_usage: true },
    });
    let text = "", usage = null, finish = null, role = null;
    for await (const chunk of stream) {
      usage = chunk.usage ?? usage;
      const c = chunk.choices[0];
      if (c) {
        role = c.delta.role ?? role;
        text += c.delta.content ?? "";
        finish = c.finish_reason ?? finish;
      }
    }
    assert.equal(role, "assistant");
    assert.equal(text, plain.choices[0].message.content);
    assert.equal(finish, "stop");
    assert.deepEqual(usage, plain.usage);
  },

  async the_stream_helper_gathers_a_final_message() {
    const runner = client.chat.completions.stream({ model, messages: hello, temperature: 0 });
    const pieces = [];
    runner.on("content", (d) => pieces.push(d));
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].message.content, pieces.join(""));
  },

  async tools_are_called_streamed_and_not() {
    const body = {
      model, tools, temperature: 0, max_tokens: 150,
      messages: [{ role: "user", content: "What is the weather in Paris?" }],
    };
    const plain = await client.chat.completions.create(body);
    const calls = plain.choices[0].message.tool_calls;
    assert.equal(plain.choices[0].finish_reason, "tool_calls");
    assert.ok(calls.length >= 1);
    for (const c of calls) {
      assert.equal(c.type, "function");
      assert.ok(c.id && c.function.name);
      assert.equal(typeof JSON.parse(c.function.arguments), "object");
    }
    const final = await client.chat.completions.stream(body).finalChatCompletion();
    assert.equal(final.choices[0].finish_reason, "tool_calls");
    assert.deepEqual(
      final.choices[0].message.tool_calls.map((c) => [c.id, c.function.name, c.function.arguments]),
      calls.map((c) => [c.id, c.function.name, c.function.arguments]),
    );
  },

  async a_tool_result_can_be_sent_back() {
    const a = await client.chat.completions.create({
      model, tools, temperature: 0, max_tokens: 30,
      messages: [
        { role: "user", content: "What is the weather in Paris?" },
        {
          role: "assistant", content: null,
          tool_calls: [{ id: "call-1", type: "function",
            function: { name: "get_weather", arguments: '{"city":"Paris","n":1e2}' } }],
        },
        { role: "tool", tool_call_id: "call-1", content: "sunny" },
      ],
    });
    assert.ok(["stop", "length", "tool_calls"].includes(a.choices[0].finish_reason));
  },

  async logprobs_come_with_chats_and_completions() {
    const a = await client.chat.completions.create({
      model, messages: hello, temperature: 0, logprobs: true, top_logprobs: 3,
    });
    const list = a.choices[0].logprobs.content;
    assert.equal(list.map((t) => t.token).join(""), a.choices[0].message.content);
    for (const t of list) {
      assert.equal(t.top_logprobs.length, 3);
      assert.ok(t.logprob <= 0 && t.top_logprobs[0].logprob >= t.logprob - 1e-6);
    }
    const b = await client.completions.create({
      model, prompt: "def main():", max_tokens: 5, temperature: 0, logprobs: 2, echo: true,
    });
    assert.equal(b.choices[0].logprobs.tokens.join(""), b.choices[0].text);
    assert.equal(b.choices[0].logprobs.token_logprobs[0], null);
  },

  async completions_stream_and_not() {
    const body = { model, prompt: "Once upon a time", max_tokens: 20, temperature: 0 };
    const plain = await client.completions.create(body);
    let text = "";
    for await (const chunk of await client.completions.create({ ...body, stream: true })) {
      text += chunk.choices[0].text;
    }
    assert.equal(text, plain.choices[0].text);
    const many = await client.completions.create({ ...body, prompt: ["a b", "c d"], n: 2, seed: 3,
      temperature: 1 });
    assert.equal(many.choices.length, 4);
  },

  async choices_differ_by_seed_and_repeat_with_it() {
    const body = { model, messages: [{ role: "user", content: "Continue: It was a" }], n: 3,
      seed: 11, temperature: 1, max_tokens: 20 };
    const text = (a) => a.choices.map((c) => c.message.content + c.message.reasoning_content);
    const a = text(await client.chat.completions.create(body));
    const b = text(await client.chat.completions.create(body));
    assert.deepEqual(a, b);
    assert.ok(new Set(a).size > 1);
  },

  async stop_strings_are_not_in_the_text() {
    const body = { model, prompt: "Once upon a time", max_tokens: 30, temperature: 0 };
    const whole = (await client.completions.create(body)).choices[0].text;
    const stop = whole.slice(8, 11);
    const a = await client.completions.create({ ...body, stop: [stop] });
    assert.equal(a.choices[0].text, whole.slice(0, whole.indexOf(stop)));
    assert.equal(a.choices[0].finish_reason, "stop");
  },

  async an_abort_in_mid_stream_frees_the_sequence() {
    const abort = new AbortController();
    const stream = await client.completions.create(
      { model, prompt: "x", max_tokens: 4000, ignore_eos: true, stream: true },
      { signal: abort.signal },
    );
    let n = 0;
    for await (const _ of stream) {
      if (++n === 3) {
        abort.abort();
        break;
      }
    }
    const end = Date.now() + 60000;
    while ((await liveSequences()) > 0) {
      assert.ok(Date.now() < end, "the sequence still runs");
    }
  },

  async errors_become_the_clients_classes() {
    const bad = (body) => client.chat.completions.create({ model, messages: hello, ...body });
    await assert.rejects(bad({ temperature: "hot" }), (e) => {
      assert.ok(e instanceof OpenAI.BadRequestError);
      assert.equal(e.param, "temperature");
      assert.equal(e.code, "invalid_value");
      return true;
    });
    await assert.rejects(bad({ model: "gpt-4" }), OpenAI.NotFoundError);
    await assert.rejects(bad({ response_format: { type: "json_object" } }), (e) =>
      e instanceof OpenAI.BadRequestError && e.param === "response_format");
    const other = new OpenAI({ baseURL, apiKey: "sk-wrong", maxRetries: 0 });
    await assert.rejects(other.models.list(), OpenAI.AuthenticationError);
  },
};

const names = Object.keys(tests);
console.log(`1..${names.length}`);
let failed = 0;
for (const [i, name] of names.entries()) {
  try {
    await tests[name]();
    console.log(`ok ${i + 1} - ${name}`);
  } catch (e) {
    failed++;
    console.error(e);
    console.log(`not ok ${i + 1} - ${name}`);
  }
}
process.exit(failed > 0 ? 1 : 0);
