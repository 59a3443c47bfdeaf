/* Tool and sandbox calls: what was asked, what came back, how long it took. */
import { html } from "../vendor/htm-preact.module.js";
import { duration, harmless, plain } from "../lib/format.js";
import { Text } from "./text.js";

const OPEN = 1500; // characters of a result up to which it is shown at once

function argumentsText(given) {
  if (given === null || typeof given !== "object" || Array.isArray(given)) return harmless(plain(given) ?? "");
  return harmless(Object.entries(given).map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(", "));
}

export function ToolCall({ call }) {
  const given = argumentsText(call.arguments);
  return html`<details class="call" open=${call.result.length <= OPEN}>
    <summary><code>${harmless(call.name)}(${given.length > 160 ? `${given.slice(0, 160)}…` : given})</code>
      <span class="soft">${duration(call.seconds)}</span> ${call.error && html`<span class="tag bad">${harmless(call.error)}</span>`}</summary>
    ${given.length > 160 && html`<${Text} text=${plain(call.arguments)} />`}
    <${Text} text=${call.result} />
  </details>`;
}

export function SandboxCall({ call }) {
  const good = call.status === "ok" && !call.error;
  return html`<details class="call">
    <summary><span>sandbox</span><span class="tag ${good ? "good" : "bad"}">${harmless(call.status)}</span> <span class="soft">${duration(call.seconds)}</span>
      ${call.error && html`<span class="bad">${harmless(call.error.split("\n")[0].slice(0, 120))}</span>`}</summary>
    <${Text} text=${[call.error, plain(call.detail)].filter(Boolean).join("\n")} />
  </details>`;
}
