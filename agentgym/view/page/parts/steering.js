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
const shown = (request) => (request.setting ? `${harmless(request.setting)} = ${request.value}` : ACTIONS.find(([key]) => key === request.action)?.[1] ?? request.action);
const STATES = { waiting: "warn", applied: "good", refused: "bad" };

export function Steering({ run, onDone }) {
  const [asking, setAsking] = useState(null);
  const [failure, setFailure] = useState(null);
  const { able, why_not, requests } = run.steering;
  if (!able && !requests.length) return null;
  const ask = async () => {
    setFailure(null);
    try {
      await send("POST", runPath(run.id, "/steer"), asking[3] ?? { action: asking[0] });
      onDone();
    } catch (error) {
      setFailure(error);
    }
    setAsking(null);
  };
  return html`<section aria-label="Steering" class="steering">
    ${able && html`<div class="row">${ACTIONS.map((action) => html`<button key=${action[0]} class=${action[0] === "stop" ? "danger" : ""} onClick=${() => setAsking(action)}>${action[1]}</button>`)}</div>`}
    ${able && run.steering.settings?.length > 0 && html`<${Settings} settings=${run.steering.settings} onAsk=${setAsking} />`}
    ${!able && why_not && run.status === "running" && html`<p class="soft">${harmless(why_not)}</p>`}
    <${Failed} failure=${failure} />
    ${requests.length > 0 && html`<ul class="requests">${requests.map((request) => html`<li key=${request.id}><span class="tag ${STATES[request.state] ?? ""}">${request.state}</span> ${shown(request)}, asked ${ago(request.time)}${request.step === null ? "" : `, at step ${figure(request.step)}`}. ${harmless(request.text)}</li>`)}</ul>`}
    ${asking &&
    html`<${Dialog} title=${asking[1]} onClose=${() => setAsking(null)}><p>${asking[2]}</p><p class="soft">Run ${harmless(run.name)}, step ${figure(run.step)}. The request is recorded in the run's events.</p>
      <div class="row"><button onClick=${() => setAsking(null)}>Cancel</button><button class=${asking[0] === "stop" ? "danger" : "primary"} onClick=${ask}>${asking[1]}</button></div><//>`}
  </section>`;
}

/* A form for the settings that may change while the run goes on, as the server lists them. */
function Settings({ settings, onAsk }) {
  const [key, setKey] = useState(settings[0].key);
  const [value, setValue] = useState("");
  const one = settings.find((other) => other.key === key) ?? settings[0];
  const submit = (event) => {
    event.preventDefault();
    const number = value.trim() === "" || Number.isNaN(Number(value)) ? value : Number(value);
    onAsk(["set", `Set ${one.key} to ${value}`, `It is ${one.value} now. The change takes effect ${one.effect}.`, { action: "set", setting: one.key, value: number }]);
  };
  return html`<form class="row" aria-label="Change a setting" onSubmit=${submit}>
    <label>change <select onChange=${(event) => setKey(event.target.value)}>${settings.map((other) => html`<option value=${other.key} selected=${other.key === key}>${other.key}</option>`)}</select></label>
    <label>from ${String(one.value)} to <input required size="8" inputmode="decimal" value=${value} onInput=${(event) => setValue(event.target.value)} /></label>
    <button>Change</button> <span class="soft" title=${harmless(one.text)}>${one.type}; ${one.effect}</span>
  </form>`;
}
