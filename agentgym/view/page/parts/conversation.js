/* An episode's messages, the policy's own as tokens; or every token of a branch, with what the template wrote. */
import { html, useMemo } from "../vendor/htm-preact.module.js";
import { SandboxCall, ToolCall } from "./calls.js";
import { Text } from "./text.js";
import { Tokens } from "./tokens.js";
import { count, duration, figure, harmless } from "../lib/format.js";

function span(from, to) {
  return Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
}

/* The messages of a branch: all of it for the only one, else those of its turns and what lies between. */
export function messagesOf(episode, branch) {
  const { turns } = episode.branches[branch];
  return episode.messages.filter((message) => message.turn === null || message.turn === undefined || turns.includes(message.turn));
}

function Message({ episode, message, oldest, onInspect }) {
  const turn = message.turn === null || message.turn === undefined ? null : episode.turns[message.turn];
  const indices = useMemo(() => (turn ? span(turn.sampled, turn.end) : []), [turn]);
  const calls = (message.calls ?? []).map((number) => episode.tool_calls[number]).filter(Boolean);
  const sandbox = turn ? (episode.sandbox_calls ?? []).filter((call) => call.turn === message.turn + 1) : [];
  const trace = message.trace !== null && message.trace !== undefined ? episode.tool_calls[message.trace] : null;
  return html`<div class="message ${message.role}">
    <header><b>${harmless(message.role)}</b>${message.name ? html`<span>${harmless(message.name)} </span>` : ""}
      ${turn && html`<span>turn ${turn.n}, ${count(indices.length, "token")}${turn.masked ? ", masked" : ""}${turn.finish === "stop" ? "" : `, cut: ${turn.finish}`}</span>`}${trace && html`<span>${duration(trace.seconds)}</span>`}</header>
    <div>${turn ? html`<${Tokens} tokens=${episode.tokens} indices=${indices} oldest=${oldest} label=${`turn ${turn.n}`} onInspect=${onInspect} />` : html`<${Text} text=${message.content ?? ""} />`}
      ${message.cut && html`<p class="note">${figure(message.cut)} more characters are in the file.</p>`}
      ${calls.map((call, i) => html`<${ToolCall} key=${i} call=${call} />`)}${sandbox.map((call, i) => html`<${SandboxCall} key=${`s${i}`} call=${call} />`)}</div>
  </div>`;
}

export function Conversation({ episode, branch, oldest, onInspect }) {
  const messages = messagesOf(episode, branch);
  const answered = new Set(messages.flatMap((message) => message.calls ?? []));
  const prompt = messages.some((message) => message.turn === null || message.turn === undefined) ? [] : episode.task.prompt;
  const shown = [...prompt, ...messages].filter((message) => !(message.role === "tool" && answered.has(message.trace)));
  return html`<div>${shown.map((message, i) => html`<${Message} key=${i} episode=${episode} message=${message} oldest=${oldest} onInspect=${onInspect} />`)}</div>`;
}

export function EveryToken({ episode, branch, oldest, onInspect }) {
  const indices = useMemo(() => episode.branches[branch].turns.flatMap((number) => span(episode.turns[number].first, episode.turns[number].end)), [episode, branch]);
  return html`<div class="message"><header><b>all</b><span>${count(indices.length, "token")}</span></header>
    <${Tokens} tokens=${episode.tokens} indices=${indices} oldest=${oldest} label="the whole branch" onInspect=${onInspect} /></div>`;
}
