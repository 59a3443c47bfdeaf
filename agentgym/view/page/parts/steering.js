/* What can be asked of a run while it goes on, each with a question first; the run reads it between two steps. */
import { html, useState } from "../vendor/htm-preact.module.js";
import { Dialog, Failed } from "./bits.js";
import { ago, figure, harmless } from "../lib/format.js";
import { runPath, send } from "../lib/data.js";

const ACTIONS = [
  ["checkpoint", "Checkpoint now", "The run saves a checkpoint after the step that it is in, and goes on."],
  ["evaluate", "Evaluate now", "The run plays its held-out tasks after the step that it is in. Training waits meanwhile."],
  ["stop", "Stop after this step", "The run ends after the step that it is in, with a checkpoint. `agentgym train --resume` continues it."],
];
const STATES = { waiting: "warn", applied: "good", refused: "bad" };

export function Steering({ run, onDone }) {
  const [asking, setAsking] = useState(null);
  const [failure, setFailure] = useState(null);
  const { able, why_not, requests } = run.steering;
  if (!able && !requests.length) return null;
  const ask = async () => {
    setFailure(null);
    try {
      await send("POST", runPath(run.id, "/steer"), { action: asking[0] });
      onDone();
    } catch (error) {
      setFailure(error);
    }
    setAsking(null);
  };
  return html`<section aria-label="Steering" class="steering">
    ${able && html`<div class="row">${ACTIONS.map((action) => html`<button key=${action[0]} class=${action[0] === "stop" ? "danger" : ""} onClick=${() => setAsking(action)}>${action[1]}</button>`)}</div>`}
    ${!able && why_not && run.status === "running" && html`<p class="soft">${harmless(why_not)}</p>`}
    <${Failed} failure=${failure} />
    ${requests.length > 0 && html`<ul class="requests">${requests.map((request) => html`<li key=${request.id}><span class="tag ${STATES[request.state] ?? ""}">${request.state}</span> ${ACTIONS.find(([key]) => key === request.action)?.[1] ?? request.action}, asked ${ago(request.time)}${request.step === null ? "" : `, at step ${figure(request.step)}`}. ${harmless(request.text)}</li>`)}</ul>`}
    ${asking &&
    html`<${Dialog} title=${asking[1]} onClose=${() => setAsking(null)}><p>${asking[2]}</p><p class="soft">Run ${harmless(run.name)}, step ${figure(run.step)}. The request is recorded in the run's events.</p>
      <div class="row"><button onClick=${() => setAsking(null)}>Cancel</button><button class=${asking[0] === "stop" ? "danger" : "primary"} onClick=${ask}>${asking[1]}</button></div><//>`}
  </section>`;
}
