// Talks to a running server through the Vercel AI SDK: `npm install && node session.mjs http://127.0.0.1:8080`.
// Three providers (OpenAI-compatible chat, OpenAI's responses, Anthropic's messages), each: text, streamed text, a
// structured object, a tool that the SDK runs and feeds back. Exits 1 when anything is wrong.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const url = process.argv[2] ?? "http://127.0.0.1:8080";
const model = "lily-mini";
const prompt = "define heron";
let wrong = 0;
let checks = 0;

function check(ok, what) {
  checks += 1;
  if (!ok) {
    wrong += 1;
    console.log(`  WRONG: ${what}`);
  }
}

const providers = {
  chat: createOpenAICompatible({ name: "lily", baseURL: `${url}/v1`, includeUsage: true, supportsStructuredOutputs: true })(model),
  responses: createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" }).responses(model),
  messages: createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })(model),
};
const lookup_word = tool({
  description: "Look up the meaning of a word in the dictionary.",
  inputSchema: z.object({ word: z.string().describe("the word to look up") }),
  execute: async ({ word }) => `${word}: a wading bird.`,
});

for (const [name, provider] of Object.entries(providers)) {
  const common = { model: provider, prompt, temperature: 0, maxRetries: 0, maxOutputTokens: 400 };
  try {
    const whole = await generateText(common);
    check(whole.text.includes("bird") && whole.usage.outputTokens > 0, `${name}: ${whole.text}`);

    const stream = streamText(common);
    let text = "";
    let pieces = 0;
    for await (const piece of stream.textStream) {
      text += piece;
      pieces += 1;
    }
    check(text === whole.text && pieces > 5, `${name} streamed in ${pieces}: ${text}`);

    const schema = z.object({ word: z.string().max(30), known: z.boolean() });
    const entry = await generateText({ ...common, output: Output.object({ schema }) });
    check(typeof entry.output.known === "boolean", `${name} object: ${JSON.stringify(entry.output)}`);

    const steps = await generateText({ ...common, tools: { lookup_word }, stopWhen: stepCountIs(2) });
    const calls = steps.steps.flatMap((s) => s.toolCalls);
    check(calls.length === 1 && calls[0].input.word === "heron", `${name} tool: ${JSON.stringify(calls)}`);
    check(steps.text.includes("bird"), `${name} after the tool: ${steps.text}`);

    const streamed = streamText({ ...common, tools: { lookup_word }, stopWhen: stepCountIs(2) });
    check((await streamed.text).includes("bird"), `${name} streamed tool: ${await streamed.text}`);
  } catch (error) {
    check(false, `${name}: ${error.message} ${error.responseBody ?? ""}`);
  }
}
console.log(`${checks} checks, ${wrong ? `${wrong} WRONG` : "all right"}`);
process.exit(wrong ? 1 : 0);
